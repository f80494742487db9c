"""Reads experiments from their files.

title = "..."                 what it shows
source = "..."                where it was published
test = "balanced"             the test of the published figures, or "own"; a column may have another
shows = ["accuracy"]          what is made of the cells: the names of `presentation.SHOWS`
reference = "KEY"             the row that the others are changes of, for `differences`
measures = []                 what is taken from each run besides its figures: the names of `measures.MEASURES`
trains = true                 `false`: samples are dealt, nothing is trained
[base], [quick]               what all cells share, as in an experiment's file; what `--quick` puts over it
[columns.KEY], [rows.KEY]     `name`, and what is theirs of an experiment's file
    of a column: `stand_ins`, tables for `[dataset]`: the first that is at hand is used where its own is not; `test`
    of a row: `view`, the one its published figures show; `paper`, those figures by column
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmate.core import Method
from fedmate.core.options import options_of
from fedmate.errors import UserError, nearest
from fedmate.experiment.config import DEFAULT_NAMES, NAMED_SECTIONS, General, Values, load_file
from fedmate.experiment.metrics_log import VIEWS
from fedmate.methods import METHODS
from fedmate.studies.grid import TESTS, Column, Grid, Row

COLUMN_KEYS, ROW_KEYS = ("name", "stand_ins", "test"), ("name", "paper", "view")
KEYS = ("title", "source", "test", "shows", "reference", "measures", "trains", "base", "quick", "columns", "rows")
KEY = r"[A-Za-z0-9_.-]{0,59}[A-Za-z0-9_-]"
"""What may be part of a file's name, and is no `..`."""
RESERVED = ("cells", "locks", "runs")
"""Folders of a store."""
WORDS: dict[type, str] = {str: "a text", bool: "true or false", list: "a list", dict: "a table"}


def names() -> list[str]:
    """Return the experiments that come with the package."""
    return sorted(path.stem for path in folder().glob("*.toml"))


def folder() -> Path:
    """Return where they lie: in a checkout, beside `src`."""
    return Path(__file__).resolve().parents[3] / "paper"


def load_grid(name: str) -> Grid:
    """Read an experiment that comes with the package, or a user's own file."""
    path = Path(name) if name.endswith(".toml") else folder() / f"{name}.toml"
    if not name.endswith(".toml") and name not in names():
        raise UserError(f"`{name}` is no experiment of the paper and no `.toml` file; {nearest(name, names())}")
    layer = load_file(path)
    return _Reader(layer.source).grid(path.stem, dict(layer.values))


