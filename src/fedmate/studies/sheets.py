"""Tables of accuracies: ours beside the published figures, every view, and a ranking."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

from fedmate.report.sheets import Sheet
from fedmate.report.tables import VIEWS
from fedmate.studies.grid import TESTS, Column, Row
from fedmate.studies.outcome import Figure, Outcome

OVER_CLIENTS = "accuracy in percent, mean over clients; ± standard deviation between seeds, where there are several"
BOTH_TESTS = (
    "tests: all classes weigh alike in `balanced`, as in the client's training samples in `own`, where calibrated "
    "models are told so"
)


class Place(NamedTuple):
    """Somewhere in a grid, looked at in one view and with one test."""

    row: Row
    column: Column
    view: str
    test: str


class Group(NamedTuple):
    """Rows that are compared in a column.

    Attributes:
        outcome: with all that there is of them.
        fair: with the seeds that each of them has, for one deal may be easier than another.
        which: these seeds, in words.
        kind: what is put into names of files, if they are not all rows.
        whose: the same for titles.
    """

    outcome: Outcome
    fair: Outcome
    which: str
    kind: str
    whose: str

    @property
    def accuracy(self) -> str:
        """What the numbers are, for the notes of a table."""
        return f"accuracy in percent, mean over clients, {self.which}; ± standard error of the mean over seeds"


OWN_SEEDS = "on the seeds that each row has, for none is common to all"


def accuracy(outcome: Outcome) -> list[Sheet]:
    """Return ours beside the published figures, then for each column every view and both tests."""
    return [_published(outcome), *(_views(outcome, column) for column in outcome.columns)]


def ranking(outcome: Outcome) -> list[Sheet]:
    """Return for each column who leads if all are looked at in the same view, with both tests."""
    return [_ranking(group, column) for column in outcome.columns for group in comparable(outcome, column)]


def spread(outcome: Outcome) -> list[Sheet]:
    """Return how uneven the clients of each column are, with its first seed."""
    rows = []
    for column in outcome.columns:
        kept = next((kept for row in outcome.rows for kept in outcome.kept(row, column)), None)
        counts = [] if kept is None else [client for client in kept.content["holdings"] if sum(client)]
        if counts:
            samples, held = [sum(client) for client in counts], [sum(map(bool, client)) for client in counts]
            largest = [100 * max(client) / sum(client) for client in counts]
            nobody = sum(not any(client[k] for client in counts) for k in range(len(counts[0])))
            cells = [_span(samples, "d"), _span(held, "d"), _span(largest, ".1f"), str(nobody)]
            rows.append([label(column), str(len(counts)), *cells])
    head = ["setting", "clients", "samples each", "classes each", "largest class in %", "classes nobody holds"]
    return [dressed(outcome, Sheet("spread", "who holds what", head, rows, ["each: from the fewest to the most"]))]


def _span(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


def dressed(outcome: Outcome, sheet: Sheet) -> Sheet:
    """Return a sheet with what everyone must know: what it belongs to, where that is from, and what to beware of."""
    grid, wanted = outcome.grid, outcome.wanted
    title = f"{grid.title}; {sheet.title}" if sheet.title else grid.title
    title += ", tuned settings" if wanted.settings == "tuned" else ""
    title += " (--quick)" if wanted.quick else ""
    return replace(sheet, title=title, notes=[*sheet.notes, *published(outcome), *outcome.notes()])


def published(outcome: Outcome) -> list[str]:
    """Say where a table or figure was published, if it was."""
    return [f"published in: {outcome.grid.source}"] if outcome.grid.source else []


def distinct(outcome: Outcome, column: Column) -> list[tuple[str, list[Row]]]:
    """Return the rows of a column by name; those that are the same runs, in other views, are one."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in outcome.rows:
        alike.setdefault(tuple(outcome.names(row, column)), []).append(row)
    return [(" / ".join(row.name for row in rows), rows) for names, rows in alike.items() if names]


def comparable(outcome: Outcome, column: Column) -> list[Group]:
    """Return who can be compared in a column: all rows, on the seeds that they have in common.

    Where some have more of them, these once more among themselves: with standard errors.
    """
    groups, some = [_group(outcome, column)], outcome.with_all_seeds(column)
    if len(outcome.common_seeds(column)) < outcome.wanted.seeds and len(distinct(some, column)) > 1:
        groups.append(_group(some, column, "_seeds", " of those with every seed"))
    return groups


