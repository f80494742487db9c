"""Which data set a column is run with: its own if that is at hand, otherwise one that stands in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedmate.core.options import options_of
from fedmate.data import DATASETS
from fedmate.data.files import FileDataset
from fedmate.data.paths import data_folder
from fedmate.errors import UserError
from fedmate.experiment.config import Values
from fedmate.studies.grid import Column, Grid, Wanted
from fedmate.studies.store import Store


def with_data(grid: Grid, wanted: Wanted, folder: Path | None) -> tuple[Grid, list[str]]:
    """Return a grid with data sets that are at hand, and sentences about those that are not."""
    grid, place = grid.meant(wanted), data_folder(folder)
    chosen = _choose(grid, wanted, lambda column: missing(column.dataset, place) is None)
    notes = []
    for column in grid.columns:
        found = next((one for one in chosen if one.key == column.key), None)
        if found is None:
            notes.append(f"`{column.key}` is left out: {missing(column.dataset, place)}")
        elif found.stands_in_for is not None:
            notes.append(f"`{found.data}` stands in for `{found.stands_in_for}`, which is not at hand.")
    return _with(grid, chosen), list(dict.fromkeys(notes))


def with_records(grid: Grid, wanted: Wanted, store: Store) -> Grid:
    """Return a grid with the data sets of which finished cells are there; nothing else is looked at."""
    grid = grid.meant(wanted)

    def has_cells(column: Column) -> bool:
        cells = replace(grid, columns=(column,)).cells(wanted._replace(patterns=()))
        return any(store.has(cell.name) for cell in cells)

    return _with(grid, _choose(grid, wanted, has_cells))


def _with(grid: Grid, chosen: list[Column]) -> Grid:
    keys = [column.key for column in chosen]
    left_out = tuple(column.name for column in grid.columns if column.key not in keys)
    return replace(grid, columns=tuple(chosen), left_out=left_out)


def missing(values: Values, folder: Path) -> str | None:
    """Say why a data set cannot be used, if it cannot."""
    cls = DATASETS[str(values["name"])]
    dataset = cls(**{key: value for key, value in values.items() if key in options_of(cls)})
    if not isinstance(dataset, FileDataset):
        return None
    try:
        dataset.load(folder)
    except (UserError, OSError) as error:
        return str(error)
    return None


def _choose(grid: Grid, wanted: Wanted, usable: Callable[[Column], bool]) -> list[Column]:
    """Return the first candidate of each column that is usable, where there is one."""
    found = (next(filter(usable, column.candidates(quick=wanted.quick)), None) for column in grid.columns)
    return [column for column in found if column is not None]
