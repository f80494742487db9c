"""A table or figure of the paper: rows and columns, whose cells are runs; `reading` says how it is written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import NamedTuple, final

from fedmate.errors import UserError, closest
from fedmate.experiment.config import (
    DEFAULT_NAMES,
    ConfigSource,
    Experiment,
    Values,
    resolve,
)
from fedmate.experiment.tuned import TUNED, tuned_on
from fedmate.methods import METHODS
from fedmate.studies.kept import name_of

TESTS = ("balanced", "own")
SETTINGS = ("paper", TUNED)
"""Whose hyper-parameters: those of the paper's protocol, or the methods' presets `tuned`."""
DIGITS: Values = {"name": "digits"}
"""What stands in for everything under `--quick`: it comes with the package."""


@final
@dataclass(frozen=True)
class Column:
    """A setting in which every row is run.

    Attributes:
        stands_in_for: the name of the data set that is not at hand; `None` if its own is.
    """

    key: str
    name: str
    test: str
    values: Values
    stand_ins: tuple[Values, ...] = ()
    stands_in_for: str | None = None

    @property
    def dataset(self) -> Values:
        """What it says of its data set."""
        return dict(DIGITS | self.values.get("dataset", {}))

    @property
    def data(self) -> str:
        """Its data set in words: the name, and the options that it sets."""
        options = ", ".join(f"{key} = {value}" for key, value in self.dataset.items() if key != "name")
        return f"{self.dataset['name']} ({options})" if options else str(self.dataset["name"])

    def candidates(self, *, quick: bool) -> Iterator[Column]:
        """Yield the column itself, and with each data set that may stand in."""
        yield self
        for stand_in in (*self.stand_ins, *([DIGITS] if quick else [])):
            values, missing = {**self.values, "dataset": dict(stand_in)}, str(self.dataset["name"])
            # Digits have no test split of their own, and so no samples that nobody holds to validate on.
            values |= {"evaluate_on": "test"} if stand_in["name"] == DIGITS["name"] else {}
            yield replace(self, values=values, stands_in_for=missing)


@final
@dataclass(frozen=True)
class Row:
    """A method, or a variant of one."""

    key: str
    name: str
    view: str
    values: Values
    paper: Mapping[str, float]


def no_view(row: Row, views: Sequence[str]) -> str:
    """Say that the runs of a row lack its view, as a misspelt one."""
    return f"{row.name}: there is no view `{row.view}`; its runs have {', '.join(views)}"


class Wanted(NamedTuple):
    """Which cells of a grid are meant.

    Attributes:
        seeds: how many, from 0.
        settings: one of `SETTINGS`.
        quick: whether the runs are cut short.
        patterns: of `column/row`; all if there are none.
    """

    seeds: int = 1
    settings: str = "paper"
    quick: bool = False
    patterns: Sequence[str] = ()


@final
@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    row: Row
    column: Column
    seed: int
    experiment: Experiment
    trains: bool = True

    @property
    def key(self) -> str:
        """What `--cells` calls it."""
        return f"{self.column.key}/{self.row.key}"

    @property
    def label(self) -> str:
        """What it is called while it is run."""
        return f"{self.key}, seed {self.seed}" if self.seed else self.key

    @cached_property
    def name(self) -> str:
        """What its file is called."""
        # What was dealt only is not to be taken for a run.
        return name_of(self.experiment) if self.trains else f"dealt-{name_of(self.experiment)}"


@final
@dataclass(frozen=True)
class Grid:
    """A table or figure of the paper."""

    name: str
    title: str
    source: str
    shows: tuple[str, ...]
    measures: tuple[str, ...]
    trains: bool
    base: Values
    quick: Values
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()
    """The names of columns for which nothing is at hand."""
    reference: str = ""
    """The key of the row that others are changes of; empty if there is none."""

    def cells(self, wanted: Wanted) -> list[Cell]:
        """Return the cells that are meant, row by row within a column, the first seed of all before the second."""
        meant = [place for place in self._places(wanted) if wanted.settings != TUNED or _was_tuned(*place)]
        return [
            Cell(row, column, seed, self._experiment(row, column, seed, wanted), self.trains)
            for seed in range(wanted.seeds)
            for column, row in meant
        ]

    def untuned(self, wanted: Wanted) -> list[tuple[Column, Row]]:
        """Return the places that are left out, for nobody has tuned the method on the data set."""
        places = self._places(wanted) if wanted.settings == TUNED else []
        return [place for place in places if not _was_tuned(*place)]

    def meant(self, wanted: Wanted) -> Grid:
        """Return it with the columns alone of which cells are meant."""
        keys = {column.key for column, _ in self._places(wanted)}
        return replace(self, columns=tuple(column for column in self.columns if column.key in keys))

    def _places(self, wanted: Wanted) -> list[tuple[Column, Row]]:
        return [(c, r) for c in self.columns for r in self.rows if _fits(f"{c.key}/{r.key}", wanted.patterns)]

    def check_patterns(self, patterns: Sequence[str]) -> None:
        """Raise `UserError` if one of the patterns fits no cell."""
        keys = [f"{column.key}/{row.key}" for column in self.columns for row in self.rows]
        whole = [*(f"{column.key}/*" for column in self.columns), *(f"*/{row.key}" for row in self.rows)]
        for pattern in patterns:
            if not any(fnmatchcase(key, pattern) for key in keys):
                columns, rows = (", ".join(f"`{one.key}`" for one in kind) for kind in (self.columns, self.rows))
                close = closest(pattern, [*keys, *whole])
                hint = f"did you mean `{close}`?" if close else f"columns are {columns}, rows {rows}."
                raise UserError(f"`--cells` got `{pattern}`, which no `column/row` fits; {hint}")

    def check(self) -> None:
        """Raise `UserError` unless every row, every column and every data set that may stand in can be used."""
        quick = Wanted(quick=True)
        for column in self.columns:
            for candidate in column.candidates(quick=False):
                self._experiment(self.rows[0], candidate, 0, quick)
        for row in self.rows:
            self._experiment(row, self.columns[0], 0, quick)

    def _experiment(self, row: Row, column: Column, seed: int, wanted: Wanted) -> Experiment:
        source = f"`{self.name}`"
        layers = [
            ConfigSource(f"[base] of {source}", self.base),
            ConfigSource(f"[columns.{column.key}] of {source}", column.values),
            ConfigSource(f"[rows.{row.key}] of {source}", row.values),
        ]
        if wanted.settings == TUNED:
            layers[-1] = ConfigSource(f"[rows.{row.key}] of {source} with `--settings tuned`", _tuned(row.values))
        if wanted.quick:
            layers.append(ConfigSource(f"[quick] of {source}", self.quick))
        return resolve([*layers, ConfigSource("--seeds", {"seed": seed})])


def _fits(key: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(key, pattern) for pattern in patterns)


def _tuned(values: Values) -> Values:
    """Return a row with what tuning found for its method; a preset lies beneath what the row itself says."""
    return {**values, "method": {**values.get("method", {}), "preset": TUNED}}


def _was_tuned(column: Column, row: Row) -> bool:
    method = row.values.get("method", {}).get("name", DEFAULT_NAMES["method"])
    return column.dataset["name"] in tuned_on(method) or TUNED in METHODS[method].presets
