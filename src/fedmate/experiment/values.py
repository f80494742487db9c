"""Checking a value from a file or the command line against the type its option declares."""

from __future__ import annotations

import functools
import math
import types
import typing
from typing import Any

from fedmate.errors import UserError, nearest

NONE = "none"
"""How a file and the command line say that an option has no value, where it may have none."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def check_type(place: str, cls: type, key: str, value: Any, source: str) -> Any:
    """Return `value` as the option `key` of `cls` takes it, or raise `UserError`.

    Args:
        place: the option's full name, for the message.
        cls: the dataclass that declares it.
        key: its name there.
        value: what was found.
        source: where it was found.
    """
    declared = _types(cls)[key]
    kinds = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    if isinstance(value, str) and not _is_text(value):
        raise UserError(f"`{place}` in {source} holds bytes that are no text; rename what it names.")
    if types.NoneType in kinds and value == NONE:
        return None
    for kind in kinds:
        if typing.get_origin(kind) is typing.Literal:
            choices = typing.get_args(kind)
            if value not in choices:
                raise UserError(f"`{place}` in {source} is {_show(value)}; {nearest(str(value), choices)}")
            return value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            # A whole number may be too large for a float; the option's limits then refuse infinity.
            return float(value) if abs(value) < 2**1023 else math.inf
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    expected = " or ".join(_WORDS[kind] for kind in kinds if kind is not types.NoneType)
    raise UserError(f"`{place}` in {source} is {_show(value)}; it must be {expected}.")


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    """Return the types that a dataclass declares; working them out takes as long as all the rest."""
    return typing.get_type_hints(cls)


def _is_text(value: str) -> bool:
    """Tell whether a string can be written to a file: names of files need not be text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _show(value: Any) -> str:
    """Say what was found and of which kind."""
    word = {bool: "the truth value", int: "the number", float: "the number", str: "the string", list: "the list"}
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return f"{word.get(type(value), type(value).__name__)} {text}"
