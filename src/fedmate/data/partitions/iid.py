"""IID: shuffled samples in equal parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from fedmate.data.partitions.base import Indices, Partition, PartitionInput


@final
@dataclass(frozen=True, kw_only=True)
class IID(Partition):
    """The same distribution and size for each client, without overlap."""

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Cut shuffled rows into equal parts."""
        size = self.cap(len(data.labels) // self.clients)
        rows = data.rng.permutation(np.arange(len(data.labels), dtype=np.int64))
        return [rows[i * size : (i + 1) * size] for i in range(self.clients)]
