"""Randomness as data: every random number is a function of a key and a position.

A key is an int64 scalar. `fold` derives a new key from a key and a purpose, a round, a client or an index, so a
number depends on (seed, round, client, purpose) and on nothing else: not on the back end, the order of clients, the
number of workers or a restart. All functions work on stacks of keys under `torch.func.vmap`.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """Read 64 bits as the signed integer torch stores."""
    return value - (1 << 64) if value >= 1 << 63 else value


# The finaliser of the splitmix64 generator and its Weyl constant (Steele, Lea and Flood, 2014).
_WEYL = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)
_LARGEST = (1 << 63) - 1


def _shift(bits: Tensor, by: int) -> Tensor:
    """Shift right without dragging the sign along (torch shifts arithmetically)."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift(bits, 30)) * _FIRST
    bits = (bits ^ _shift(bits, 27)) * _SECOND
    return bits ^ _shift(bits, 31)


def make_key(seed: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the key that a whole experiment starts from."""
    return _mix(torch.tensor(_signed(seed % (1 << 64)), dtype=torch.int64, device=device) + _WEYL)


def fold(key: Tensor, *path: int | str | Tensor) -> Tensor:
    """Derive a key, one step per entry of `path`; words name purposes, numbers rounds, clients and indices."""
    for entry in path:
        number = zlib.crc32(entry.encode()) if isinstance(entry, str) else entry
        # Python's integers grow where torch's wrap round, so they are wrapped by hand.
        step = number * _WEYL if isinstance(number, Tensor) else _signed(number * _WEYL % (1 << 64))
        # Mixing before the addition keeps fold(fold(k, a), b) apart from fold(fold(k, b), a).
        key = _mix(_mix(key + _WEYL) + step)
    return key


def random_bits(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return 64 random bits for each position of `shape`, as int64."""
    positions = torch.arange(math.prod(shape), dtype=torch.int64, device=key.device)
    return fold(key, positions).reshape(shape)


def to_uniform(bits: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn random bits into numbers in [0, 1), as many as the precision tells apart."""
    digits = 53 if dtype == torch.float64 else 24
    return _shift(bits, 64 - digits).to(dtype) * 2.0**-digits


def uniform(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers drawn evenly from [0, 1)."""
    return to_uniform(random_bits(key, shape), dtype)


def normal(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers drawn from the standard normal distribution (Box and Muller's transformation)."""
    radius = torch.sqrt(-2 * torch.log1p(-uniform(fold(key, "radius"), shape, dtype)))
    return radius * torch.cos(2 * math.pi * uniform(fold(key, "angle"), shape, dtype))


def shuffle(key: Tensor, mask: Tensor) -> Tensor:
    """Return the positions of `mask` in random order, those that are true first.

    The order of the true positions does not depend on how many false ones follow them, which is why padding a
    client changes nothing.
    """
    bits = random_bits(key, (mask.shape[0],)) & _LARGEST
    return torch.argsort(torch.where(mask, bits, torch.full_like(bits, _LARGEST)), stable=True)


def permutation(key: Tensor, length: int) -> Tensor:
    """Return the numbers 0 to `length - 1` in random order."""
    return shuffle(key, torch.ones(length, dtype=torch.bool, device=key.device))
