"""IID: every client draws from the same distribution, without overlap and of the same size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from fedmate.partitions.base import Deck, Indices, Partition


@final
@dataclass(frozen=True, kw_only=True)
class IID(Partition):
    """No skew at all."""

    def deal(self, deck: Deck) -> list[Indices]:
        """Cut one shuffled pile."""
        size = self.cap(len(deck.labels) // self.clients)
        pile = deck.rng.permutation(np.arange(len(deck.labels), dtype=np.int64))
        return [pile[i * size : (i + 1) * size] for i in range(self.clients)]
