"""Dirichlet: each class is split over clients in proportions drawn from a Dirichlet distribution.

This is the class-wise draw of Yurochkin et al. (2019), "Bayesian nonparametric federated learning of neural networks",
and of NIID-Bench (Li et al., 2022), not the client-wise one of Hsu et al. (2019). Clients do not overlap and differ in
size; `examples` cuts large ones at random. There is no minimum of 10 samples with a new draw, as in NIID-Bench: a
client without samples receives one from the largest client.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import Limits, option
from fedmate.data.partitions.base import Indices, Partition, PartitionInput, group_by_client


@final
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label and size skew: proportions of each class from a Dirichlet distribution."""

    alpha: float = option(0.5, "concentration; small values give each class to few clients", Limits(above=0))

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Split one class after the other."""
        by_class = data.shuffled_by_class()
        owners = np.concatenate([self._owners(len(rows), data.rng) for rows in by_class])
        client_rows = group_by_client(np.concatenate(by_class), owners, self.clients)
        client_rows = [data.rng.permutation(rows) for rows in client_rows]
        _fill_empty(client_rows)
        return [rows[: self.cap(len(rows))] for rows in client_rows]

    def _owners(self, samples: int, rng: np.random.Generator) -> Indices:
        """Return the client of each sample of a class, in ascending order."""
        ends = np.round(self._shares(rng).cumsum() * samples).clip(max=samples).astype(np.int64)
        # Rounding must not lose the last sample.
        ends[-1] = samples
        return np.repeat(np.arange(self.clients), np.diff(ends, prepend=0))

    def _shares(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw proportions; equal ones where a huge alpha overflows."""
        shares = rng.dirichlet(np.full(self.clients, self.alpha))
        usable = np.isfinite(shares).all() and np.isclose(shares.sum(), 1)
        return shares if usable else np.full(self.clients, 1 / self.clients)


def _fill_empty(client_rows: list[Indices]) -> None:
    """Give each empty client a sample of the largest client, the first one of equals."""
    sizes = [(-len(rows), i) for i, rows in enumerate(client_rows)]
    heapq.heapify(sizes)
    for i, rows in enumerate(client_rows):
        if not len(rows):
            size, largest = sizes[0]
            client_rows[i], client_rows[largest] = client_rows[largest][:1], client_rows[largest][1:]
            heapq.heapreplace(sizes, (size + 1, largest))
