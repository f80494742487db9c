"""All figures of an experiment in long form, one to a line, for machines."""

from __future__ import annotations

from fedmate.report.sheets import Sheet
from fedmate.studies.grid import TESTS
from fedmate.studies.outcome import Outcome
from fedmate.studies.sheets import Place, difference, dressed, views_of

FIGURES = (
    *("experiment", "settings", "quick", "column", "stands_in_for", "row", "method", "view", "test", "published_view"),
    *("mean", "std", "seeds", "paper", "difference", "diverged", "partition_sha256"),
)
"""The columns of the table for machines."""


def figures(outcome: Outcome) -> Sheet:
    """Return all accuracies, one to a row, for machines."""
    rows = [
        _line(outcome, Place(row, column, view, test))
        for column in outcome.columns
        for row in outcome.rows
        if outcome.names(row, column)
        for view in views_of(outcome, row, column)
        for test in TESTS
    ]
    return dressed(outcome, Sheet("figures", "all figures", FIGURES, rows))


def _line(outcome: Outcome, place: Place) -> list[str]:
    row, column, view, test = place
    kept, figure = outcome.kept(row, column), outcome.figure(*place)
    published = view == row.view and test == column.test
    paper = row.paper.get(column.key) if published else None
    above = difference(outcome, place) if published else None
    return [
        outcome.grid.name,
        outcome.wanted.settings,
        _yes(outcome.wanted.quick),
        column.key,
        column.stands_in_for or "",
        row.key,
        str(row.values.get("method", {}).get("name", "")),
        view,
        test,
        _yes(published),
        _decimals(figure and figure.mean),
        _decimals(figure and figure.std),
        str(figure.seeds if figure else 0),
        _decimals(paper),
        _decimals(above),
        str(sum(one.diverged_in is not None for one in kept)),
        " ".join(dict.fromkeys(one.summary["partition_sha256"] for one in kept)),
    ]


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"


def _decimals(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"
