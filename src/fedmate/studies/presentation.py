"""What is made of the cells of a grid: the tables and pictures that its file names in `shows`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fedmate.errors import UserError, nearest
from fedmate.report.figures import Picture
from fedmate.report.sheets import Sheet
from fedmate.studies.differences import differences
from fedmate.studies.effort import cost, time_to_accuracy
from fedmate.studies.grid import Grid
from fedmate.studies.harmony import harmony
from fedmate.studies.measures import MEASURES
from fedmate.studies.outcome import Outcome
from fedmate.studies.pictures import classwise, curves, holdings, line, losses, prototypes
from fedmate.studies.sheets import accuracy, ranking, spread

Shown: TypeAlias = Sequence[Sheet | Picture]

SHOWS: dict[str, Callable[[Outcome], Shown]] = {
    "accuracy": accuracy,
    "classwise": classwise,
    "cost": cost,
    "curves": curves,
    "differences": differences,
    "harmony": harmony,
    "holdings": lambda outcome: [*spread(outcome), *holdings(outcome)],
    "line": line,
    "losses": losses,
    "prototypes": prototypes,
    "ranking": ranking,
    "time": time_to_accuracy,
}
"""By the name that a file calls it."""

DRAWN = frozenset({"classwise", "curves", "harmony", "holdings", "line", "losses", "prototypes"})
"""Those that are pictures, too."""


def check_shows(grid: Grid) -> None:
    """Raise `UserError` if a grid's file names something that nobody can show or measure."""
    for key, names, known in (("shows", grid.shows, SHOWS), ("measures", grid.measures, MEASURES)):
        for name in names:
            if name not in known:
                raise UserError(f"`{grid.name}` has `{name}` in `{key}`, which does not exist; {nearest(name, known)}")
    if "differences" in grid.shows and not grid.reference:
        raise UserError(
            f"`{grid.name}` has `differences` in `shows`, but does not say from which row; write `reference = KEY` "
            "above its first table."
        )
