"""What the tests of partitions share: labels, dealing, and what every partition promises."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmate.errors import UserError
from fedmate.partitions import PARTITIONS, Deck, Partition
from fedmate.partitions.share import Share

Labels = NDArray[np.int64]

CLASSES = 10
DEALT = tuple(name for name in PARTITIONS.names() if name != "given")
"""The partitions that deal; what is `given` in Python is dealt already."""

OVERLAPPING = ("pathological",)
"""Those in which two clients may hold the same sample."""


def balanced(samples: int, classes: int = CLASSES) -> Labels:
    """Labels in random order, as many of each class as of the others (or one more)."""
    labels: Labels = np.random.default_rng(0).permutation(np.arange(samples, dtype=np.int64) % classes)
    return labels


CIFAR = balanced(50_000)


def deck_of(labels: Labels, seed: int = 0, classes: int = CLASSES, **more: Any) -> Deck:
    return Deck(labels, classes, np.random.default_rng(seed), **more)


def split(partition: Partition, labels: Labels, seed: int = 0, classes: int = CLASSES, **more: Any) -> list[Labels]:
    return partition.split(deck_of(labels, seed, classes, **more))


def class_counts(hands: list[Labels], labels: Labels, classes: int = CLASSES) -> Labels:
    return np.stack([np.bincount(labels[hand], minlength=classes) for hand in hands])


def attempt(partition: Partition, deck: Deck) -> tuple[list[Labels] | None, str]:
    """What a partition deals, or the sentence with which it refuses."""
    try:
        return partition.split(deck), ""
    except UserError as error:
        return None, str(error)


def refusal(partition: Partition, deck: Deck) -> str | None:
    """The sentence with which a partition refuses, if it does."""
    return attempt(partition, deck)[1] or None


def without_skew(name: str, clients: int, examples: int | None = None) -> Partition:
    """A partition of this kind that can deal every sample there is."""
    partition = PARTITIONS[name](clients=clients, examples=examples)
    return dataclasses.replace(partition, share=100) if isinstance(partition, Share) else partition


def check_hands(partition: Partition, hands: list[Labels], deck: Deck, *, disjoint: bool) -> None:
    """What every partition promises."""
    assert partition.clients in (None, len(hands))
    for hand in hands:
        assert len(hand) >= 1
        assert partition.examples is None or len(hand) <= partition.examples
        assert hand.dtype == np.int64
        # Ascending without equals: sorted, and no sample twice.
        assert (np.diff(hand) > 0).all()
        assert hand[0] >= 0
        assert hand[-1] < len(deck.labels)
    if disjoint:
        held = np.concatenate(hands)
        assert len(np.unique(held)) == len(held)


def digest(hands: list[Labels]) -> str:
    """What tells hands from others: the SHA-256 of everybody's rows."""
    found = hashlib.sha256()
    for hand in hands:
        found.update(f"{len(hand)}\n".encode() + hand.astype("<i8").tobytes())
    return found.hexdigest()
