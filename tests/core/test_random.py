"""Every random number is a function of its key and its position, and of nothing else."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedmate.core.random import (
    fold,
    make_key,
    normal,
    permutation,
    random_bits,
    shuffle,
    to_uniform,
    uniform,
)

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

    @pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**80 + 5])
    def test_any_integer_is_a_seed(self, seed: int) -> None:
        key = make_key(seed)
        assert key.dtype == torch.int64
        assert key.shape == ()
        assert torch.equal(key, make_key(seed))
        draws = uniform(key, (1000,), torch.float64)
        assert abs(float(draws.mean()) - 0.5) < 5 / math.sqrt(12 * 1000)

    def test_seeds_differ(self) -> None:
        seeds = [*range(-500, 500), 2**31, 2**32, 2**62, 2**63]
        assert len({int(make_key(seed)) for seed in seeds}) == len(seeds)

    @given(seed=seeds, entry=int64s)
    def test_numbers_and_tensors_are_the_same_entry(self, seed: int, entry: int) -> None:
        key = make_key(seed)
        assert torch.equal(fold(key, entry), fold(key, torch.tensor(entry)))

    def test_entries_are_steps(self) -> None:
        key = make_key(3)
        assert torch.equal(fold(key, "round", 5, 7), fold(fold(fold(key, "round"), 5), 7))
        assert torch.equal(fold(key), key)

    def test_keys_differ_by_every_entry(self) -> None:
        rounds, clients = torch.arange(25)[:, None], torch.arange(25)
        paths = itertools.product(range(4), ("round", "client", "dropout"))
        keys = [fold(make_key(seed), purpose, rounds, clients) for seed, purpose in paths]
        assert len(set(torch.stack(keys).flatten().tolist())) == 4 * 3 * 25 * 25

    @given(seed=seeds, path=st.lists(st.one_of(st.integers(-100, 100), st.sampled_from(["a", "b"])), max_size=4))
    def test_keys_differ_by_order_and_length(self, seed: int, path: list[int | str]) -> None:
        key = make_key(seed)
        if path != path[::-1]:
            assert not torch.equal(fold(key, *path), fold(key, *path[::-1]))
        assert not torch.equal(fold(key, *path, 0), fold(key, *path))
        assert not torch.equal(fold(key, 0, *path), fold(key, *path))

    def test_words_are_stable_across_processes(self) -> None:
        # Python's own hash of a string changes with every process.
        key = make_key(1)
        assert torch.equal(fold(key, "update"), fold(key, zlib.crc32(b"update")))

    def test_a_single_bit_changes_half_of_the_key(self) -> None:
        key, entries = make_key(5), torch.arange(50)[:, None]
        changed = fold(key, entries) ^ fold(key, entries ^ (1 << torch.arange(62)))
        flips = [(bits % BITS).bit_count() for bits in changed.flatten().tolist()]
        assert abs(sum(flips) / len(flips) - 32) < 5 * 4 / math.sqrt(len(flips))
        assert min(flips) > 6

    def test_every_bit_is_fair(self) -> None:
        bits = random_bits(make_key(11), (20000,))
        shares = torch.stack([(bits >> by) & 1 for by in range(64)]).double().mean(1)
        assert float((shares - 0.5).abs().max()) < 5 * 0.5 / math.sqrt(20000)

    def test_positions_do_not_depend_on_the_shape(self) -> None:
        key = make_key(2)
        assert torch.equal(random_bits(key, (3, 4)).flatten(), random_bits(key, (12,)))
        assert torch.equal(random_bits(key, (20,))[:12], random_bits(key, (12,)))


class TestVmap:
    @pytest.mark.parametrize(
        "draw",
        [
            lambda key: fold(key, "purpose", 3),
            lambda key: random_bits(key, (5, 7)),
            lambda key: uniform(key, (33,)),
            lambda key: uniform(key, (33,), torch.float64),
            lambda key: normal(key, (33,)),
            lambda key: normal(key, (5, 7), torch.float64),
            lambda key: permutation(key, 33),
            lambda key: shuffle(key, torch.arange(33) % 3 > 0),
        ],
        ids=["fold", "bits", "uniform", "uniform64", "normal", "normal64", "permutation", "shuffle"],
    )
    def test_a_stack_of_keys_gives_each_keys_numbers(self, draw: Callable[[Tensor], Tensor]) -> None:
        keys = torch.stack([fold(make_key(0), i) for i in range(9)])
        stacked = torch.func.vmap(draw)(keys)
        assert torch.equal(stacked, torch.stack([draw(key) for key in keys]))
        assert len({tuple(row.flatten().tolist()) for row in stacked}) == 9

    def test_a_stack_of_entries_gives_each_entrys_key(self) -> None:
        key, ids = make_key(4), torch.arange(6)
        stacked = torch.func.vmap(lambda i: fold(key, "client", i))(ids)
        assert stacked.tolist() == [int(fold(key, "client", i)) for i in range(6)]


class TestUniform:
    def test_the_ends_of_the_range(self) -> None:
        extremes = torch.tensor([0, -1])
        for dtype, step in ((torch.float32, 2.0**-24), (torch.float64, 2.0**-53)):
            assert to_uniform(extremes, dtype).tolist() == [0.0, 1 - step]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_moments_and_range(self, dtype: torch.dtype) -> None:
        n = 100_000
        draws = uniform(make_key(7), (n,), dtype)
        assert draws.dtype == dtype
        assert float(draws.min()) >= 0
        assert float(draws.max()) < 1
        exact = draws.double()
        assert abs(float(exact.mean()) - 1 / 2) < 5 * math.sqrt(1 / 12 / n)
        assert abs(float(exact.var()) - 1 / 12) < 5 * math.sqrt(1 / 180 / n)
        assert abs(float(exact.pow(3).mean()) - 1 / 4) < 5 * math.sqrt(9 / 112 / n)

    def test_every_part_of_the_range_is_hit_equally(self) -> None:
        n, bins = 100_000, 64
        counts = torch.histc(uniform(make_key(8), (n,)), bins, 0, 1)
        chi_square = float(((counts - n / bins) ** 2 / (n / bins)).sum())
        assert abs(chi_square - (bins - 1)) < 5 * math.sqrt(2 * (bins - 1))


class TestNormal:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_moments(self, dtype: torch.dtype) -> None:
        n = 100_000
        draws = normal(make_key(9), (n,), dtype)
        assert draws.dtype == dtype
        assert torch.isfinite(draws).all()
        exact = draws.double()
        # The k-th moment's variance is E[x^2k] - E[x^k]^2, with E[x^2k] = 1, 3, 15, 105.
        for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
            assert abs(float(exact.pow(power).mean()) - moment) < 5 * math.sqrt(variance / n)

    def test_tails(self) -> None:
        n = 100_000
        draws = normal(make_key(10), (n,))
        for bound, share in ((-1.0, 0.158655), (0.0, 0.5), (1.96, 0.975002), (3.0, 0.998650)):
            found = float((draws < bound).double().mean())
            assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / n)


class TestIndependence:
    def test_neighbouring_clients_and_rounds_are_not_correlated(self) -> None:
        n, key = 2000, make_key(0)
        streams = torch.stack(
            [uniform(fold(key, "round", t, i), (n,), torch.float64) for t in range(15) for i in range(15)]
        )
        correlations = torch.corrcoef(streams).fill_diagonal_(0)
        # About 25,000 pairs: the largest of as many independent ones lies near 4.2 standard errors.
        assert float(correlations.abs().max()) < 6 / math.sqrt(n)

    def test_neighbouring_seeds_are_not_correlated(self) -> None:
        n = 2000
        streams = torch.stack([uniform(make_key(seed), (n,), torch.float64) for seed in range(-50, 50)])
        assert float(torch.corrcoef(streams).fill_diagonal_(0).abs().max()) < 6 / math.sqrt(n)

    def test_the_first_number_of_each_client_is_uniform(self) -> None:
        n = 5000
        keys = fold(make_key(1), "round", 0, torch.arange(n))
        firsts = torch.func.vmap(lambda key: uniform(key, (1,))[0])(keys)
        counts = torch.histc(firsts, 20, 0, 1)
        chi_square = float(((counts - n / 20) ** 2 / (n / 20)).sum())
        assert chi_square < 19 + 5 * math.sqrt(38)
        assert abs(float(torch.corrcoef(torch.stack([firsts[:-1], firsts[1:]]))[0, 1])) < 5 / math.sqrt(n)

    def test_neighbouring_positions_are_not_correlated(self) -> None:
        n = 50_000
        draws = uniform(make_key(12), (n,), torch.float64)
        for lag in (1, 2, 16, 64):
            pair = torch.stack([draws[:-lag], draws[lag:]])
            assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / math.sqrt(n - lag)


class TestShuffle:
    @given(seed=seeds, real=st.integers(0, 40), padding=st.integers(0, 40))
    def test_padding_does_not_change_the_order(self, seed: int, real: int, padding: int) -> None:
        key = make_key(seed)
        mask = torch.arange(real + padding) < real
        order = shuffle(key, mask)
        assert torch.equal(order[:real], shuffle(key, torch.ones(real, dtype=torch.bool)))
        assert sorted(order[real:].tolist()) == list(range(real, real + padding))

    @given(seed=seeds, holes=st.lists(st.booleans(), max_size=40))
    def test_holes_come_last_and_leave_the_others_in_order(self, seed: int, holes: list[bool]) -> None:
        key, mask = make_key(seed), torch.tensor(holes, dtype=torch.bool)
        order = shuffle(key, mask).tolist()
        kept = sum(holes)
        assert sorted(order) == list(range(len(holes)))
        assert all(holes[i] for i in order[:kept])
        assert order[:kept] == [i for i in permutation(key, len(holes)).tolist() if holes[i]]

    @given(seed=seeds, length=st.integers(0, 100))
    def test_a_permutation_is_one(self, seed: int, length: int) -> None:
        assert sorted(permutation(make_key(seed), length).tolist()) == list(range(length))

    def test_every_order_is_equally_likely(self) -> None:
        n = 6000
        keys = fold(make_key(0), torch.arange(n))
        orders = torch.func.vmap(lambda key: permutation(key, 4))(keys)
        codes = (orders * torch.tensor([64, 16, 4, 1])).sum(1)
        counts = torch.bincount(codes)
        counts = counts[counts > 0]
        assert len(counts) == 24
        chi_square = float(((counts - n / 24) ** 2 / (n / 24)).sum())
        assert chi_square < 23 + 5 * math.sqrt(46)
