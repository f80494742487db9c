"""The names that an experiment can use, as text."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from fedmate.backends import BACKENDS
from fedmate.core import Method, Training
from fedmate.core.options import Registry, options_of
from fedmate.costs import SETTING, costs_of
from fedmate.data import DATASETS, Dataset
from fedmate.data.partitions import PARTITIONS
from fedmate.errors import UserError, nearest
from fedmate.experiment.config import TUNED, General, tuned_on
from fedmate.methods import METHODS
from fedmate.models import MODELS

SECTIONS: dict[str, type] = {"settings": General, "training": Training}
"""Options without names: the keys outside any section, and the section that all methods share."""

TABLES: dict[str, Registry[Any]] = {table.kind: table for table in (METHODS, DATASETS, PARTITIONS, MODELS, BACKENDS)}


def catalogue(kind: str | None) -> Iterator[str]:
    """Yield the lines that describe one table, or all of them."""
    if kind is not None and kind not in (*SECTIONS, *TABLES):
        raise UserError(f"`{kind}` cannot be listed; {nearest(kind, (*SECTIONS, *TABLES))}")
    for name, section in SECTIONS.items():
        if kind in (None, name):
            yield f"{name}: {_first_line(section)}"
            yield from _options(section)
    for name, table in TABLES.items():
        if kind in (None, name):
            caption = f"numbers are what a client receives (down) and sends (up) in a round, in float32, on {SETTING}"
            yield f"{name}: {caption}" if table is METHODS else f"{name}:"
            for row in table.names():
                try:
                    yield from _describe(row, table[row])
                except UserError as error:
                    yield f"  {row:<14} {error}"


def _options(cls: type) -> Iterator[str]:
    for key, field in (options_of(cls) if is_dataclass(cls) else {}).items():
        values = field.default if isinstance(field.default, tuple) else (field.default,)
        default = "" if values in ((), (None,)) else f" [{', '.join(map(str, values))}]"
        yield f"      {key}: {field.metadata['help']}{default}"


def _describe(name: str, cls: type) -> Iterator[str]:
    if not isinstance(cls, type):
        raise UserError(f"`{name}` is {cls!r}, which is not a class; see what its entry point names.")
    yield f"  {name:<14} {_first_line(cls)}"
    presets = [*getattr(cls, "presets", {})]
    if issubclass(cls, Method):
        try:
            yield f"      {costs_of(cls).describe()}"
        except Exception as error:
            # Another package's fault: the other methods are listed all the same.
            yield f"      its costs are unknown: it raised {error!r}"
        found = tuned_on(name)
        if found and TUNED not in presets:
            presets.append(f"{TUNED} (on {', '.join(found)})")
    yield from _options(cls)
    if issubclass(cls, Dataset):
        spread = (f"{section}.{key}={value}" for section, keys in cls().defaults.items() for key, value in keys.items())
        yield f"      starts from: {', '.join(spread) or 'nothing of its own'}"
    if presets:
        yield f"      preset: {', '.join(presets)}"


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]
