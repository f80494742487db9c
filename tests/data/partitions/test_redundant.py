"""Copies: some clients hold one of their samples many times, and nobody's size changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.partitions.checks import Labels

from fedmate.data.partitions import repeat_samples
from fedmate.errors import UserError


def hands_of(*sizes: int) -> list[Labels]:
    """Rows that no two clients share."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end, dtype=np.int64) * 3 for size, end in zip(sizes, ends, strict=True)]


def repeated(client_rows: list[Labels], clients: float, samples: float = 0.5, seed: int = 0) -> list[Labels]:
    return repeat_samples(client_rows, clients, samples, np.random.default_rng(seed))


def changed(before: list[Labels], after: list[Labels]) -> list[int]:
    return [i for i, pair in enumerate(zip(before, after, strict=True)) if not np.array_equal(*pair)]


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.10, 2), (0.35, 7), (1.0, 20)])
def test_the_papers_ratios_of_twenty_clients(share: float, count: int) -> None:
    client_rows = hands_of(*[600] * 20)
    after = repeated(client_rows, share)
    assert len(changed(client_rows, after)) == count
    for i in changed(client_rows, after):
        rows, times = np.unique(after[i], return_counts=True)
        assert {*rows.tolist()} <= {*client_rows[i].tolist()}
        # 300 places, and perhaps the sample's own besides.
        assert sorted(times.tolist())[-2:] in ([1, 300], [1, 301])
        assert len(after[i]) == 600
        assert (np.diff(after[i]) >= 0).all()


@settings(max_examples=80)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    clients=st.floats(0, 1),
    samples=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
def test_sizes_stay_and_copies_are_the_clients_own(sizes: list[int], clients: float, samples: float, seed: int) -> None:
    client_rows = hands_of(*sizes)
    before = [rows.copy() for rows in client_rows]
    try:
        after = repeated(client_rows, clients, samples, seed)
    except UserError:
        assert 0 < clients * len(sizes) < 0.5
        return
    assert changed(before, client_rows) == [], "what came in is left alone"
    assert [len(rows) for rows in after] == sizes
    for own, rows in zip(client_rows, after, strict=True):
        kept, times = np.unique(rows, return_counts=True)
        assert {*kept.tolist()} <= {*own.tolist()}
        # One sample many times at most, and no more of it than asked for.
        assert (times > 1).sum() <= 1
        assert times.max() <= 1 + samples * len(own) + 1e-6


def test_half_a_client_is_one_whatever_floating_point_makes_of_it() -> None:
    """0.29 * 50 are 14 and a half, but 14.499999999999998 in floating point."""
    client_rows = hands_of(*[10] * 50)
    assert len(changed(client_rows, repeated(client_rows, 0.29))) == 15


def test_a_share_that_is_no_client_is_refused() -> None:
    with pytest.raises(UserError, match=r"`partition.redundant_clients` is 0.01, which of 20 clients is none; raise"):
        repeated(hands_of(*[10] * 20), 0.01)
