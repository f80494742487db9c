"""IID: every client draws from the same distribution, without overlap and of the same size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fedmate.partitions.base import Deck, Indices, Partition


@final
@dataclass(frozen=True, kw_only=True)
class IID(Partition):
    """No skew at all."""

    def deal(self, deck: Deck) -> list[Indices]:
        """Cut one shuffled pile."""
        size = self.cap(len(deck.labels) // self.clients)
        pile = deck.rng.permutation(len(deck.labels))
        return [pile[i * size : (i + 1) * size] for i in range(self.clients)]
