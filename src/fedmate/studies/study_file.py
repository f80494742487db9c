"""Reads a study from its TOML file; `study` describes the form."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedmate.core import Method
from fedmate.core.options import options_of
from fedmate.errors import UserError, nearest
from fedmate.experiment.config import DEFAULT_NAMES, NAMED_SECTIONS, General, Values, load_file
from fedmate.experiment.metrics_log import VIEWS
from fedmate.methods import METHODS
from fedmate.studies.study import TESTS, Study, StudyMethod, StudySetting

KEY = r"[A-Za-z0-9_.-]{0,59}[A-Za-z0-9_-]"
"""A key becomes part of file names and of patterns."""

KINDS: dict[type, str] = {str: "a text", list: "a list", dict: "a table"}


def load_study(path: Path) -> Study:
    """Read a study, or raise `UserError`."""
    source, values = load_file(path)
    if not re.fullmatch(KEY, path.stem):
        raise UserError(f"`{source}` needs another name: up to 60 letters, digits, `_` and `-`.")
    top = _Table(source, "", dict(values))
    test = _test(top, "balanced")
    base, quick = (_Table(source, f"[{key}]", top.take(key, dict, {})).experiment() for key in ("base", "quick"))
    settings = tuple(_setting(one, key, test) for key, one in _tables(top, "settings").items())
    methods = tuple(_method(one, key, [s.key for s in settings]) for key, one in _tables(top, "methods").items())
    if "dataset" in base:
        settings = tuple(replace(s, values={"dataset": base["dataset"], **s.values}) for s in settings)
    reference = top.take("reference", str, "")
    keys = [method.key for method in methods]
    if reference and reference not in keys:
        raise top.error(f"has `reference` `{reference}`, which is no method; {nearest(reference, keys)}")
    title, origin = top.take("title", str, path.stem), top.take("source", str, "")
    if top.values:
        known = ("title", "source", "test", "reference", "base", "quick", "settings", "methods")
        key = next(iter(top.values))
        raise top.error(f"has `{key}`, which is unknown; {nearest(key, known)}")
    study = Study(path.stem, title, origin, base, quick, settings, methods, reference)
    try:
        study.check()
    except UserError as error:
        raise top.error(f"cannot be run: {error}") from None
    for method in methods:
        _check_view(top, method)
    return study


class _Table(NamedTuple):
    """A table of the file, of which known keys are taken one by one."""

    source: str
    where: str
    values: Values

    def take(self, key: str, kind: type, default: Any) -> Any:
        """Remove a key, and return its value."""
        value = self.values.pop(key, default)
        if not isinstance(value, kind):
            raise self.error(f"has `{key}` {value!r}{self._place}; it must be {KINDS[kind]}.")
        return value

    def experiment(self, others: Sequence[str] = ()) -> Values:
        """Return the remaining values: keys and sections of an experiment's file."""
        sections = [*NAMED_SECTIONS, "training"]
        known = [key for key in (*options_of(General), *sections) if key != "seed"]
        for key, value in self.values.items():
            if key == "seed":
                raise self.error(f"has `seed`{self._place}, but a study has seeds from 0; use `--seeds`.")
            if key not in known:
                raise self.error(f"has `{key}`{self._place}, which is unknown; {nearest(key, [*others, *known])}")
            if key in sections and not isinstance(value, dict):
                raise self.error(f"has `{key}` {value!r}{self._place}; it must be a table: write `{{name = ...}}`.")
        return self.values

    def error(self, problem: str) -> UserError:
        """Return an error that names the file."""
        return UserError(f"`{self.source}` {problem}")

    @property
    def _place(self) -> str:
        return f" in `{self.where}`" if self.where else ""


def _tables(top: _Table, kind: str) -> dict[str, _Table]:
    tables = top.take(kind, dict, {})
    if not tables or not all(isinstance(one, dict) for one in tables.values()):
        raise top.error(f"has no tables `{kind}`; write `[{kind}.KEY]` and options for each.")
    for key in tables:
        if not re.fullmatch(KEY, key):
            raise top.error(f"has `[{kind}.{key!r}]`; a key has up to 60 letters, digits, `_`, `-` and `.`.")
    return {key: _Table(top.source, f"[{kind}.{key}]", dict(values)) for key, values in tables.items()}


def _test(table: _Table, default: str) -> str:
    test = str(table.take("test", str, default))
    if test not in TESTS:
        raise table.error(f"has `test` `{test}`; {nearest(test, TESTS)}")
    return test


def _setting(table: _Table, key: str, test: str) -> StudySetting:
    stand_ins = table.take("stand_ins", list, [])
    if not all(isinstance(one, dict) and "name" in one for one in stand_ins):
        raise table.error(f"has `stand_ins` in `{table.where}` that are no data sets; write `[{{name = ...}}]`.")
    name, own = table.take("name", str, key), _test(table, test)
    return StudySetting(key, name, own, table.experiment(("name", "stand_ins", "test")), tuple(stand_ins))


def _method(table: _Table, key: str, settings: Sequence[str]) -> StudyMethod:
    published = table.take("published", dict, {})
    for setting, figure in published.items():
        if setting not in settings:
            raise table.error(
                f"has `{setting}` in `published` of `{table.where}`, which is no setting; {nearest(setting, settings)}"
            )
        if isinstance(figure, bool) or not isinstance(figure, int | float) or not math.isfinite(figure):
            raise table.error(f"has {figure!r} for `{setting}` in `published` of `{table.where}`; write a number.")
    name, view = table.take("name", str, key), table.take("view", str, "")
    values = table.experiment(("name", "published", "view"))
    method = values.get("method", {}).get("name")
    usual = METHODS[method].primary_view if method in METHODS else Method.primary_view
    return StudyMethod(key, name, view or usual, values, published)


def _check_view(top: _Table, method: StudyMethod) -> None:
    """Refuse a view that a method cannot have; the names of those that it adds are known when it has run."""
    cls = METHODS[method.values.get("method", {}).get("name", DEFAULT_NAMES["method"])]
    if method.view not in VIEWS and cls.extra_views is Method.extra_views:
        raise top.error(f"has `view` `{method.view}` in `[methods.{method.key}]`; {nearest(method.view, VIEWS)}")
