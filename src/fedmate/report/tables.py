"""Tables of records: for a terminal, as Markdown, as LaTeX and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import rich.table
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.text import Text

from fedmate.experiment.record import TESTS, VIEWS

NUMBER = re.compile(r"\*?[+-]?\d[\d.,]*(e[+-]?\d+)?( ± [\d.,e+-]+)?( \(.*\))?")
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


@final
@dataclass(frozen=True)
class Table:
    """A table of text. Text between backticks is code; all other characters are literal.

    Attributes:
        name: of its files.
        title, notes: sentences above and below it.
        head, rows: the names of columns, and a cell for each column.
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

    def cells(self, write: Callable[[str], str], bold: str) -> Iterator[list[str]]:
        """Yield rows with cells as `write` returns them."""
        for i, row in enumerate(self.rows):
            yield [bold.format(write(c)) if (i, j) in self.bold and c else write(c) for j, c in enumerate(row)]


def comparison(summaries: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row per run: accuracy by test and view, bytes, time."""
    first, rows, tests = summaries[0], [], _tests(summary["accuracy"] for summary in summaries)
    for summary in summaries:
        primary = (summary["headline"]["test"], summary["headline"]["view"])
        row = [summary["method"]]
        for test in tests:
            for view in VIEWS:
                cell = _figure(summary["accuracy"][view], test)
                row.append("*" * (cell != "-" and primary == (test, view)) + cell)
        numbers = (summary["bytes_up"] / 1e6, summary["bytes_down"] / 1e6, summary["seconds"])
        rows.append([*row, *(f"{number:.1f}" if number < 100 else f"{number:.0f}" for number in numbers)])
    rounds = f"{first['rounds']} round{'s' * (first['rounds'] != 1)}"
    title = f"{first['dataset']}, {first['clients']} clients, {rounds}, seed {first['seed']}"
    notes = [
        "Accuracy in percent, mean over clients; * marks the primary view.",
        "balanced: all classes weigh alike.",
        "own: classes weigh as in the client's samples; those it lacks are ruled out.",
        *["local: test samples of the client's own."] * ("local" in tests),
        "MB: megabytes that all clients sent (up) and received (down).",
    ]
    groups = ["", *(test for test in tests for _ in VIEWS), "", "", ""]
    return Table(
        "runs", title, ["method", *VIEWS * len(tests), "MB up", "MB down", "time s"], rows, notes, groups=groups
    )


def unseen_clients(summaries: Sequence[dict[str, Any]]) -> Table | None:
    """Return a table of the clients that were not in training, or nothing if there were none."""
    met = [summary for summary in summaries if "newcomers" in summary]
    if not met:
        return None
    views, tests = ("before", "after"), _tests(summary["newcomers"]["accuracy"] for summary in met)
    rows = []
    for summary in met:
        accuracy = summary["newcomers"]["accuracy"]
        rows.append([summary["method"], *(_figure(accuracy[view], test) for test in tests for view in views)])
    clients = met[0]["newcomers"]["clients"]
    title = f"{clients} client{'s' * (clients != 1)} outside training"
    notes = ["Accuracy in percent, mean over these clients, before and after one local update."]
    groups = ["", *(test for test in tests for _ in views)]
    return Table("unseen", title, ["method", *views * len(tests)], rows, notes, groups=groups)


def adapted(accuracy: Mapping[str, Mapping[str, float | None]]) -> Table:
    """Return a table of a client's accuracies before and after it adapts."""
    rows, tests = [], _tests([accuracy])
    for view, figures in accuracy.items():
        cells = (figures[test] for test in tests)
        rows.append([view, *("-" if cell is None else f"{cell:.2f}" for cell in cells)])
    meanings = {
        "before": "the model as received; its personal layers, if any, are not trained yet.",
        "after": "the same model after one local update on the training samples.",
        "global": "the aggregated model of the run.",
        "balanced": "all classes weigh alike.",
        "own": "classes weigh as in its training samples; those it lacks are ruled out.",
    }
    notes = [f"{word}: {meaning}" for word, meaning in meanings.items() if word in accuracy or word in tests]
    return Table("adapted", "Accuracy in percent", ["model", *tests], rows, notes)


def samples_by_class(samples: Mapping[str, Mapping[str, int]]) -> Table:
    """Return a table of the samples of each class that were used for training and for testing."""
    rows = [[name, *(str(part[name]) for part in samples.values())] for name in samples["train"]]
    rows.append(["all", *(str(sum(part.values())) for part in samples.values())])
    return Table("samples", "Samples by class", ["class", *samples], rows)


def _figure(figures: dict[str, Any] | None, test: str) -> str:
    mean = figures and test in figures and figures[test]["mean"]
    return f"{mean:.2f}" if isinstance(mean, float) else "-"


def _tests(accuracies: Iterable[Mapping[str, Mapping[str, Any] | None]]) -> list[str]:
    """Return the tests that some run has, in their order; `balanced` and `own` if no run was evaluated."""
    found = {test for views in accuracies for figures in views.values() for test in figures or ()}
    return [test for test in TESTS if test in found] or [*TESTS[:2]]


def plain(text: str) -> str:
    """Return text in one line, without invisible characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def to_markdown(table: Table) -> str:
    """Return it as GitHub's Markdown."""

    def cell(text: str) -> str:
        # A bar ends a cell in code, too.
        return _markdown(text, bar=r"\|")

    marks = ["---:" if table.is_right(column) else "---" for column in range(len(table.head))]
    rows = [map(cell, table.names()), marks, *table.cells(cell, "**{}**")]
    lines = [f"### {_markdown(table.title)}", "", *(f"| {' | '.join(row)} |" for row in rows)]
    notes = ["", *(f"- {_markdown(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*lines, *notes]) + "\n"


def _markdown(text: str, bar: str = "|") -> str:
    pieces = CODE.split(plain(text))
    return "`".join(p.replace("|", bar) if i % 2 else MARKDOWN.sub(r"\\\g<0>", p) for i, p in enumerate(pieces))


def to_latex(table: Table) -> str:
    """Return it as a LaTeX table, which needs `booktabs` and `graphicx`; a wide one is scaled to the line."""
    columns = "".join("r" if table.is_right(column) else "l" for column in range(len(table.head)))
    notes = "".join(f"\n{_latex(note)}\\par" for note in table.notes)
    over = [rf"\multicolumn{{{len(span)}}}{{c}}{{{_latex(group)}}}" for group, span in table.spans()]
    rules = [rf"\cmidrule(lr){{{span.start + 1}-{span.stop}}}" for group, span in table.spans() if group]
    rows = [list(map(_latex, table.head)), *table.cells(_latex, r"\textbf{{{}}}")]
    head, *body = [rf"{' & '.join(row)} \\" for row in rows]
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(table.title)}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *([rf"{' & '.join(over)} \\", " ".join(rules)] if rules else []),
        *(head, r"\midrule", *body, r"\bottomrule"),
        r"\end{tabular}}",
        *([rf"\par\smallskip{{\footnotesize\raggedright{notes}}}"] if notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex(text: str) -> str:
    """Escape text; two strokes are no dash, and a stroke before a number is a minus."""
    pieces = ["".join(LATEX.get(c, c) for c in piece) for piece in CODE.split(plain(text))]
    pieces = [re.sub("-(?=-)", "-{}", re.sub(r"^-(?=\d)", "$-$", piece)) for piece in pieces]
    return "".join(rf"\texttt{{{piece}}}" if i % 2 else piece for i, piece in enumerate(pieces))


def to_csv(table: Table) -> str:
    """Return its head and rows as comma-separated values."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([CODE.sub(r"\1", plain(cell)) for cell in row] for row in (table.names(), *table.rows))
    return file.getvalue()


def show(table: Table, console: Console) -> None:
    """Print it; where it is wider than the terminal, as several tables below each other."""
    groups = {span.start: group for group, span in table.spans()}
    # A group is over its first column only: its name is longer than numbers.
    heads = [f"{plain(groups.get(j, ''))}\n{plain(name)}".strip() for j, name in enumerate(table.head)]
    cells = [[plain(row[j]) for row in table.rows] for j in range(len(heads))]
    widths = [max(map(cell_len, [*head.split(), *column])) for head, column in zip(heads, cells, strict=True)]
    parts: list[RenderableType] = [Text(plain(table.title), style="table.title")]
    for columns in _blocks(table, widths, console.width):
        width = sum(widths[j] + 2 for j in columns)
        part = rich.table.Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, width=width)
        for j in columns:
            side: JustifyMethod = "right" if table.is_right(j) else "left"
            part.add_column(Text(heads[j]), width=widths[j], justify=side)
        for i in range(len(table.rows)):
            part.add_row(*(Text(cells[j][i], style="bold" if (i, j) in table.bold else "") for j in columns))
        parts.append(part)
    parts += [Text("\n".join(map(plain, table.notes)), style="table.caption")] if table.notes else []
    found = Group(*parts)
    # A line that wraps is better than a number that is cut.
    width = max(console.width, console.measure(found).minimum)
    console.print(found, highlight=False, width=width, crop=False)


def _blocks(table: Table, widths: Sequence[int], most: int) -> list[list[int]]:
    """Return the columns of each block: groups are not divided, and names of rows are in each block."""
    spans = table.spans()
    names = [] if spans[0][0] else [0]
    blocks = [names]
    for _, span in spans[len(names) :]:
        if sum(widths[j] + 2 for j in (*blocks[-1], *span)) > most and len(blocks[-1]) > len(names):
            blocks.append(names)
        blocks[-1] = [*blocks[-1], *span]
    return blocks