def _group(outcome: Outcome, column: Column, kind: str = "", whose: str = "") -> Group:
    seeds = outcome.common_seeds(column)
    if not seeds:
        return Group(outcome, outcome, OWN_SEEDS, kind, whose)
    fair = outcome.on_seeds(seeds)
    diverged = any(kept.diverged_in is not None for row in fair.rows for kept in fair.kept(row, column))
    who = "which all rows have" + " but those that diverged" * diverged
    which = f"on seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, {who}"
    return Group(outcome, fair, which, kind, whose)


def label(column: Column) -> str:
    """Return a column's name, and what it was run with instead if that is something else."""
    return column.name if column.stands_in_for is None else f"{column.name} (run with {column.data})"


def name_for(kind: str, column: Column) -> str:
    """Return what the files of a column's sheet are called."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{kind}_{column.key}")


def text(figure: Figure) -> str:
    """Write a number over seeds."""
    return f"{figure.mean:.2f}" if figure.std is None else f"{figure.mean:.2f} ± {figure.std:.2f}"


# -------------------- beside the published figures


def _published(outcome: Outcome) -> Sheet:
    head, groups = ["method", "view"], ["", ""]
    rows = [[row.name, f"`{row.view}`"] for row in outcome.rows]
    bold: set[tuple[int, int]] = set()
    for column in outcome.columns:
        places = [Place(row, column, row.view, column.test) for row in outcome.rows]
        bold |= {(i, len(head) + _has_paper(outcome, column)) for i in _best(outcome, places)}
        for name, cells in _block(outcome, places).items():
            head, groups = [*head, name], [*groups, label(column)]
            rows = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
    whose = "the published row" if outcome.grid.source else "the row"
    stands_out = "bold: the largest of a column, among the rows with most seeds"
    notes = [OVER_CLIENTS, f"ours: in the view of {whose}; {stands_out}", *_tests(outcome)]
    return dressed(outcome, Sheet("accuracy", "", head, rows, notes, frozenset(bold), groups))


def _block(outcome: Outcome, places: Sequence[Place]) -> dict[str, list[str]]:
    """Return the parts of a column of the grid: what there is of the paper's figure, ours and the difference."""
    column = places[0].column
    block = {"ours": [cell_text(outcome, place) for place in places]}
    if _has_paper(outcome, column):
        paper = [place.row.paper.get(column.key) for place in places]
        name = "paper" if column.stands_in_for is None else f"paper ({column.stands_in_for})"
        block = {name: ["" if figure is None else f"{figure:.2f}" for figure in paper], **block}
        if _comparable(outcome, column):
            differences = [difference(outcome, place) for place in places]
            block["difference"] = ["" if difference is None else f"{difference:+.2f}" for difference in differences]
    return block


def _has_paper(outcome: Outcome, column: Column) -> bool:
    return any(column.key in row.paper for row in outcome.rows)


def _comparable(outcome: Outcome, column: Column) -> bool:
    """Tell whether ours were run as the published figures were: at length, with the same data."""
    return column.stands_in_for is None and not outcome.wanted.quick


def difference(outcome: Outcome, place: Place) -> float | None:
    """Return ours, as it is shown, less the paper's figure, where the two may be compared."""
    row, column, view, test = place
    figure, paper = outcome.figure(row, column, view, test), row.paper.get(column.key)
    if figure is None or paper is None or not _comparable(outcome, column):
        return None
    # There is no negative nothing.
    return round(round(figure.mean, 2) - paper, 2) + 0.0


def _best(outcome: Outcome, places: Sequence[Place]) -> list[int]:
    """Return which of some places have the largest figure, as it is shown.

    One deal may be easier than another, so that a few seeds are not held against many.
    """
    found = {i: figure for i, place in enumerate(places) if (figure := outcome.figure(*place)) is not None}
    most = max((figure.seeds for figure in found.values()), default=0)
    means = {i: round(figure.mean, 2) for i, figure in found.items() if figure.seeds == most}
    return [i for i, mean in means.items() if mean == max(means.values())]


def _tests(outcome: Outcome) -> list[str]:
    """Say which tests the figures are of."""
    by_test = {test: [column.name for column in outcome.columns if column.test == test] for test in TESTS}
    used = {test: names for test, names in by_test.items() if names}
    if len(used) == 1:
        return [f"test: `{test}`" for test in used]
    return [f"test: `{test}` in {'; '.join(names)}" for test, names in used.items()]