class _Reader:
    """Reads the tables of a file, and says which of them is wrong."""

    def __init__(self, source: str) -> None:
        self.source = source

    def grid(self, name: str, values: Values) -> Grid:
        if not re.fullmatch(KEY, name) or name in RESERVED:
            raise self._error(
                "needs another name: its stem is that of a folder, of up to 60 letters, digits, `_`, `-`."
            )
        test = self._one_of(values, "", "test", TESTS, "balanced")
        rows, columns = self._tables(values, "rows"), self._tables(values, "columns")
        grid = Grid(
            name=name,
            title=self._text(values, "", "title", name),
            source=self._text(values, "", "source", ""),
            shows=self._names(values, "shows", ["accuracy"]),
            measures=self._names(values, "measures", []),
            trains=self._take(values, "", "trains", bool, True),
            base=self._rest(self._take(values, "", "base", dict, {}), "[base]", ()),
            quick=self._rest(self._take(values, "", "quick", dict, {}), "[quick]", ()),
            columns=tuple(self._column(key, dict(content), test) for key, content in columns),
            rows=tuple(self._row(key, dict(content)) for key, content in rows),
            reference=self._text(values, "", "reference", ""),
        )
        if values:
            key = next(iter(values))
            raise self._error(f"has `{key}`, which it does not know; {nearest(key, KEYS)}")
        if grid.measures and not grid.trains:
            raise self._error(
                "has `measures`, but `trains` is false: there is no run to measure; leave one of them out."
            )
        if "dataset" in grid.base:
            grid = replace(grid, columns=tuple(_on(column, grid.base["dataset"]) for column in grid.columns))
        keys = [row.key for row in grid.rows]
        if grid.reference and grid.reference not in keys:
            raise self._error(
                f"has `reference` {_shown(grid.reference)}, which is no row; {nearest(grid.reference, keys)}"
            )
        for row in grid.rows:
            self._check_paper(row, [column.key for column in grid.columns])
        try:
            grid.check()
        except UserError as error:
            raise self._error(f"cannot be run: {error}") from None
        for row in grid.rows:
            self._check_view(row)
        return grid

    def _column(self, key: str, values: Values, test: str) -> Column:
        where = f"[columns.{key}]"
        stand_ins = self._take(values, where, "stand_ins", list, [])
        if not all(isinstance(one, dict) and "name" in one for one in stand_ins):
            raise self._error(
                f"has `stand_ins` in `{where}` that are no data sets; write `stand_ins = [{{name = ...}}]`."
            )
        name = self._text(values, where, "name", key)
        own = self._one_of(values, where, "test", TESTS, test)
        return Column(key, name, own, self._rest(values, where, COLUMN_KEYS), tuple(stand_ins))

    def _row(self, key: str, values: Values) -> Row:
        where = f"[rows.{key}]"
        paper = self._take(values, where, "paper", dict, {})
        name, view = self._text(values, where, "name", key), self._text(values, where, "view", "")
        return Row(key, name, view or _headline(self._rest(values, where, ROW_KEYS)), values, paper)

    def _check_paper(self, row: Row, columns: Sequence[str]) -> None:
        where = f"`paper` of `[rows.{row.key}]`"
        for key, figure in row.paper.items():
            if key not in columns:
                raise self._error(f"has `{key}` in {where}, which is no column; {nearest(key, columns)}")
            if isinstance(figure, bool) or not isinstance(figure, int | float) or not math.isfinite(figure):
                raise self._error(f"has {_shown(figure)} for `{key}` in {where}; write a number, or leave it out.")

    def _check_view(self, row: Row) -> None:
        """Refuse a view that a method cannot have; what those that it adds are called is known when it has run."""
        method = METHODS[row.values.get("method", {}).get("name", DEFAULT_NAMES["method"])]
        if row.view not in VIEWS and method.extra_views is Method.extra_views:
            raise self._error(f"has `view` {_shown(row.view)} in `[rows.{row.key}]`; {nearest(row.view, VIEWS)}")

    def _tables(self, values: Values, kind: str) -> Iterator[tuple[str, Values]]:
        tables = self._take(values, "", kind, dict, {})
        for key in tables:
            # Keys become parts of files' names and of `--cells`.
            if not re.fullmatch(KEY, key):
                raise self._error(
                    f"has `[{kind}.{_shown(key)}]`; a key has up to 60 letters, digits, `_`, `-` and `.`."
                )
        if not tables or not all(isinstance(table, dict) for table in tables.values()):
            raise self._error(f"has no tables `{kind}`; write `[{kind}.KEY]` and keys for each.")
        return iter(tables.items())

    def _rest(self, values: Values, where: str, others: Sequence[str]) -> Values:
        """Return what is left of a table: keys and sections of an experiment's file."""
        sections = [*NAMED_SECTIONS, "training"]
        known = [key for key in (*options_of(General), *sections) if key != "seed"]
        for key, value in values.items():
            if key == "seed":
                raise self._error(f"has `seed` in `{where}`, but every cell is run with seeds from 0; use `--seeds`.")
            if key not in known:
                raise self._error(
                    f"has `{key}` in `{where}`, which it does not know; {nearest(key, [*others, *known])}"
                )
            if key in sections and not isinstance(value, dict):
                raise self._error(
                    f"has `{key}` {_shown(value)} in `{where}`; it must be a table: write `{{name = ...}}`."
                )
        return values

    def _one_of(self, values: Values, where: str, key: str, known: Sequence[str], usual: str) -> str:
        value = self._text(values, where, key, usual)
        if value not in known:
            raise self._error(f"has `{key}` {_shown(value)}{_in(where)}; {nearest(value, known)}")
        return value

    def _names(self, values: Values, key: str, usual: list[str]) -> tuple[str, ...]:
        names = self._take(values, "", key, list, usual)
        if not all(isinstance(name, str) for name in names):
            raise self._error(f"has `{key}` {_shown(names)}; it must be a list of names.")
        return tuple(names)

    def _text(self, values: Values, where: str, key: str, usual: str) -> str:
        return str(self._take(values, where, key, str, usual))

    def _take(self, values: Values, where: str, key: str, kind: type, usual: Any) -> Any:
        value = values.pop(key, usual)
        if not isinstance(value, kind):
            raise self._error(f"has `{key}` {_shown(value)}{_in(where)}; it must be {WORDS[kind]}.")
        return value

    def _error(self, what: str) -> UserError:
        return UserError(f"`{self.source}` {what}")


def _on(column: Column, dataset: Values) -> Column:
    """Return a column that says itself which data set it has, where all have one."""
    return column if "dataset" in column.values else replace(column, values={**column.values, "dataset": dataset})


def _headline(values: Values) -> str:
    """Return the view that ranks a row's method; whether there is such a method is seen later."""
    name = values.get("method", {}).get("name")
    return METHODS[name].primary_view if name in METHODS else Method.primary_view


def _in(where: str) -> str:
    return f" in `{where}`" if where else ""


def _shown(value: object) -> str:
    """Return a value as a message shows it: not all of it if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
