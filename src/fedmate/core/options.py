"""What a user chooses from: options, which carry their help text, type and limits, and tables of named things.

Everything a user can set in a section of an experiment is a field made by `option`, so the command line, the
configuration file and a call from Python check it in one place. Methods, data sets, partitions, models and back ends
stand in tables: explicit dictionaries beside the things they name, which are imported one by one. Other packages add
rows through entry points of the group `fedmate.<kind>`, such as `fedmate.methods`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast, final

from fedmate.errors import UserError, nearest

Row = TypeVar("Row")

NONE = "none"
"""How a file and the command line say that an option has no value, where it may have none."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
_LISTS = {int: "a list of whole numbers", float: "a list of numbers", str: "a list of strings"}
_FOUND = {
    bool: "the truth value",
    numbers.Real: "the number",
    str: "the string",
    list | tuple: "the list",
    Mapping: "the table",
}
_KINDS: dict[type, type] = {int: numbers.Integral, float: numbers.Real}


@dataclasses.dataclass(frozen=True)
class Limits:
    """The numbers an option may take; `None` leaves a side open."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def describe(self) -> str:
        """Say in words what is allowed."""
        words = [
            f"{name} {bound:g}"
            for name, bound in (
                ("at least", self.at_least),
                ("above", self.above),
                ("at most", self.at_most),
                ("below", self.below),
            )
            if bound is not None
        ]
        return "a finite number" + (f" {' and '.join(words)}" if words else "")

    def allow(self, value: float) -> bool:
        """Tell whether `value` is finite and inside the limits."""
        # A whole number has no limit of its own, and may be too large for `isfinite`.
        finite = abs(value) < 2**1023 if isinstance(value, int) else math.isfinite(value)
        return (
            finite
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


def option(
    default: Any,
    help: str,
    limits: Limits | None = None,
    *,
    is_path: bool = False,
) -> Any:
    """Declare a dataclass field that a user may set.

    Args:
        default: its value unless a user sets it.
        help: what it is, in a few words.
        limits: the numbers that it may take.
        is_path: it is kept as an absolute path, to be found from anywhere.
    """
    metadata = {"help": help, "limits": limits or Limits(), "path": is_path}
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def options_of(cls: type) -> Mapping[str, dataclasses.Field[Any]]:
    """Return the fields of `cls` that were declared with `option`, by name."""
    return MappingProxyType({f.name: f for f in dataclasses.fields(cls) if "help" in f.metadata})


def check_options(section: str, cls: type, values: dict[str, Any]) -> None:
    """Raise `UserError` for the first of `values` that lies outside its option's limits."""
    for name, field in options_of(cls).items():
        value = values.get(name, field.default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        limits: Limits = field.metadata["limits"]
        if not limits.allow(value):
            place = f"{section}.{name}" if section else name
            raise UserError(f"`{place}` is {value}; set it to {limits.describe()}.")


def check_type(place: str, cls: type, key: str, value: Any, source: str) -> Any:
    """Return `value` as the option `key` of `cls` takes it, or raise `UserError`; a list becomes a tuple.

    Args:
        place: the option's full name, for the message.
        cls: the dataclass that declares it.
        key: its name there.
        value: what was found.
        source: where it was found.
    """
    declared = _types(cls)[key]
    kinds = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    if not all(_is_text(one) for one in (value if isinstance(value, list | tuple) else [value])):
        raise UserError(f"`{place}` in {source} holds bytes that are no text; rename what it names.")
    if types.NoneType in kinds and value == NONE:
        return None
    for kind in kinds:
        if typing.get_origin(kind) is typing.Literal:
            choices = typing.get_args(kind)
            if value not in choices:
                raise UserError(f"`{place}` in {source} is {_described(value)}; {nearest(str(value), choices)}")
            return value
        if typing.get_origin(kind) is tuple:
            each = typing.get_args(kind)[0]
            if isinstance(value, list | tuple) and all(_is_a(each, one) for one in value):
                return tuple(_as(each, one) for one in value)
        elif _is_a(kind, value):
            return _as(kind, value)
    words = (
        _LISTS[typing.get_args(kind)[0]] if typing.get_origin(kind) is tuple else _WORDS[kind]
        for kind in kinds
        if kind is not types.NoneType and not (kind is int and float in kinds)
    )
    raise UserError(f"`{place}` in {source} is {_described(value)}; it must be {' or '.join(words)}.")


# Working out the types takes as long as all the rest.
_types = functools.cache(typing.get_type_hints)


def _is_a(kind: type, value: Any) -> bool:
    """Tell whether a value is of a kind; a whole number is a number, too, also one of numpy's; no truth value is."""
    return kind is bool if isinstance(value, bool) else isinstance(value, _KINDS.get(kind, kind))


def _as(kind: type, value: Any) -> Any:
    if kind is float:
        # A whole number may be too large for a float; the option's limits then refuse infinity.
        return float(value) if not isinstance(value, int) or abs(value) < 2**1023 else math.inf
    return int(value) if kind is int else value


def _is_text(value: Any) -> bool:
    """Tell whether a value can be written to a file, as all but strings can: names of files need not be text."""
    try:
        return not isinstance(value, str) or value.encode() is not None
    except UnicodeEncodeError:
        return False


def _described(value: Any) -> str:
    if value is None:
        return "empty"
    kind = next((words for cls, words in _FOUND.items() if isinstance(value, cls)), "the value")
    return f"{kind} {spelled(value)}"


def spelled(value: Any) -> str:
    """Return a value as a TOML file would have it, on one line."""
    if isinstance(value, Mapping):
        text = f"{{{', '.join(f'{key} = {spelled(one)}' for key, one in value.items())}}}"
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(map(spelled, value))}]"
    elif value is None or isinstance(value, bool):
        text = str(value).lower()
    else:
        text = repr(value) if isinstance(value, str) else " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


@final
class Registry(Generic[Row]):
    """A table that answers unknown names with the nearest known one.

    Args:
        kind: what the table holds, in the plural.
        rows: name to `module:class`; a row is imported when it is asked for.
    """

    def __init__(self, kind: str, rows: Mapping[str, str]) -> None:
        self.kind = kind
        self.built_in = dict(rows)
        self._rows: dict[str, Row | str] = dict(rows)

    def names(self) -> list[str]:
        """Return every known name, in alphabetical order."""
        return sorted({*self._rows, *(point.name for point in entry_points(group=f"fedmate.{self.kind}"))})

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a row called `name`; asking other packages takes long, so built-in rows come first."""
        return isinstance(name, str) and (name in self._rows or name in self.names())

    def __getitem__(self, name: str) -> Row:
        """Return the row called `name`, or raise `UserError`."""
        row = self._rows.get(name)
        if isinstance(row, str):
            module, _, attribute = row.partition(":")
            row = self._rows[name] = cast(Row, getattr(import_module(module), attribute))
        if row is not None:
            return row
        for point in entry_points(group=f"fedmate.{self.kind}", name=name):
            try:
                other: Row = point.load()
            except Exception as error:
                # Another package's fault: whatever it raises, say whose it is.
                raise UserError(f"`{name}` of the entry point `{point.value}` cannot be loaded ({error!r}).") from error
            return other
        raise UserError(f"`{name}` is not among the {self.kind}; {nearest(name, self.names())}")
