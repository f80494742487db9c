"""Dirichlet: each class is dealt to clients in proportions drawn from a Dirichlet distribution.

Clients never overlap and differ in size; `examples` cuts the large ones, at random. A client that would get nothing
receives one sample from the largest, so that it can take part.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import Limits, option
from fedmate.partitions.base import Deck, Indices, Partition, hand_out


@final
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label and size skew of adjustable strength."""

    alpha: float = option(0.5, "concentration; small values give each class to few clients", Limits(above=0))

    def deal(self, deck: Deck) -> list[Indices]:
        """Deal one class after the other."""
        piles = deck.shuffled_classes()
        owners = np.concatenate([self._owners(len(pile), deck.rng) for pile in piles])
        hands = hand_out(np.concatenate(piles), owners, self.clients)
        hands = [deck.rng.permutation(hand) for hand in hands]
        _fill_empty(hands)
        return [hand[: self.cap(len(hand))] for hand in hands]

    def _owners(self, samples: int, rng: np.random.Generator) -> Indices:
        """Return whose each sample of a class is: the first client's come first."""
        ends = np.round(self._shares(rng).cumsum() * samples).clip(max=samples).astype(np.int64)
        # Shares add up to one but for rounding, which must not lose the last sample.
        ends[-1] = samples
        return np.repeat(np.arange(self.clients), np.diff(ends, prepend=0))

    def _shares(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw proportions; where alpha overflows they are equal, which is what it tends to."""
        shares = rng.dirichlet(np.full(self.clients, self.alpha))
        usable = np.isfinite(shares).all() and np.isclose(shares.sum(), 1)
        return shares if usable else np.full(self.clients, 1 / self.clients)


def _fill_empty(hands: list[Indices]) -> None:
    """Let the largest hand of the moment, the first of equals, give a sample to each that has none."""
    sizes = [(-len(hand), i) for i, hand in enumerate(hands)]
    heapq.heapify(sizes)
    for i, hand in enumerate(hands):
        if not len(hand):
            size, largest = sizes[0]
            hands[i], hands[largest] = hands[largest][:1], hands[largest][1:]
            heapq.heapreplace(sizes, (size + 1, largest))
