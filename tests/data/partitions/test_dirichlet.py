"""Dirichlet: skew of any strength."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.data.partitions.checks import CIFAR, class_counts, split

from fedmate.data.partitions.dirichlet import Dirichlet

caps = st.none() | st.integers(1, 60)


def test_the_largest_gives_to_those_that_would_get_nothing() -> None:
    """With 3 classes, 3 clients at most hold a class; the other 17 take one sample each from the largest."""
    labels = np.repeat(np.arange(3, dtype=np.int64), [10, 30, 300])
    sizes = sorted(len(rows) for rows in split(Dirichlet(clients=20, alpha=1e-12), labels, seed=1, classes=3))
    assert sizes == [1] * 17 + [10, 30, 283]


@pytest.mark.parametrize("alpha", [1e9, 1e308])
def test_large_alpha_is_even(alpha: float) -> None:
    counts = class_counts(split(Dirichlet(clients=20, alpha=alpha), CIFAR), CIFAR)
    assert (np.abs(counts - 250) <= 2).all()


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_shares_have_the_variance_of_the_distribution(alpha: float) -> None:
    clients = 10
    parts = [class_counts(split(Dirichlet(clients=clients, alpha=alpha), CIFAR, seed), CIFAR) for seed in range(12)]
    shares = np.concatenate(parts, axis=1) / 5000
    np.testing.assert_allclose(shares.sum(0), 1)
    mean = 1 / clients
    expected = mean * (1 - mean) / (clients * alpha + 1)
    # 1,200 shares; their variance is known to within about a fifth.
    assert abs(shares.var() / expected - 1) < 0.35
