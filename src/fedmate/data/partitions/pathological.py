"""Pathological: each client holds a few classes only, as in the paper's Table 2.

A client draws its classes at random, then the same number of samples from each: training samples / (clients * classes
per client), rounded down, or all samples of the class. Clients may share samples, and a class may have no client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from fedmate.core import Limits, option
from fedmate.data.partitions.base import Indices, Partition, PartitionInput
from fedmate.errors import UserError


@final
@dataclass(frozen=True, kw_only=True)
class Pathological(Partition):
    """A few random classes per client, as many samples of each."""

    classes_per_client: int = option(3, "number of classes per client (c)", Limits(at_least=1))

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Draw classes, then samples."""
        held, by_class = self.classes_per_client, [rows for rows in data.by_class() if len(rows)]
        if held > len(by_class):
            raise UserError(
                f"`partition.classes_per_client` is {held}, but the data set has {len(by_class)} classes; use at most "
                "that many."
            )
        # At least one sample per class, even where there are few samples.
        size = self.cap(held * max(1, len(data.labels) // (self.clients * held)))
        if size < held:
            raise UserError(
                f"`partition.examples` is {size}, fewer than `partition.classes_per_client`, {held}; give each class "
                "at least one sample."
            )
        return [self._draw(by_class, size, i, data.rng) for i in range(self.clients)]

    def _draw(self, by_class: list[Indices], size: int, client: int, rng: np.random.Generator) -> Indices:
        held, rows = self.classes_per_client, []
        for j, k in enumerate(np.sort(rng.choice(len(by_class), held, replace=False))):
            # A remainder is given round, beginning at the client's number.
            wanted = size // held + ((j - client) % held < size % held)
            rows.append(rng.choice(by_class[k], min(wanted, len(by_class[k])), replace=False))
        return np.concatenate(rows)
