"""Every random number is a function of its key and its position, and of nothing else."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmate.core.random import fold, make_key, normal, shuffle, uniform

BITS = 1 << 64
WEYL = 0x9E3779B97F4A7C15

seeds = st.integers(-(2**70), 2**70)
int64s = st.integers(-(2**63), 2**63 - 1)


def mixed(value: int) -> int:
    """splitmix64's finaliser, in Python's integers."""
    value %= BITS
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % BITS
    value = (value ^ value >> 27) * 0x94D049BB133111EB % BITS
    return value ^ value >> 31


def unsigned(key: Tensor) -> int:
    return int(key) % BITS


class TestKeys:
    @pytest.mark.parametrize(
        ("seed", "expected"),
        # The first outputs of Vigna's reference splitmix64.c for these seeds.
        [(0, 0xE220A8397B1DCDAF), (1234567, 6457827717110365317)],
    )
    def test_a_seed_is_mixed_as_published(self, seed: int, expected: int) -> None:
        assert unsigned(make_key(seed)) == expected

    @given(seed=seeds, entry=int64s)
    def test_wrapping_agrees_with_exact_integers(self, seed: int, entry: int) -> None:
        key = mixed(seed + WEYL)
        assert unsigned(make_key(seed)) == key
        assert unsigned(fold(make_key(seed), entry)) == mixed(mixed(key + WEYL) + entry * WEYL)

    def test_keys_differ_by_every_entry(self) -> None:
        rounds, clients = torch.arange(25)[:, None], torch.arange(25)
        paths = itertools.product(range(4), ("round", "client", "dropout"))
        keys = [fold(make_key(seed), purpose, rounds, clients) for seed, purpose in paths]
        assert len(set(torch.stack(keys).flatten().tolist())) == 4 * 3 * 25 * 25


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments(dtype: torch.dtype) -> None:
    """The k-th moment's variance is E[x^2k] - E[x^k]^2."""
    n = 100_000
    draws, bell = uniform(make_key(7), (n,), dtype), normal(make_key(9), (n,), dtype)
    assert draws.dtype == bell.dtype == dtype
    assert 0 <= float(draws.min()) <= float(draws.max()) < 1
    for power, moment, variance in ((1, 1 / 2, 1 / 12), (2, 1 / 3, 4 / 45), (3, 1 / 4, 9 / 112)):
        assert abs(float(draws.double().pow(power).mean()) - moment) < 5 * math.sqrt(variance / n)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(bell.double().pow(power).mean()) - moment) < 5 * math.sqrt(variance / n)


class TestShuffle:
    @given(seed=seeds, real=st.integers(0, 40), padding=st.integers(0, 40))
    def test_padding_does_not_change_the_order(self, seed: int, real: int, padding: int) -> None:
        key = make_key(seed)
        mask = torch.arange(real + padding) < real
        order = shuffle(key, mask)
        assert torch.equal(order[:real], shuffle(key, torch.ones(real, dtype=torch.bool)))
        assert sorted(order[real:].tolist()) == list(range(real, real + padding))
