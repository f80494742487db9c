"""What came of a grid: its finished cells, and figures over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

from torch import Tensor

from fedmate.studies.grid import Cell, Column, Grid, Row, Wanted, no_view
from fedmate.studies.kept import Kept
from fedmate.studies.measures import MEASURES
from fedmate.studies.store import Store

UNTUNED = "left out, for `fedmate tune` has not been there"
VALIDATED = "not the test split, but training samples that no client holds (`evaluate_on` is `validation`)"
OTHER_VERSION = "some cells were run with another version of their method's file, or before that was recorded"


class Figure(NamedTuple):
    """A number over seeds.

    Attributes:
        std: the standard deviation between seeds; `None` for one seed.
    """

    mean: float
    std: float | None
    seeds: int

    @property
    def standard_error(self) -> float | None:
        """How far the mean may be off."""
        return None if self.std is None else self.std / math.sqrt(self.seeds)


@final
@dataclass(frozen=True)
class Outcome:
    """A grid with the cells that are finished.

    Attributes:
        cells: those that were meant, finished or not.
        found: what is kept of the finished ones, by name.
        arrays: their arrays, by name.
    """

    grid: Grid
    wanted: Wanted
    cells: Sequence[Cell]
    found: Mapping[str, Kept]
    arrays: Mapping[str, Mapping[str, Tensor]]

    @classmethod
    def of(cls, grid: Grid, wanted: Wanted, store: Store) -> Outcome:
        """Look for the cells of a grid."""
        cells = grid.cells(wanted)
        names = dict.fromkeys(cell.name for cell in cells)
        found = {name: kept for name in names if (kept := store.find(name)) is not None}
        # Who asks for none is not to be bothered by damaged ones.
        asked = found if grid.measures else {}
        arrays = {name: held for name in asked if (held := store.arrays(name)) is not None}
        return cls(grid, wanted, cells, found, arrays)

    @property
    def columns(self) -> list[Column]:
        """The columns that have a cell."""
        wanted = {cell.column.key for cell in self.cells}
        return [column for column in self.grid.columns if column.key in wanted]

    @property
    def rows(self) -> list[Row]:
        """The rows that have a cell."""
        wanted = {cell.row.key for cell in self.cells}
        return [row for row in self.grid.rows if row.key in wanted]

    def kept(self, row: Row, column: Column) -> list[Kept]:
        """Return the finished cells of a place in the grid, a seed each."""
        return [self.found[name] for name in self.names(row, column) if name in self.found]

    def names(self, row: Row, column: Column) -> list[str]:
        """Return the names of the cells of a place in the grid, finished or not, a seed each."""
        return [cell.name for cell in self.cells if (cell.row.key, cell.column.key) == (row.key, column.key)]

    def figure(self, row: Row, column: Column, view: str, test: str) -> Figure | None:
        """Return the accuracy in a view, in percent, over the seeds that are finished and did not diverge."""
        values = [kept.accuracy(view, test) for kept in self.kept(row, column)]
        return over_seeds([value for value in values if value is not None])

    def notes(self) -> list[str]:
        """Say what a reader must know before comparing figures."""
        notes = []
        if self.wanted.quick and self.grid.trains:
            rounds = sorted({kept.config["rounds"] for kept in self.found.values()})
            length = f" ({', '.join(map(str, rounds))} rounds)" if rounds else ""
            notes.append(f"--quick: cut short{length}, no figures to compare by")
        for column in self.columns:
            if column.stands_in_for is not None:
                notes.append(f"{column.name}: {column.data} stands in for {column.stands_in_for}")
        if self.grid.left_out:
            notes.append(f"left out, for there is nothing of them: {'; '.join(self.grid.left_out)}")
        cells = (self._validated, self._untuned, self._unfinished, self._unmeasured, self._diverged)
        for say in (*cells, self._unlike, self._unreferenced):
            notes += say()
        return notes + self._unknown_views() + self.versions()

    def versions(self) -> list[str]:
        """Say which methods' files may have been others when some of the cells were run."""
        named = ", ".join(f"`{name}`" for name in self.outdated())
        return [f"{OTHER_VERSION}: {named}"] if named else []

    def outdated(self) -> list[str]:
        """Return these methods."""
        cells = [cell for cell in self.cells if cell.trains and cell.name in self.found]
        names = {cell.experiment.method.name for cell in cells if self.found[cell.name].is_outdated is not False}
        return sorted(names)

    def common_seeds(self, column: Column) -> list[int]:
        """Return the seeds of a column that all of its rows were run with, but for rows that diverged with one of them.

        Without those there may be more seeds, and others that diverged with these.
        """
        seeds: dict[str, set[int]] = {}
        failed: dict[str, set[int]] = {}
        for cell in self.cells:
            kept = self.found.get(cell.name)
            if cell.column.key == column.key and kept is not None:
                seeds.setdefault(cell.row.key, set()).add(cell.seed)
                failed.setdefault(cell.row.key, set()).update({cell.seed} if kept.diverged_in is not None else ())
        rows = [key for key in seeds if failed[key] < seeds[key]]
        while rows:
            common = set.intersection(*(seeds[key] for key in rows))
            held = [key for key in rows if not failed[key] & common]
            if held == rows:
                return sorted(common)
            rows = held
        return []

    def with_all_seeds(self, column: Column) -> Outcome:
        """Return the rows of a column that have every seed that was asked for, and did not diverge with any."""
        kept = {cell.name: self.found.get(cell.name) for cell in self.cells if cell.column.key == column.key}
        lacking = {
            cell.row.key
            for cell in self.cells
            if cell.name in kept and ((one := kept[cell.name]) is None or one.diverged_in is not None)
        }
        cells = [cell for cell in self.cells if cell.name in kept and cell.row.key not in lacking]
        return replace(self, cells=cells)

    def on_seeds(self, seeds: Sequence[int]) -> Outcome:
        """Return the outcome with some seeds only; who diverged with one of them has no others there.

        Its mean would be over fewer, and without it nobody else need do with fewer.
        """
        cells = [cell for cell in self.cells if cell.seed in seeds]
        failed = [cell for cell in cells if (kept := self.found.get(cell.name)) and kept.diverged_in is not None]
        places = {(cell.column.key, cell.row.key) for cell in failed}
        held = [cell for cell in cells if cell in failed or (cell.column.key, cell.row.key) not in places]
        return replace(self, cells=held)

    def validated(self) -> list[Cell]:
        """Return the cells that are asked validation samples, not the test split."""
        return [cell for cell in self.cells if cell.trains and cell.experiment.general.evaluate_on == "validation"]

    def _validated(self) -> list[str]:
        """Say so, and of which rows if not of all."""
        rows: dict[str, dict[str, None]] = {}
        for cell in (asked := self.validated()):
            rows.setdefault(cell.row.name, {})[cell.column.name] = None
        places = "; ".join(self._places({row: [*columns] for row, columns in rows.items()}))
        return [VALIDATED if len(asked) == len(self.cells) else f"{VALIDATED}: {places}"] if asked else []

    def _untuned(self) -> list[str]:
        """Name the rows that nobody has tuned, and the columns where it is not in all of them."""
        rows: dict[str, list[str]] = {}
        for column, row in self.grid.untuned(self.wanted):
            rows.setdefault(row.name, []).append(column.name)
        return [f"{UNTUNED}: {'; '.join(self._places(rows))}"] if rows else []

    def _unfinished(self) -> list[str]:
        """Name the rows that are missing, and the columns where it is not in all of them, by seeds."""
        missing: dict[tuple[str, str], list[int]] = {}
        for cell in self.cells:
            if cell.name not in self.found:
                missing.setdefault((cell.row.name, cell.column.name), []).append(cell.seed)
        by_seeds: dict[str, dict[str, list[str]]] = {}
        for (row, column), seeds in missing.items():
            by_seeds.setdefault(_seeds(seeds), {}).setdefault(row, []).append(column)
        return [f"not run, {seeds}: {'; '.join(self._places(rows))}" for seeds, rows in by_seeds.items()]

    def _places(self, rows: Mapping[str, Sequence[str]]) -> Iterator[str]:
        """Say which rows are meant, all columns of one kind together."""
        by_columns: dict[tuple[str, ...], list[str]] = {}
        for row, columns in rows.items():
            by_columns.setdefault(tuple(columns), []).append(row)
        for columns, names in by_columns.items():
            which = "all rows" if len(names) > 1 and {*names} == {row.name for row in self.rows} else listed(names)
            where = "" if {column.name for column in self.columns} <= {*columns} else f" ({'; '.join(columns)})"
            yield f"{which}{where}"

    def _unmeasured(self) -> list[str]:
        """Name the rows whose cells lack what the grid asks of them besides figures."""
        notes = []
        for measure in self.grid.measures:
            rows: dict[str, dict[str, None]] = {}
            for cell in self.cells:
                kept = self.found.get(cell.name)
                lost = MEASURES[measure].arrays is not None and cell.name not in self.arrays
                if kept is not None and (lost or measure not in kept.measures):
                    rows.setdefault(cell.row.name, {})[cell.column.name] = None
            found = {row: [*columns] for row, columns in rows.items()}
            notes += [f"without `{measure}`, which is not there: {'; '.join(self._places(found))}"] if rows else []
        return notes

    def _diverged(self) -> list[str]:
        found = [(cell, self.found[cell.name].diverged_in) for cell in self.cells if cell.name in self.found]
        return [
            f"{cell.key}, seed {cell.seed}: diverged in round {number}" for cell, number in found if number is not None
        ]

    def _unreferenced(self) -> list[str]:
        """Name the columns in which nothing can be subtracted, for the row of reference is not among the cells."""
        row = next((row for row in self.grid.rows if row.key == self.grid.reference), None)
        if row is None or "differences" not in self.grid.shows:
            return []
        lacking = [column.name for column in self.columns if not self.names(row, column)]
        where = "" if len(lacking) == len(self.columns) else f" ({'; '.join(lacking)})"
        return [f"no differences: {row.name}, the `reference`, is not among the cells{where}"] if lacking else []

    def _unknown_views(self) -> list[str]:
        """Name the rows whose view no run of theirs has, as a misspelt one."""
        notes = []
        for row in self.rows:
            runs = [kept for column in self.columns for kept in self.kept(row, column) if kept.diverged_in is None]
            views = list(dict.fromkeys(view for kept in runs for view in kept.views))
            if views and row.view not in views:
                notes.append(no_view(row, views))
        return notes

    def _unlike(self) -> list[str]:
        """Name the columns whose cells were not dealt from the same samples, which no comparison survives."""
        dealt: dict[tuple[str, int], set[str]] = {}
        data: dict[str, set[str]] = {}
        for cell in self.cells:
            kept = self.found.get(cell.name)
            if kept is not None:
                dealt.setdefault((cell.column.key, cell.seed), set()).add(kept.summary["partition_sha256"])
                data.setdefault(cell.column.key, set()).add(kept.content.get("data_sha256", ""))
        unlike = [key for key, found in dealt.items() if len(found) > 1]
        notes = [f"{column}, seed {seed}: the rows were dealt different samples" for column, seed in unlike]
        return notes + [f"{key}: the cells have different data" for key, found in data.items() if len(found - {""}) > 1]


def listed(names: Iterable[str]) -> str:
    """Return names with commas between, and marks around those that hold one themselves."""
    return ", ".join(f"`{name}`" if "," in name else name for name in names)


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def over_seeds(values: Sequence[float]) -> Figure | None:
    """Return mean and standard deviation, if there is a value."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Figure(statistics.fmean(values), std, len(values))