def cell_text(outcome: Outcome, place: Place) -> str:
    """Write a figure, and how many runs it is without; `diverged` if that is all of them.

    A stroke is for a view that the method lacks, and nothing for what is not run.
    """
    figure, kept = outcome.figure(*place), outcome.kept(place.row, place.column)
    diverged = sum(one.diverged_in is not None for one in kept)
    if figure is None:
        return "" if not kept else "diverged" if diverged == len(kept) else "-"
    return f"{text(figure)} ({diverged} of {len(kept)} diverged)" if diverged else text(figure)


# -------------------- every view


def _views(outcome: Outcome, column: Column) -> Sheet:
    entries = distinct(outcome, column)
    known = dict.fromkeys(view for _, rows in entries for view in views_of(outcome, rows[0], column))
    further = sorted(set(known) - set(VIEWS))
    looks = [(view, test) for test in TESTS for view in VIEWS] + [(view, test) for view in further for test in TESTS]
    head = ["method", *(f"`{test}`" if view in further else f"`{view}`" for view, test in looks)]
    groups = ["", *(f"`{view}`" if view in further else f"`{test}`" for view, test in looks)]
    cells = [
        [name, *(cell_text(outcome, Place(rows[0], column, view, test)) for view, test in looks)]
        for name, rows in entries
    ]
    bold = {
        (i, 1 + looks.index((row.view, column.test)))
        for i, (_, rows) in enumerate(entries)
        for row in rows
        if (row.view, column.test) in looks
    }
    whose = "of the published row" if _has_paper(outcome, column) else "that are compared"
    notes = [OVER_CLIENTS, BOTH_TESTS, f"bold: the view and test {whose}; -: no such view"]
    sheet = Sheet(
        name_for("views", column), f"every view, {label(column)}", head, cells, notes, frozenset(bold), groups
    )
    return dressed(outcome, sheet)


def views_of(outcome: Outcome, row: Row, column: Column) -> list[str]:
    """Return the views that a row has, that of its published figures in any case."""
    found = dict.fromkeys(view for kept in outcome.kept(row, column) for view in kept.views)
    return [*found, *({row.view} - found.keys())]


# -------------------- who leads


def _ranking(group: Group, column: Column) -> Sheet:
    outcome, fair = group.outcome, group.fair
    blocks = [[*_ranked(_entries(fair, column, test))] for test in TESTS]
    rows = [[*left, *right] for left, right in zip_longest(*blocks, fillvalue=["", "", ""])]
    notes = [
        "everybody in the view `pre`: what a client holds after a broadcast, before it trains",
        "(global): the aggregated model, where it is not what clients hold in `pre`",
        BOTH_TESTS,
        group.accuracy,
    ]
    head, groups = ["place", "method", "accuracy"] * 2, [f"`{test}`" for test in TESTS for _ in range(3)]
    name, title = name_for(f"ranking{group.kind}", column), f"ranking{group.whose}, {label(column)}"
    sheet = Sheet(name, title, head, rows, notes, frozenset(), groups)
    return dressed(outcome, sheet)


def _entries(outcome: Outcome, column: Column, test: str) -> Iterator[tuple[str, Figure | None]]:
    """Yield who is ranked, with its figure; `None` for those that diverged."""
    for name, (row, *_) in distinct(outcome, column):
        held, aggregated = ({t: outcome.figure(row, column, view, t) for t in TESTS} for view in ("pre", "global"))
        if held[test] is not None or cell_text(outcome, Place(row, column, "pre", test)) == "diverged":
            yield name, held[test]
        if aggregated[test] is not None and aggregated != held:
            yield f"{name} (global)", aggregated[test]


def _ranked(entries: Iterator[tuple[str, Figure | None]]) -> Iterator[list[str]]:
    """Yield place, name and figure, the largest first; equal ones share a place, and who diverged has none."""
    everyone = list(entries)
    found = sorted(((round(f.mean, 2), name, f) for name, f in everyone if f is not None), key=lambda one: -one[0])
    for mean, name, figure in found:
        error = "" if figure.standard_error is None else f" ± {figure.standard_error:.2f}"
        seeds = f"{figure.seeds} seed{'s' if figure.seeds > 1 else ''}"
        yield [str(1 + sum(other > mean for other, _, _ in found)), name, f"{mean:.2f}{error} ({seeds})"]
    yield from (["", name, "diverged"] for name, figure in everyone if figure is None)
