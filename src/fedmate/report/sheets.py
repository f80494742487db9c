"""A table of text, and the forms it is written in."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_DIGITS = r"[+-]?\d[\d.,]*(e[+-]?\d+)?"
NUMBER = re.compile(rf"{_DIGITS}( ± {_DIGITS})?( \(.*\))?")
"""A cell that is read from its end, and stands right."""

CODE = re.compile("`([^`]+)`")

MARKDOWN = re.compile(r"[\\`*_<\[|#~&]")
"""What means something in Markdown wherever it stands."""

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\`{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: f"\\{character}" for character in "_%&#${}"},
    # After the end of a row these would be its options.
    **{character: f"{{{character}}}" for character in "[]*"},
    "±": r"$\pm$",
    "λ": r"$\lambda$",
}
"""What LaTeX takes for something else, or does not know."""


@final
@dataclass(frozen=True)
class Sheet:
    """A table: words and numbers that somebody has put into the form they are read in.

    Text between backticks is code; all other characters mean themselves.

    Attributes:
        name: what its files are called, such as `accuracy`.
        title: what stands above it.
        head: a name for each column.
        rows: a cell for each column.
        notes: sentences below it.
        bold: places `(row, column)` that stand out.
        groups: what each column belongs to; those side by side with the same name stand under it. Empty: to nothing.
    """

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bold: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    groups: Sequence[str] = ()

    def spans(self) -> list[range]:
        """Return the columns that belong together; one that belongs to nothing is alone."""
        groups, spans = self.groups or [""] * len(self.head), list[range]()
        for column, group in enumerate(groups):
            if spans and group and groups[column - 1] == group:
                spans[-1] = range(spans[-1].start, column + 1)
            else:
                spans.append(range(column, column + 1))
        return spans

    def group(self, span: range) -> str:
        """Return the name over columns that belong together."""
        return self.groups[span.start] if self.groups else ""

    def names(self) -> list[str]:
        """Return a name for each column that tells it from all others."""
        groups = self.groups or [""] * len(self.head)
        return [f"{group}: {name}" if group else name for group, name in zip(groups, self.head, strict=True)]

    def is_right(self, column: int) -> bool:
        """Tell whether a column has numbers, which stand right; the first has names."""
        return column > 0 and any(NUMBER.fullmatch(row[column]) for row in self.rows)


def to_markdown(sheet: Sheet) -> str:
    """Write it as GitHub's Markdown."""
    marks = ["---:" if sheet.is_right(column) else "---" for column in range(len(sheet.head))]
    lines = [
        f"### {_markdown(sheet.title)}",
        "",
        _markdown_row(map(_markdown_cell, sheet.names())),
        _markdown_row(marks),
        *(_markdown_row(cells) for cells in _cells(sheet, _markdown_cell, "**{}**")),
        *([""] if sheet.notes else []),
        *(f"- {_markdown(note)}" for note in sheet.notes),
    ]
    return "\n".join(lines) + "\n"


