"""What a change is worth: each row of an ablation less the row that it changes, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedmate.report.sheets import Sheet
from fedmate.studies.grid import TESTS, Column, Row
from fedmate.studies.outcome import Figure, Outcome, over_seeds
from fedmate.studies.sheets import BOTH_TESTS, Place, cell_text, dressed, label, name_for

HEAD = ("method", "view", *TESTS, "seeds")
PAIRED = (
    "differences in points: a seed deals the same samples to both rows, so each seed gives one; -: no seed does; "
    "± standard error of the mean, where there are several seeds"
)


class Deal(NamedTuple):
    """A seed, and the digest of what it dealt: rows may differ in who holds what, and are not compared then."""

    seed: int
    partition: str


def differences(outcome: Outcome) -> list[Sheet]:
    """Return for each column what every row is above the grid's `reference`, which comes first, as it is.

    `Outcome.notes` names the columns that lack it.
    """
    reference = next((row for row in outcome.rows if row.key == outcome.grid.reference), None)
    if reference is None:
        return []
    return [_sheet(outcome, column, reference) for column in outcome.columns if outcome.names(reference, column)]


def _sheet(outcome: Outcome, column: Column, reference: Row) -> Sheet:
    own = [outcome.figure(reference, column, reference.view, test) for test in TESTS]
    rows = [_cells(outcome, column, reference, own)]
    for row in outcome.rows:
        if row.key != reference.key and outcome.names(row, column):
            found = [over_seeds(_paired(outcome, column, (row, reference), test)) for test in TESTS]
            rows.append(_cells(outcome, column, row, found, sign="+"))
    title = f"what changes do, {label(column)}: each row less {reference.name}"
    notes = [PAIRED, f"first row: accuracy of {reference.name} in percent, mean over clients", BOTH_TESTS]
    return dressed(outcome, Sheet(name_for("differences", column), title, HEAD, rows, notes, frozenset({(0, 0)})))


def _cells(
    outcome: Outcome, column: Column, row: Row, figures: Sequence[Figure | None], *, sign: str = ""
) -> list[str]:
    texts = [
        _missing(outcome, Place(row, column, row.view, test)) if figure is None else _text(figure, sign)
        for test, figure in zip(TESTS, figures, strict=True)
    ]
    seeds = next((str(figure.seeds) for figure in figures if figure is not None), "")
    return [row.name, f"`{row.view}`", *texts, seeds]


def _paired(outcome: Outcome, column: Column, rows: tuple[Row, Row], test: str) -> list[float]:
    """Return how much the first row is above the second, for each deal that both have."""
    changed, reference = (_by_deal(outcome, column, row, test) for row in rows)
    return [value - reference[deal] for deal, value in changed.items() if deal in reference]


def _by_deal(outcome: Outcome, column: Column, row: Row, test: str) -> dict[Deal, float]:
    found = {
        Deal(kept.config["seed"], kept.summary["partition_sha256"]): kept.accuracy(row.view, test)
        for kept in outcome.kept(row, column)
    }
    return {deal: value for deal, value in found.items() if value is not None}


def _missing(outcome: Outcome, place: Place) -> str:
    """Say why there is no number: it diverged, is not run, or has nothing to be subtracted from."""
    return "-" if outcome.figure(*place) is not None else cell_text(outcome, place)


def _text(figure: Figure, sign: str) -> str:
    error = "" if figure.standard_error is None else f" ± {figure.standard_error:.2f}"
    # There is no negative nothing.
    return f"{round(figure.mean, 2) + 0.0:{sign}.2f}{error}"
