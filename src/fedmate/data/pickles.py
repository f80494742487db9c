"""Reading the pickles in which CIFAR is published, without running anything they hold.

A pickle is a program. This reader lets it make numbers, words, lists, tuples and dictionaries, and arrays of whole
numbers: the few names that such arrays are written with stand for functions of our own, which look at what they are
given. Any other name ends the reading.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, Final, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from fedmate.data.bundle import damaged
from fedmate.errors import UserError

TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
"""What an array may hold: whole numbers of one to eight bytes."""

MOST_AXES = 4

MOST_CONTAINERS = 10_000
"""Lists, tuples and dictionaries in a pickle. CIFAR's have a dozen; nested without end they would end the process."""

_CONTAINERS = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "DICT", "EMPTY_LIST", "EMPTY_DICT", "FROZENSET", "REDUCE")

_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
"""Instructions that keep a value under a number of the pickle's choice."""


def read_pickle(data: bytes, name: str) -> Any:
    """Return what a pickle holds, arrays at its top or in a dictionary there, or raise `UserError`.

    Args:
        data: the pickle. What Python 2 wrote as `str` becomes `bytes`.
        name: what to call it in messages.
    """
    try:
        _check_instructions(data)
        found = _Reader(io.BytesIO(data), name).load()
        return {key: _finished(value) for key, value in found.items()} if type(found) is dict else _finished(found)
    except UserError:
        raise
    except Exception as error:
        # A damaged pickle makes its reader raise almost anything.
        raise damaged(name, " ".join(str(error).split()) or type(error).__name__) from None


@final
class _Reader(pickle.Unpickler):
    """Reads a pickle in which names stand for what is in `_MEANINGS`."""

    def __init__(self, file: io.BytesIO, name: str) -> None:
        super().__init__(file, encoding="bytes")
        self._name = name

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return what a name stands for, or refuse it."""
        meaning = _MEANINGS.get(f"{module_name}.{global_name}")
        return self._refuse(f"{module_name}.{global_name}") if meaning is None else meaning

    def persistent_load(self, pid: Any) -> Any:
        """Refuse what lies outside the pickle."""
        return self._refuse("a persistent object")

    def _refuse(self, what: str) -> NoReturn:
        shown = what.encode("unicode_escape").decode()[:80]
        raise UserError(
            f"`{self._name}` is a pickle that asks for `{shown}`, which no data set needs, so it was not read on; "
            "delete it and fetch it again from where it is published."
        )


@final
class _Meaning:
    """What a name stands for: it can be called, and nothing else can be done to it."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make: Final = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("a name cannot be changed")


@final
class _Type:
    """Stands for a `numpy.dtype`, as a pickle makes it: first its name, then its byte order."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any, *_: Any) -> None:
        text = code.decode("ascii") if isinstance(code, bytes) else code
        if text not in TYPES:
            raise pickle.UnpicklingError(f"an array holds {text!r} instead of whole numbers")
        self.dtype: np.dtype[Any] = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        _, order, *inner = state
        text = order.decode("ascii") if isinstance(order, bytes) else order
        if text not in ("|", "<", ">", "=") or any(part is not None for part in inner[:3]):
            raise pickle.UnpicklingError("an array holds something else than plain numbers")
        self.dtype = np.dtype(f"{text}{self.dtype.str[1:]}")


@final
class _Array:
    """Stands for a `numpy.ndarray`, as a pickle makes it: first empty, then with its content."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        self.values = _fill(data, kind, shape, "F" if fortran else "C")


def _reconstruct(*_: Any) -> _Array:
    """Stand for the function that makes an empty array: its content says what it is."""
    return _Array()


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any, *_: Any) -> _Array:
    """Stand for the function that makes an array at once, which newer pickles call."""
    array = _Array()
    array.values = _fill(data, kind, shape, order)
    return array


def _encode(text: Any, encoding: Any) -> bytes:
    """Stand for what Python 3 writes bytes with for older readers."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes are written in an unknown way")
    return text.encode("latin1")


def _fill(data: Any, kind: Any, shape: Any, order: Any) -> NDArray[Any]:
    whole = isinstance(shape, tuple) and len(shape) <= MOST_AXES and all(type(n) is int and n >= 0 for n in shape)
    if not whole or not isinstance(data, bytes | bytearray) or not isinstance(kind, _Type):
        raise pickle.UnpicklingError("an array has no content of a kind that is known")
    if math.prod(shape) * kind.dtype.itemsize != len(data):
        raise pickle.UnpicklingError(f"an array of shape {list(shape)} has {len(data)} bytes")
    return np.frombuffer(data, kind.dtype).reshape(shape, order="F" if order in ("F", b"F") else "C")


def _finished(value: Any) -> Any:
    """Return a value, and the array that one of ours stands for."""
    if not isinstance(value, _Array):
        return value
    if value.values is None:
        raise pickle.UnpicklingError("an array has no content")
    return value.values


def _check_instructions(data: bytes) -> None:
    """Refuse what brings Python's own reader down: numbers it reserves memory for, containers nested without end."""
    made = 0
    for instruction, argument, _ in pickletools.genops(data):
        made += instruction.name in _CONTAINERS
        if made > MOST_CONTAINERS:
            raise pickle.UnpicklingError(f"it makes more than {MOST_CONTAINERS:,} lists, tuples and dictionaries")
        if instruction.name in _PUTS and isinstance(argument, int) and argument > len(data):
            raise pickle.UnpicklingError(f"it has {len(data)} bytes and counts to {argument}")


_MEANINGS = {
    "_codecs.encode": _Meaning(_encode),
    "numpy.dtype": _Meaning(_Type),
    "numpy.ndarray": _Meaning(_reconstruct),
    **{
        f"numpy.{core}.{name}": _Meaning(make)
        for core in ("core", "_core")
        for name, make in (("multiarray._reconstruct", _reconstruct), ("numeric._frombuffer", _from_buffer))
    },
}
