"""What a change is worth: each row of an ablation less the row that it changes, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence

from fedmate.report.sheets import Sheet
from fedmate.reproduce.grid import TESTS, Column, Row
from fedmate.reproduce.outcome import Figure, Outcome, over_seeds
from fedmate.reproduce.sheets import BOTH_TESTS, dressed, label, name_for

HEAD = ("method", "view", *TESTS, "seeds")
PAIRED = (
    "differences in points: a seed deals the same samples to both rows, so each seed gives one; "
    "± standard error of their mean"
)


def differences(outcome: Outcome) -> list[Sheet]:
    """Return for each column what every row is above the grid's `reference`, which comes first, as it is."""
    reference = next((row for row in outcome.rows if row.key == outcome.grid.reference), None)
    return [] if reference is None else [_sheet(outcome, column, reference) for column in outcome.columns]


def _sheet(outcome: Outcome, column: Column, reference: Row) -> Sheet:
    own = [outcome.figure(reference, column, reference.view, test) for test in TESTS]
    rows = [_cells(reference, own, "")]
    for row in outcome.rows:
        if row.key != reference.key and outcome.names(row, column):
            found = [over_seeds(_paired(outcome, column, (row, reference), test)) for test in TESTS]
            rows.append(_cells(row, found, "+"))
    title = f"what changes do, {label(column)}: each row less {reference.name}"
    notes = [PAIRED, f"first row: accuracy of {reference.name} in percent, mean over clients", BOTH_TESTS]
    return dressed(outcome, Sheet(name_for("differences", column), title, HEAD, rows, notes, frozenset({(0, 0)})))


def _paired(outcome: Outcome, column: Column, rows: tuple[Row, Row], test: str) -> list[float]:
    """Return how much the first row is above the second, for each seed that both have."""
    changed, reference = (_by_seed(outcome, column, row, test) for row in rows)
    return [value - reference[seed] for seed, value in changed.items() if seed in reference]


def _by_seed(outcome: Outcome, column: Column, row: Row, test: str) -> dict[int, float]:
    found = {kept.config["seed"]: kept.accuracy(row.view, test) for kept in outcome.kept(row, column)}
    return {seed: value for seed, value in found.items() if value is not None}


def _cells(row: Row, figures: Sequence[Figure | None], sign: str) -> list[str]:
    seeds = next((str(figure.seeds) for figure in figures if figure is not None), "")
    return [row.name, f"`{row.view}`", *("" if one is None else _text(one, sign) for one in figures), seeds]


def _text(figure: Figure, sign: str) -> str:
    error = "" if figure.standard_error is None else f" ± {figure.standard_error:.2f}"
    # There is no negative nothing.
    return f"{round(figure.mean, 2) + 0.0:{sign}.2f}{error}"
