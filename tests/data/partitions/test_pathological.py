"""Pathological gives each client a few classes, as many samples as the paper says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.data.partitions.checks import (
    CLASSES,
    Labels,
    balanced,
    check_rows,
    class_counts,
    input_of,
    split,
)

from fedmate.data.partitions.pathological import Pathological

any_labels = st.tuples(st.integers(1, 300), st.integers(0, 10**6)).map(
    lambda pair: np.random.default_rng(pair[1]).integers(0, CLASSES, pair[0])
)


@pytest.mark.parametrize(
    ("samples", "classes", "held", "each"), [(50_000, 10, 3, 833), (50_000, 100, 10, 250), (90_000, 10, 3, 1500)]
)
def test_sizes_of_the_paper(samples: int, classes: int, held: int, each: int) -> None:
    """CIFAR-10, CIFAR-100 and CINIC-10: training samples divided by clients and classes, rounded down."""
    labels, partition = balanced(samples, classes), Pathological(clients=20, classes_per_client=held)
    client_rows = split(partition, labels, classes=classes)
    check_rows(partition, client_rows, input_of(labels), disjoint=False)
    counts = class_counts(client_rows, labels, classes)
    assert all(sorted(row.tolist()) == [0] * (classes - held) + [each] * held for row in counts)
    assert {len(rows) for rows in client_rows} == {held * each}


def test_a_small_class_gives_what_it_has() -> None:
    labels = np.repeat(np.arange(CLASSES, dtype=np.int64), [2] + [200] * 9)
    client_rows = split(Pathological(clients=5, classes_per_client=10), labels)
    counts = class_counts(client_rows, labels)
    assert (counts[:, 0] == 2).all()
    assert (counts[:, 1:] == 36).all()


@settings(max_examples=60)
@given(
    labels=any_labels,
    clients=st.integers(1, 40),
    examples=st.none() | st.integers(1, 60),
    held=st.integers(1, CLASSES),
    seed=st.integers(0, 10**6),
)
def test_everybody_holds_a_few_classes(
    labels: Labels, clients: int, examples: int | None, held: int, seed: int
) -> None:
    assume(clients <= len(labels))
    assume(examples is None or examples >= held)
    assume(held <= len(set(labels.tolist())))
    partition = Pathological(clients=clients, examples=examples, classes_per_client=held)
    data = input_of(labels, seed)
    client_rows = partition.split(data)
    check_rows(partition, client_rows, data, disjoint=False)
    counts = class_counts(client_rows, labels)
    assert ((counts > 0).sum(1) == held).all()
    each = max(1, len(labels) // (clients * held))
    if examples is None:
        expected = np.minimum(np.bincount(labels, minlength=CLASSES), each)
        assert ((counts == 0) | (counts == expected)).all()
