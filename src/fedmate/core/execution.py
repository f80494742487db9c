"""How the clients of a block are executed: whether vmap maps what is computed, and which features are known already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

REMEMBERED = 4
"""How many results are remembered: a client asks for the same features again soon or never."""

_unmapped: ContextVar[bool] = ContextVar("unmapped", default=False)


@contextmanager
def unmapped() -> Iterator[None]:
    """Promise that nothing inside is mapped by vmap: the same numbers sooner, up to rounding.

    Gradients then come from leaves and `autograd.grad`, and images are laid out as a CPU convolves them fastest.
    """
    token = _unmapped.set(True)
    try:
        yield
    finally:
        _unmapped.reset(token)


def stay_unmapped() -> None:
    """Make the promise of `unmapped` for the rest of this thread."""
    _unmapped.set(True)


def is_unmapped() -> bool:
    """Tell whether the code runs inside `unmapped`."""
    return _unmapped.get()


def lay_out(x: Tensor, precision: torch.dtype) -> Tensor:
    """Return images as a network of a precision reads them fastest: on a CPU, the channels of a pixel side by side."""
    # In double precision there is nothing to gain.
    if x.dim() != 4 or x.device.type != "cpu" or precision != torch.float32 or not is_unmapped():
        return x
    # A single channel is the same numbers in both layouts, but convolutions go by the stride.
    done = x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last)
    return x if done else x.clone(memory_format=torch.channels_last)


class FeatureMemory:
    """The features computed last, and the tensors they were computed from.

    Nothing inside a round is written into, so the same tensors have the same features.
    """

    def __init__(self) -> None:
        self._entries: tuple[tuple[tuple[Tensor, ...], Tensor], ...] = ()

    def find(self, origin: tuple[Tensor, ...]) -> Tensor | None:
        """Return the features of these very tensors, if they are remembered."""
        for known, features in self._entries:
            if len(known) == len(origin) and all(a is b for a, b in zip(known, origin, strict=True)):
                self.keep(known, features)
                return features
        return None

    def keep(self, origin: tuple[Tensor, ...], features: Tensor) -> None:
        """Remember features, and forget the least recently used ones."""
        others = [entry for entry in self._entries if entry[0] is not origin]
        # One assignment: threads that share a memory may lose an entry to each other, nothing else.
        self._entries = ((origin, features), *others[: REMEMBERED - 1])


_memory: ContextVar[FeatureMemory | None] = ContextVar("feature_memory", default=None)


@contextmanager
def remembered_features(memory: FeatureMemory | None = None) -> Iterator[None]:
    """Compute no features twice inside; a memory that is in use already stays in use."""
    token = _memory.set(memory or current_memory() or FeatureMemory())
    try:
        yield
    finally:
        _memory.reset(token)


def current_memory() -> FeatureMemory | None:
    """Return the memory in use, if there is one."""
    return _memory.get()
