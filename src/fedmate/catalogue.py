"""What can be named in an experiment, as text."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from fedmate.backends import BACKENDS
from fedmate.core import Training
from fedmate.core.options import options_of
from fedmate.datasets import DATASETS, Dataset
from fedmate.errors import UserError, nearest
from fedmate.experiment.config import General
from fedmate.methods import METHODS
from fedmate.models import MODELS
from fedmate.partitions import PARTITIONS
from fedmate.registry import Registry

SECTIONS: dict[str, type] = {"settings": General, "training": Training}
"""What has no names but options: the keys outside any section, and the section that all methods share."""

TABLES: dict[str, Registry[Any]] = {table.kind: table for table in (METHODS, DATASETS, PARTITIONS, MODELS, BACKENDS)}


def catalogue(kind: str | None) -> Iterator[str]:
    """Yield the lines that describe one table, or all of them."""
    if kind is not None and kind not in (*SECTIONS, *TABLES):
        raise UserError(f"`{kind}` cannot be listed; {nearest(kind, (*SECTIONS, *TABLES))}")
    for name, section in SECTIONS.items():
        if kind in (None, name):
            yield f"{name}: {(inspect.getdoc(section) or '').splitlines()[0]}"
            yield from _options(section)
    for name, table in TABLES.items():
        if kind in (None, name):
            yield f"{name}:"
            for row in table.names():
                try:
                    yield from _describe(row, table[row])
                except UserError as error:
                    yield f"  {row:<14} {error}"


def _options(cls: type) -> Iterator[str]:
    options = options_of(cls) if is_dataclass(cls) else {}
    for key, field in options.items():
        default = "" if field.default is None else f" [{field.default}]"
        yield f"      {key}: {field.metadata['help']}{default}"


def _describe(name: str, cls: type) -> Iterator[str]:
    yield f"  {name:<14} {(inspect.getdoc(cls) or '').splitlines()[0]}"
    yield from _options(cls)
    if issubclass(cls, Dataset):
        spread = (f"{section}.{key}={value}" for section, keys in cls().defaults.items() for key, value in keys.items())
        yield f"      starts from: {', '.join(spread) or 'nothing of its own'}"
    presets = getattr(cls, "presets", {})
    if presets:
        yield f"      preset: {', '.join(presets)}"
