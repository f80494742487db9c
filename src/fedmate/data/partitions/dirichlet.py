"""Clients with random proportions of each class, or all alike.

`dirichlet` is the class-wise draw of Yurochkin et al., "Bayesian nonparametric federated learning of neural networks"
(ICML 2019), as in NIID-Bench (Li et al., 2022). It is not the client-wise one of Hsu et al. (2019). Clients do not
overlap and differ in size; `examples` cuts large ones at random. NIID-Bench draws again until each client has 10
samples. Here the first draw counts, and a client without samples receives one from the largest client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

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
        sizes = np.array([len(rows) for rows in client_rows])
        for i in np.flatnonzero(sizes == 0):
            largest = sizes.argmax()
            client_rows[i], client_rows[largest] = client_rows[largest][:1], client_rows[largest][1:]
            sizes[i], sizes[largest] = 1, sizes[largest] - 1
        return [rows[: self.cap(len(rows))] for rows in client_rows]

    def _owners(self, samples: int, rng: np.random.Generator) -> Indices:
        """Return the client of each sample of a class, in ascending order."""
        shares = rng.dirichlet(np.full(self.clients, self.alpha))
        if not np.isclose(shares.sum(), 1):
            # A huge alpha overflows.
            shares = np.full(self.clients, 1 / self.clients)
        ends = np.round(shares.cumsum() * samples).clip(max=samples).astype(np.int64)
        # Rounding must not lose the last sample.
        ends[-1] = samples
        return np.repeat(np.arange(self.clients), np.diff(ends, prepend=0))


@final
@dataclass(frozen=True, kw_only=True)
class IID(Partition):
    """The same distribution and size for each client, without overlap."""

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Cut shuffled rows into equal parts."""
        size = self.cap(len(data.labels) // self.clients)
        rows = data.rng.permutation(np.arange(len(data.labels), dtype=np.int64))
        return [rows[i * size : (i + 1) * size] for i in range(self.clients)]
