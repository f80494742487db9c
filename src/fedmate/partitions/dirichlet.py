"""Dirichlet: each class is dealt to clients in proportions drawn from a Dirichlet distribution.

Clients never overlap and differ in size; `examples` cuts the large ones, at random. A client that would get nothing
receives one sample from the largest, so that it can take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from fedmate.core import Limits, option
from fedmate.partitions.base import Deck, Indices, Partition


@final
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label and size skew of adjustable strength."""

    alpha: float = option(0.5, "concentration; small values give each class to few clients", Limits(above=0))

    def deal(self, deck: Deck) -> list[Indices]:
        """Deal one class after the other."""
        hands: list[list[Indices]] = [[] for _ in range(self.clients)]
        for pile in deck.shuffled_classes():
            shares = self._shares(deck.rng)
            cuts = np.round(shares.cumsum()[:-1] * len(pile)).astype(np.int64)
            for hand, part in zip(hands, np.split(pile, cuts), strict=True):
                hand.append(part)
        rows = [deck.rng.permutation(np.concatenate(hand)) for hand in hands]
        for i in range(self.clients):
            if not len(rows[i]):
                largest = max(range(self.clients), key=lambda j: len(rows[j]))
                rows[i], rows[largest] = rows[largest][:1], rows[largest][1:]
        return [hand[: self.cap(len(hand))] for hand in rows]

    def _shares(self, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Draw proportions; where alpha overflows they are equal, which is what it tends to."""
        shares = rng.dirichlet(np.full(self.clients, self.alpha))
        usable = np.isfinite(shares).all() and np.isclose(shares.sum(), 1)
        return shares if usable else np.full(self.clients, 1 / self.clients)
