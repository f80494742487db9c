"""What the tests of partitions share: labels, splits, and what every partition promises."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmate.data.partitions import Partition, PartitionInput
from fedmate.errors import UserError

Labels = NDArray[np.int64]

CLASSES = 10


def balanced(samples: int, classes: int = CLASSES) -> Labels:
    """Labels in random order, as many of each class as of the others (or one more)."""
    labels: Labels = np.random.default_rng(0).permutation(np.arange(samples, dtype=np.int64) % classes)
    return labels


CIFAR = balanced(50_000)


def input_of(labels: Labels, seed: int = 0, classes: int = CLASSES, **more: Any) -> PartitionInput:
    return PartitionInput(labels, classes, np.random.default_rng(seed), **more)


def split(partition: Partition, labels: Labels, seed: int = 0, classes: int = CLASSES, **more: Any) -> list[Labels]:
    return partition.split(input_of(labels, seed, classes, **more))


def class_counts(client_rows: list[Labels], labels: Labels, classes: int = CLASSES) -> Labels:
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in client_rows])


def refusal(partition: Partition, data: PartitionInput) -> str | None:
    """The sentence with which a partition refuses, if it does."""
    try:
        partition.split(data)
    except UserError as error:
        return str(error)
    return None


def check_rows(partition: Partition, client_rows: list[Labels], data: PartitionInput, *, disjoint: bool) -> None:
    """What every partition promises."""
    assert partition.clients in (None, len(client_rows))
    for rows in client_rows:
        assert len(rows) >= 1
        assert partition.examples is None or len(rows) <= partition.examples
        assert rows.dtype == np.int64
        # Ascending without equals: sorted, and no sample twice.
        assert (np.diff(rows) > 0).all()
        assert rows[0] >= 0
        assert rows[-1] < len(data.labels)
    if disjoint:
        held = np.concatenate(client_rows)
        assert len(np.unique(held)) == len(held)


def digest(client_rows: list[Labels]) -> str:
    found = hashlib.sha256()
    for rows in client_rows:
        found.update(f"{len(rows)}\n".encode() + rows.astype("<i8").tobytes())
    return found.hexdigest()
