"""Share: a part of each client's samples is uniform over classes, the rest comes from a few dominant classes.

The paper's s%: `share` percent are uniform. Fixed groups of dominant classes are those of the data set, or {0,1,2},
{2,3,4}, {4,5,6}, ... in a ring; client i belongs to group i modulo their number, as in the authors' code. With
`groups = "random"` each client draws its own group, as in the paper's text. Clients do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from fedmate.core import Limits, option
from fedmate.data.partitions.base import Indices, Partition, PartitionInput, group_by_client
from fedmate.errors import UserError

DOMINANT = 3
"""The size of a fixed group, and the default of `dominant`."""


@final
@dataclass(frozen=True, kw_only=True)
class Share(Partition):
    """Label skew by dominant classes, as in the paper's Table 1."""

    share: float = option(
        10.0, "percentage of a client's samples that is uniform over classes (s)", Limits(at_least=0, at_most=100)
    )
    groups: Literal["fixed", "random"] = option(
        "fixed", "dominant classes: `fixed` groups, or `random` ones for each client"
    )
    dominant: int = option(DOMINANT, "number of dominant classes if `groups` is `random`", Limits(at_least=1))

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Split each class after a shuffle."""
        by_class = data.shuffled_by_class()
        size = self.cap(len(data.labels) // self.clients)
        counts = self.class_counts(size, data.num_classes, self._groups(data))
        taken, available = counts.sum(axis=0), [len(rows) for rows in by_class]
        short = np.flatnonzero(taken > available)
        if len(short):
            k = short[0]
            raise UserError(
                f"`partition.clients` is {self.clients}, which with {size} samples each take {taken[k]} of class {k}, "
                f"but the data set has {available[k]}; use fewer `partition.examples` or `partition.clients`."
            )
        rows = np.concatenate([rows[:used] for rows, used in zip(by_class, taken, strict=True)])
        owners = np.tile(np.arange(self.clients), data.num_classes)
        return group_by_client(rows, np.repeat(owners, counts.T.ravel()), self.clients)

    def class_counts(self, size: int, num_classes: int, groups: Sequence[Sequence[int]]) -> Indices:
        """Return the number of samples of each class for each client of `size` samples, `[clients, classes]`."""
        # The small addition undoes rounding: 18.4 percent of 375 is 68.99999999999999.
        uniform = math.floor(size * self.share / 100 + 1e-9)
        clients = np.arange(self.clients)
        counts = _evenly(uniform, num_classes, self.clients)
        for number, group in enumerate(groups):
            members = clients[number :: len(groups)]
            counts[members[:, None], group] += _evenly(size - uniform, len(group), len(members))
        return counts

    def _groups(self, data: PartitionInput) -> Sequence[Sequence[int]]:
        if self.groups == "random":
            if self.dominant > data.num_classes:
                raise UserError(
                    f"`partition.dominant` is {self.dominant}, but the data set has {data.num_classes} classes; use at "
                    "most that many."
                )
            draws = (data.rng.choice(data.num_classes, self.dominant, replace=False) for _ in range(self.clients))
            return [sorted(drawn.tolist()) for drawn in draws]
        if self.dominant != DOMINANT:
            raise UserError(
                f"`partition.dominant` is {self.dominant}, but fixed groups have their own size; leave it out, or "
                "set `partition.groups` to `random`."
            )
        if not data.groups and data.num_classes <= DOMINANT:
            raise UserError(
                f"`partition.name` is `share`, which needs over {DOMINANT} classes, not {data.num_classes}; use "
                "another partition."
            )
        return data.groups or ring(data.num_classes)


def ring(num_classes: int) -> list[list[int]]:
    """Return the groups {0,1,2}, {2,3,4}, ...: each shares a class with the next, and the last with the first.

    Example:
        >>> ring(7)
        [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 0, 1]]
    """
    return [[(first + j) % num_classes for j in range(DOMINANT)] for first in range(0, num_classes, 2)]


def _evenly(total: int, kinds: int, clients: int) -> Indices:
    """Divide `total` by `kinds` for each client, `[clients, kinds]`.

    A remainder is given round: each client goes on after the one before it, so that the sum over clients is even.
    """
    each, rest = divmod(total, kinds)
    starts = np.arange(clients)[:, None] * rest
    return each + ((np.arange(kinds) - starts) % kinds < rest)
