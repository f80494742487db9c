"""The promise that one client runs by itself, and what may be done sooner under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_promised: ContextVar[bool] = ContextVar("unmapped", default=False)


@contextmanager
def unmapped() -> Iterator[None]:
    """Promise that nothing inside is mapped by vmap: the same numbers sooner, up to rounding.

    Gradients then come from leaves and `autograd.grad`, and images are laid out as a CPU convolves them fastest.
    """
    token = _promised.set(True)
    try:
        yield
    finally:
        _promised.reset(token)


def is_unmapped() -> bool:
    """Tell whether somebody promised that vmap is not at work."""
    return _promised.get()


def lay_out(x: Tensor, precision: torch.dtype) -> Tensor:
    """Return images as a network of a precision reads them fastest: on a CPU, the channels of a pixel side by side."""
    # In double precision there is nothing to gain.
    if x.dim() != 4 or x.device.type != "cpu" or precision != torch.float32 or not is_unmapped():
        return x
    # A single channel is the same numbers in both layouts, but convolutions go by the stride.
    done = x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last)
    return x if done else x.clone(memory_format=torch.channels_last)
