"""Both tests at once: who does well on all classes and on a client's own, and whom no other row surpasses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fedmate.report.figures import Picture
from fedmate.report.sheets import Sheet
from fedmate.report.tradeoffs import Plane, Spot, Tradeoff
from fedmate.studies.grid import Column, Row
from fedmate.studies.outcome import Figure, Outcome, listed, over_seeds
from fedmate.studies.pictures import run_with, title_of
from fedmate.studies.sheets import BOTH_TESTS, Group, comparable, dressed, label, name_for

HEAD = ("method", "view", "balanced", "own", "seeds", "front")
ON_FRONT = "front: no other row is better on one test and at least as good on the other"


class Standing(NamedTuple):
    """How a row does on both tests, over the same seeds."""

    row: Row
    balanced: Figure
    own: Figure

    @property
    def point(self) -> tuple[float, float]:
        """Both numbers as they are shown, which is how rows are compared."""
        return round(self.balanced.mean, 2), round(self.own.mean, 2)


def harmony(outcome: Outcome) -> list[Sheet | Picture]:
    """Return for each column both accuracies of every row in its view: a table, and a picture if there is something."""
    return [
        shown for column in outcome.columns for group in comparable(outcome, column) for shown in _shown(group, column)
    ]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return which points no other is larger than in one number and at least as large in the other."""
    return [i for i, (x, y) in enumerate(points) if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)]


def _shown(group: Group, column: Column) -> Iterator[Sheet | Picture]:
    outcome = group.outcome
    standings = [found for row in outcome.rows if (found := _standing(group.fair, row, column)) is not None]
    front = pareto_front([standing.point for standing in standings])
    rows = [_cells(standing, i in front) for i, standing in enumerate(standings)]
    notes = [
        BOTH_TESTS,
        group.accuracy,
        ON_FRONT,
        *_missing(outcome, column, [standing.row.key for standing in standings]),
    ]
    title = f"balanced and own accuracy{group.whose}, {label(column)}"
    yield dressed(outcome, Sheet(name_for(f"front{group.kind}", column), title, HEAD, rows, notes))
    if standings:
        yield _picture(group, column, standings, front)


def _standing(outcome: Outcome, row: Row, column: Column) -> Standing | None:
    """Return how a row does over the seeds that have both numbers, if there is one."""
    found = [
        (kept.accuracy(row.view, "balanced"), kept.accuracy(row.view, "own")) for kept in outcome.kept(row, column)
    ]
    both = [(balanced, own) for balanced, own in found if balanced is not None and own is not None]
    balanced, own = over_seeds([one for one, _ in both]), over_seeds([one for _, one in both])
    return None if balanced is None or own is None else Standing(row, balanced, own)


def _cells(standing: Standing, on_front: bool) -> list[str]:
    row, balanced, own = standing
    return [row.name, f"`{row.view}`", _text(balanced), _text(own), str(own.seeds), "yes" if on_front else "no"]


def _text(figure: Figure) -> str:
    error = "" if figure.standard_error is None else f" ± {figure.standard_error:.2f}"
    return f"{figure.mean:.2f}{error}"


def _missing(outcome: Outcome, column: Column, drawn: Sequence[str]) -> list[str]:
    """Name the rows that are neither in the table nor drawn, and say why."""
    why: dict[str, list[str]] = {}
    for row in outcome.rows:
        if row.key in drawn or not outcome.names(row, column):
            continue
        kept = outcome.kept(row, column)
        diverged = any(one.diverged_in is not None for one in kept)
        reason = "diverged" if diverged else f"without figures in the view `{row.view}`" if kept else "not run"
        why.setdefault(reason, []).append(row.name)
    return [f"left out, {reason}: {listed(names)}" for reason, names in why.items()]


def _picture(group: Group, column: Column, standings: Sequence[Standing], front: Sequence[int]) -> Picture:
    outcome = group.outcome
    alone = replace(outcome, cells=[cell for cell in outcome.cells if cell.column.key == column.key])
    seen = set[tuple[str, ...]]()
    spots = []
    for i, standing in enumerate(standings):
        names = tuple(outcome.names(standing.row, column))
        spots.append(_spot(outcome, standing, i in front)._replace(beneath=names in seen))
        seen.add(names)
    several = sorted({standing.own.seeds for standing in standings if standing.own.seeds > 1})
    return Tradeoff(
        name_for(f"harmony{group.kind}", column),
        title_of(alone, f"balanced and own accuracy{group.whose}"),
        Plane(run_with(column), spots),
        ("accuracy (%), balanced test", "accuracy (%), own test"),
        "Pareto front",
        f"± standard error over {' or '.join(map(str, several))} seeds" if several else "",
    )


def _spot(outcome: Outcome, standing: Standing, on_front: bool) -> Spot:
    """Return a row's point: it looks alike in all pictures of a grid, whichever of its cells were meant."""
    row, balanced, own = standing
    number = [one.key for one in outcome.grid.rows].index(row.key)
    view = f" ({row.view})" if len({one.view for one in outcome.rows}) > 1 else ""
    across, upward = balanced.standard_error, own.standard_error
    errors = None if across is None or upward is None else (across, upward)
    return Spot(row.name, f"{row.name}{view}", number, *standing.point, errors, on_front)
