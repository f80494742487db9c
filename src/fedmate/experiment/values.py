"""Checking a value from a file or the command line against the type its option declares."""

from __future__ import annotations

import functools
import math
import numbers
import types
import typing
from typing import Any

from fedmate.errors import UserError, nearest

NONE = "none"
"""How a file and the command line say that an option has no value, where it may have none."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
_LISTS = {int: "a list of whole numbers", float: "a list of numbers", str: "a list of strings"}


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
                raise UserError(f"`{place}` in {source} is {_show(value)}; {nearest(str(value), choices)}")
            return value
        if typing.get_origin(kind) is tuple:
            each = typing.get_args(kind)[0]
            if isinstance(value, list | tuple) and all(_is_a(each, one) for one in value):
                return tuple(_as(each, one) for one in value)
        elif _is_a(kind, value):
            return _as(kind, value)
    expected = " or ".join(_word(kind) for kind in kinds if kind is not types.NoneType)
    raise UserError(f"`{place}` in {source} is {_show(value)}; it must be {expected}.")


_KINDS: dict[type, type] = {int: numbers.Integral, float: numbers.Real}


def _is_a(kind: type, value: Any) -> bool:
    """Tell whether a value is of a kind; a whole number is a number, too, also one of numpy's; no truth value is."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, _KINDS.get(kind, kind))


def _as(kind: type, value: Any) -> Any:
    """Return a value of a kind as that kind."""
    if kind is float:
        # A whole number may be too large for a float; the option's limits then refuse infinity.
        return float(value) if not isinstance(value, int) or abs(value) < 2**1023 else math.inf
    return int(value) if kind is int else value


def _word(kind: Any) -> str:
    return _LISTS[typing.get_args(kind)[0]] if typing.get_origin(kind) is tuple else _WORDS[kind]


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    """Return the types that a dataclass declares; working them out takes as long as all the rest."""
    return typing.get_type_hints(cls)


def _is_text(value: Any) -> bool:
    """Tell whether a value can be written to a file, as all but strings can: names of files need not be text."""
    try:
        _ = value.encode() if isinstance(value, str) else b""
    except UnicodeEncodeError:
        return False
    return True


def _show(value: Any) -> str:
    """Say what was found and of which kind."""
    word = {bool: "the truth value", int: "the number", float: "the number", str: "the string", list: "the list"}
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return f"{word.get(type(value), type(value).__name__)} {text}"
