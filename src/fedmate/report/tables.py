"""Tables of records: for a terminal, as Markdown, as LaTeX and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

VIEWS = ("pre", "post", "global")
TESTS = ("balanced", "own")
MEANINGS = {
    "before": "the model as received; personal layers, if any, are not trained yet",
    "after": "the same model after one local update on the training samples",
    "global": "the aggregated model of the run",
    "balanced": "all classes weigh alike",
    "own": "classes weigh as in the training samples, as a model with a prior is told",
}
"""The words in the table of an adapted client."""

NUMBER = re.compile(r"[+-]?\d[\d.,]*(e[+-]?\d+)?( ± [\d.,e+-]+)?( \(.*\))?")
"""A cell that is aligned right."""

CODE = re.compile("`([^`]+)`")
MARKDOWN = re.compile(r"[\\`*_<\[|#~&]")
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
"""Characters that LaTeX takes for something else, or does not know."""


# -------------------- runs


def comparison(summaries: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row per run: accuracy in percent by view and test, bytes, time."""
    first = summaries[0]
    rounds = f"{first['rounds']} round{'s' * (first['rounds'] != 1)}"
    caption = (
        "accuracy in percent, mean over clients; * headline view; MB over all clients\n"
        "balanced: all classes weigh alike; own: as at the client, whose class shares\n"
        "models with `calibration` or `own_prior` are given there"
    )
    table = _by_test(f"{first['dataset']}, {first['clients']} clients, {rounds}, seed {first['seed']}", caption, VIEWS)
    for name in ("MB\nup", "MB\ndown", "time\ns"):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        cells = [_cell(summary, view, test) for test in TESTS for view in VIEWS]
        numbers = (summary["bytes_up"] / 1e6, summary["bytes_down"] / 1e6, summary["seconds"])
        table.add_row(summary["method"], *cells, *(f"{n:.1f}" if n < 100 else f"{n:.0f}" for n in numbers))
    return table


def newcomers(summaries: Sequence[dict[str, Any]]) -> Table | None:
    """Return a table of the clients that were not in training, or nothing if there were none."""
    met = [summary for summary in summaries if "newcomers" in summary]
    if not met:
        return None
    title = f"{met[0]['newcomers']['clients']} clients that were not in training"
    table = _by_test(title, "accuracy in percent before and after one local update", ("before", "after"))
    for summary in met:
        accuracy = summary["newcomers"]["accuracy"]
        cells = [_figure(accuracy[view], test) for test in TESTS for view in ("before", "after")]
        table.add_row(summary["method"], *cells)
    return table


def adapted(accuracy: Mapping[str, Mapping[str, float | None]]) -> Group:
    """Return a table of a client's accuracies before and after it adapts, and the meaning of its words."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("accuracy in %", no_wrap=True)
    for test in TESTS:
        table.add_column(test, justify="right", no_wrap=True)
    for view, figures in accuracy.items():
        cells = (figures[test] for test in TESTS)
        table.add_row(view, *("-" if cell is None else f"{cell:.2f}" for cell in cells))
    # Below the table: a caption would be as narrow as the table.
    meanings = [f"{word}: {meaning}" for word, meaning in MEANINGS.items() if word in accuracy or word in TESTS]
    return Group(table, Text("\n".join(meanings), style="table.caption"))


def samples_by_class(samples: Mapping[str, Mapping[str, int]]) -> Table:
    """Return a table of the samples of each class that were used for training and for testing."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=True)
    table.add_column("samples of class", "all")
    for part in ("train", "test"):
        table.add_column(part, str(sum(samples[part].values())), justify="right", no_wrap=True)
    for name in samples["train"]:
        table.add_row(Text(name), *(str(samples[part][name]) for part in ("train", "test")))
    return table


def _by_test(title: str, caption: str, views: Sequence[str]) -> Table:
    """Return an empty table with a column for each test and view."""
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", no_wrap=True)
    for test in TESTS:
        for view in views:
            # The test is over its first column only, so that the table fits into 80 characters.
            table.add_column(f"{test if view == views[0] else ''}\n{view}", justify="right", no_wrap=True)
    return table


def _cell(summary: dict[str, Any], view: str, test: str) -> str:
    figure, primary = _figure(summary["accuracy"][view], test), summary["headline"]
    return "*" * (figure != "-" and (primary["view"], primary["test"]) == (view, test)) + figure


def _figure(figures: dict[str, Any] | None, test: str) -> str:
    return "-" if figures is None or figures[test]["mean"] is None else f"{figures[test]['mean']:.2f}"


# -------------------- tables for documents


@final
@dataclass(frozen=True)
class Sheet:
    """A table of text. Text between backticks is code; all other characters are literal.

    Attributes:
        name: of its files.
        title: above it.
        head: the names of columns.
        rows: a cell for each column.
        notes: sentences below it.
        bold: cells `(row, column)` in bold type.
        groups: a name over each column, shared by neighbours; an empty name is none.
    """

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bold: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    groups: Sequence[str] = ()

    def spans(self) -> list[tuple[str, range]]:
        """Return the groups of columns; a column without a group is alone."""
        found = list[tuple[str, range]]()
        for column, group in enumerate(self.groups or [""] * len(self.head)):
            if group and found and found[-1][0] == group:
                found[-1] = group, range(found[-1][1].start, column + 1)
            else:
                found.append((group, range(column, column + 1)))
        return found

    def names(self) -> list[str]:
        """Return a unique name for each column."""
        groups = self.groups or [""] * len(self.head)
        return [f"{group}: {name}" if group else name for group, name in zip(groups, self.head, strict=True)]

    def is_right(self, column: int) -> bool:
        """Tell whether a column has numbers, which are aligned right; the first has names."""
        return column > 0 and any(NUMBER.fullmatch(row[column]) for row in self.rows)