def to_latex(sheet: Sheet) -> str:
    """Write it as a LaTeX table, which needs `booktabs` and `graphicx`; a wide one is scaled to the line."""
    columns = "".join("r" if sheet.is_right(column) else "l" for column in range(len(sheet.head)))
    notes = "".join(f"\n{_latex(note)}\\par" for note in sheet.notes)
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(sheet.title)}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *_latex_groups(sheet),
        _latex_row(map(_latex, sheet.head)),
        r"\midrule",
        *(_latex_row(cells) for cells in _cells(sheet, _latex, r"\textbf{{{}}}")),
        r"\bottomrule",
        r"\end{tabular}}",
        *([rf"\par\smallskip{{\footnotesize\raggedright{notes}}}"] if notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(sheet: Sheet) -> str:
    """Write its head and rows as comma-separated values."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in (sheet.names(), *sheet.rows):
        # The module quotes line feeds only, but takes a carriage return for the end of a line, too.
        cells = (cell.replace("\r\n", "\n").replace("\r", "\n") for cell in row)
        writer.writerow(CODE.sub(r"\1", cell) for cell in cells)
    return file.getvalue()


def to_rich(sheet: Sheet) -> RenderableType:
    """Return it for a terminal: where one table would be too wide, there are several below each other."""
    return _Printed(sheet)


@final
class _Printed:
    """A sheet that knows how wide it may be when it is printed, and is never squeezed."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(plain(self._sheet.title), style="table.title")
        yield from (_rich(self._sheet, spans, console) for spans in self._blocks(console, options.max_width))
        if self._sheet.notes:
            yield Text("\n".join(map(plain, self._sheet.notes)), style="table.caption")

    def _blocks(self, console: Console, most: int) -> list[list[range]]:
        """Return the columns of each table: as many as there is room for, with the names of rows in each."""
        sheet, spans = self._sheet, self._sheet.spans()
        names = spans[:1] if not sheet.group(spans[0]) else []
        blocks = [names]
        for span in spans[len(names) :]:
            wide = _rich(sheet, [*blocks[-1], span], console).width or 0
            if wide > most and len(blocks[-1]) > len(names):
                blocks.append(names)
            blocks[-1] = [*blocks[-1], span]
        return blocks


def plain(text: str) -> str:
    """Return text in one line, without characters that nobody sees."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _rich(sheet: Sheet, spans: Sequence[range], console: Console) -> Table:
    """Return a table of some columns, as wide as it needs to be."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    columns = [column for span in spans for column in span]
    for span in spans:
        for column in span:
            # The group stands over its first column only: a name is longer than numbers.
            over = plain(sheet.group(span)) if column == span.start else ""
            head, cells = f"{over}\n{plain(sheet.head[column])}".strip(), (plain(row[column]) for row in sheet.rows)
            width = max(map(cell_len, [*head.split(), *cells]), default=1)
            side: JustifyMethod = "right" if sheet.is_right(column) else "left"
            table.add_column(Text(head), width=max(1, width), justify=side)
    for i, row in enumerate(sheet.rows):
        table.add_row(*(Text(plain(row[j]), style="bold" if (i, j) in sheet.bold else "") for j in columns))
    table.width = Measurement.get(console, console.options.update_width(1_000_000), table).minimum
    return table


def _cells(sheet: Sheet, write: Callable[[str], str], bold: str) -> Iterator[list[str]]:
    """Yield the rows as `write` writes them, and those that stand out as `bold` does."""
    for i, row in enumerate(sheet.rows):
        yield [bold.format(write(c)) if (i, j) in sheet.bold and c else write(c) for j, c in enumerate(row)]


def _pieces(text: str) -> list[str]:
    """Return text and code in turn."""
    return CODE.split(plain(text))


def _markdown(text: str) -> str:
    escaped = [piece if i % 2 else MARKDOWN.sub(r"\\\g<0>", piece) for i, piece in enumerate(_pieces(text))]
    return "`".join(escaped)


def _markdown_cell(text: str) -> str:
    """Write a cell: a bar would end it in code, too, and a backslash there cannot be told from one before a bar."""
    pieces = _pieces(text)
    if any("\\" in code for code in pieces[1::2]):
        return MARKDOWN.sub(r"\\\g<0>", plain(text))
    return "`".join(p.replace("|", r"\|") if i % 2 else MARKDOWN.sub(r"\\\g<0>", p) for i, p in enumerate(pieces))


def _markdown_row(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex(text: str) -> str:
    """Escape text; strokes stay strokes where two would be a dash, and one before a number is a minus."""
    escaped = ["".join(LATEX.get(c, c) for c in piece) for piece in _pieces(text)]
    escaped = [re.sub("-(?=-)", "-{}", re.sub(r"^-(?=\d)", "$-$", piece)) for piece in escaped]
    return "".join(rf"\texttt{{{piece}}}" if i % 2 else piece for i, piece in enumerate(escaped))


def _latex_row(cells: Sequence[str] | Iterator[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _latex_groups(sheet: Sheet) -> list[str]:
    """Write the names over columns, and a rule below each; nothing if there are none."""
    spans = sheet.spans()
    if not any(map(sheet.group, spans)):
        return []
    names = [rf"\multicolumn{{{len(span)}}}{{c}}{{{_latex(sheet.group(span))}}}" for span in spans]
    rules = [rf"\cmidrule(lr){{{s.start + 1}-{s.stop}}}" for s in spans if sheet.group(s)]
    return [_latex_row(names), " ".join(rules)]
