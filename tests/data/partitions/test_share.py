"""Share has the counts of the paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.partitions.checks import (
    CIFAR,
    CLASSES,
    balanced,
    check_rows,
    class_counts,
    input_of,
    refusal,
    split,
)

from fedmate.data.partitions.share import Share, ring

RING = ring(CLASSES)

EMNIST = tuple(tuple(range(*ends)) for ends in ((0, 10), (10, 36), (36, 62)))
"""Digits, capital letters, small letters: the groups of the 62 classes."""


@pytest.mark.parametrize(
    ("share", "dominant", "other", "even", "odd"),
    [
        (10, 186, 6, 1560, 840),
        (50, 130, 30, 1400, 1000),
        (70, 102, 42, 1320, 1080),
    ],
)
def test_counts_of_the_paper(share: float, dominant: int, other: int, even: int, odd: int) -> None:
    partition = Share(clients=20, examples=600, share=share)
    client_rows = split(partition, CIFAR)
    check_rows(partition, client_rows, input_of(CIFAR), disjoint=True)
    counts = class_counts(client_rows, CIFAR)
    groups = ({0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 8}, {8, 9, 0})
    for i in range(20):
        assert counts[i].tolist() == [dominant if k in groups[i % 5] else other for k in range(CLASSES)]
    assert counts.sum(0).tolist() == [even, odd] * 5
    assert {len(rows) for rows in client_rows} == {600}


def test_62_classes_by_hand() -> None:
    """s = 10: 100 uniform are 1 or 2 of each class; 900 dominant are 90 of each digit, 34 or 35 of each letter."""
    counts = Share(clients=3, share=10).class_counts(1000, 62, EMNIST)
    assert counts[0].tolist() == [92] * 10 + [2] * 28 + [1] * 24
    # Client 1: the extra 38 begin at class 38 and end at class 13; the extra 16 of 900 = 26 * 34 + 16 go to A to P.
    assert counts[1].tolist() == [2] * 10 + [37] * 4 + [36] * 12 + [35] * 10 + [1] * 2 + [2] * 24
    # Client 2: they go on at class 14.
    assert counts[2, :36].tolist() == [1] * 14 + [2] * 22
    assert counts.sum(1).tolist() == [1000] * 3


def test_percent_is_exact() -> None:
    """18.4 % of 375 are 69, although 375 * 18.4 / 100 falls short of it in floating point."""
    counts = Share(clients=5, share=18.4).class_counts(375, CLASSES, RING)
    # 306 go to the dominant classes, 102 each; of 69 the last class gets 6 and the others 7.
    assert counts[0].tolist() == [109, 109, 109, 7, 7, 7, 7, 7, 7, 6]


@settings(max_examples=60)
@given(
    clients=st.integers(1, 40),
    examples=st.none() | st.integers(1, 80),
    share=st.floats(0, 100),
    seed=st.integers(0, 10**6),
)
def test_the_split_is_that_of_the_counts(clients: int, examples: int | None, share: float, seed: int) -> None:
    data = input_of(balanced(2000), seed)
    partition = Share(clients=clients, examples=examples, share=share)
    size = min(2000 // clients, examples or 2000)
    if refusal(partition, data):
        # Refused only if some class is asked for too often.
        assert (partition.class_counts(size, CLASSES, RING).sum(0) > 200).any()
        return
    client_rows = partition.split(data)
    check_rows(partition, client_rows, data, disjoint=True)
    assert {len(rows) for rows in client_rows} == {size}
    counts = class_counts(client_rows, data.labels)
    np.testing.assert_array_equal(counts, partition.class_counts(size, CLASSES, RING))
    for i in range(clients):
        others = np.delete(counts[i], RING[i % 5])
        assert others.max() - others.min() <= 1
        # A tenth of s% each, rounded down or up.
        assert abs(others.mean() - size * share / 1000) < 1.5