def plain(text: str) -> str:
    """Return text in one line, without invisible characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def to_markdown(sheet: Sheet) -> str:
    """Return it as GitHub's Markdown."""
    marks = ["---:" if sheet.is_right(column) else "---" for column in range(len(sheet.head))]
    rows = [map(_markdown_cell, sheet.names()), marks, *_cells(sheet, _markdown_cell, "**{}**")]
    lines = [f"### {_markdown(sheet.title)}", "", *(f"| {' | '.join(row)} |" for row in rows)]
    notes = ["", *(f"- {_markdown(note)}" for note in sheet.notes)] if sheet.notes else []
    return "\n".join([*lines, *notes]) + "\n"


def to_latex(sheet: Sheet) -> str:
    """Return it as a LaTeX table, which needs `booktabs` and `graphicx`; a wide one is scaled to the line."""
    columns = "".join("r" if sheet.is_right(column) else "l" for column in range(len(sheet.head)))
    notes = "".join(f"\n{_latex(note)}\\par" for note in sheet.notes)
    over = [rf"\multicolumn{{{len(span)}}}{{c}}{{{_latex(group)}}}" for group, span in sheet.spans()]
    rules = [rf"\cmidrule(lr){{{span.start + 1}-{span.stop}}}" for group, span in sheet.spans() if group]
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(sheet.title)}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *([_latex_row(over), " ".join(rules)] if rules else []),
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
    """Return its head and rows as comma-separated values."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([CODE.sub(r"\1", plain(cell)) for cell in row] for row in (sheet.names(), *sheet.rows))
    return file.getvalue()


def to_rich(sheet: Sheet) -> RenderableType:
    """Return it for a terminal; where one table would be too wide, there are several below each other."""
    return _Printed(sheet)


@final
class _Printed:
    """A sheet that is divided into tables when it is printed, so that no cell is cut."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        groups = {span.start: group for group, span in sheet.spans()}
        # A group is over its first column only: its name is longer than numbers.
        self._heads = [f"{plain(groups.get(j, ''))}\n{plain(name)}".strip() for j, name in enumerate(sheet.head)]
        columns = [[plain(row[j]) for row in sheet.rows] for j in range(len(sheet.head))]
        self._widths = [
            max(map(cell_len, [*head.split(), *column]), default=1)
            for head, column in zip(self._heads, columns, strict=True)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(plain(self._sheet.title), style="table.title")
        for columns in self._blocks(options.max_width):
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
            for j in columns:
                side: JustifyMethod = "right" if self._sheet.is_right(j) else "left"
                table.add_column(Text(self._heads[j]), min_width=self._widths[j], width=self._widths[j], justify=side)
            for i, row in enumerate(self._sheet.rows):
                bold = self._sheet.bold
                table.add_row(*(Text(plain(row[j]), style="bold" if (i, j) in bold else "") for j in columns))
            table.width = sum(self._widths[j] + 2 for j in columns)
            yield table
        if self._sheet.notes:
            yield Text("\n".join(map(plain, self._sheet.notes)), style="table.caption")

    def _blocks(self, most: int) -> list[list[int]]:
        """Return the columns of each table: groups are not divided, and names of rows are in each table."""
        spans = self._sheet.spans()
        names = [] if spans[0][0] else [0]
        blocks = [names]
        for _, span in spans[len(names) :]:
            if sum(self._widths[j] + 2 for j in (*blocks[-1], *span)) > most and len(blocks[-1]) > len(names):
                blocks.append(names)
            blocks[-1] = [*blocks[-1], *span]
        return blocks


def _cells(sheet: Sheet, write: Callable[[str], str], bold: str) -> Iterator[list[str]]:
    """Yield rows with cells as `write` returns them."""
    for i, row in enumerate(sheet.rows):
        yield [bold.format(write(c)) if (i, j) in sheet.bold and c else write(c) for j, c in enumerate(row)]


def _markdown(text: str) -> str:
    pieces = CODE.split(plain(text))
    return "`".join(piece if i % 2 else MARKDOWN.sub(r"\\\g<0>", piece) for i, piece in enumerate(pieces))


def _markdown_cell(text: str) -> str:
    # A bar ends a cell in code, too.
    pieces = CODE.split(plain(text))
    return "`".join(p.replace("|", r"\|") if i % 2 else MARKDOWN.sub(r"\\\g<0>", p) for i, p in enumerate(pieces))


def _latex(text: str) -> str:
    """Escape text; two strokes are no dash, and a stroke before a number is a minus."""
    pieces = ["".join(LATEX.get(c, c) for c in piece) for piece in CODE.split(plain(text))]
    pieces = [re.sub("-(?=-)", "-{}", re.sub(r"^-(?=\d)", "$-$", piece)) for piece in pieces]
    return "".join(rf"\texttt{{{piece}}}" if i % 2 else piece for i, piece in enumerate(pieces))


def _latex_row(cells: Iterable[str]) -> str:
    return rf"{' & '.join(cells)} \\"
