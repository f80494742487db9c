"""Share: a part of each client's samples is uniform over classes, the rest comes from three dominant classes.

The paper's s%: `share` percent uniform. Clients fall into groups of dominant classes {0,1,2}, {2,3,4}, {4,5,6}, ...,
the last of which closes the ring; client i belongs to group i modulo the number of groups. Clients never overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from fedmate.core import Limits, option
from fedmate.errors import UserError
from fedmate.partitions.base import Deck, Indices, Partition

DOMINANT = 3
"""How many classes dominate a client."""


@final
@dataclass(frozen=True, kw_only=True)
class Share(Partition):
    """Label skew by dominant classes, as in the paper's Table 1."""

    share: float = option(
        10.0, "percent of a client's samples that is uniform over classes (s)", Limits(at_least=0, at_most=100)
    )

    def deal(self, deck: Deck) -> list[Indices]:
        """Deal each class from one shuffled pile."""
        if deck.num_classes <= DOMINANT:
            raise UserError(
                f"`partition.name` is `share`, which needs over {DOMINANT} classes, not {deck.num_classes}."
            )
        piles = deck.shuffled_classes()
        available = np.array([len(pile) for pile in piles])
        size = self.cap(len(deck.labels) // self.clients)
        counts = self.class_counts(size, deck.num_classes)
        self._check(counts, available)
        ends = counts.cumsum(axis=0)
        return [
            np.concatenate([pile[end - n : end] for pile, n, end in zip(piles, counts[i], ends[i], strict=True)])
            for i in range(self.clients)
        ]

    def class_counts(self, size: int, num_classes: int) -> Indices:
        """Return how many samples of each class each client gets, `[clients, classes]`."""
        counts = np.zeros((self.clients, num_classes), dtype=np.int64)
        # The small addition undoes rounding: 18.4 percent of 375 is 68.99999999999999.
        uniform = math.floor(size * self.share / 100 + 1e-9)
        num_groups = -(-num_classes // 2)
        for i in range(self.clients):
            first = 2 * (i % num_groups)
            dominant = [(first + j) % num_classes for j in range(DOMINANT)]
            _deal_evenly(counts[i], list(range(num_classes)), uniform, i)
            _deal_evenly(counts[i], dominant, size - uniform, i)
        return counts

    def _check(self, counts: Indices, available: Indices) -> None:
        short = np.flatnonzero(counts.sum(axis=0) > available)
        if not len(short):
            return
        k, size = int(short[0]), int(counts[0].sum())
        fitting = [n for n in range(1, size) if (self.class_counts(n, len(available)).sum(0) <= available).all()]
        advice = "use fewer `partition.clients`" if self.clients > 1 else "use another partition"
        if fitting:
            advice = f"set `partition.examples` to at most {fitting[-1]}"
        raise UserError(
            f"`partition.examples` gives {size} samples to each of {self.clients} clients, which takes "
            f"{counts[:, k].sum()} of class {k}, but the data set has {available[k]}; {advice}."
        )


def _deal_evenly(counts: Indices, classes: list[int], total: int, start: int) -> None:
    """Add `total` samples over `classes`; what does not divide goes round, beginning at the client's number."""
    each, rest = divmod(total, len(classes))
    counts[classes] += each
    for j in range(rest):
        counts[classes[(start + j) % len(classes)]] += 1
