"""Share: a part of each client's samples is uniform over classes, the rest comes from a few dominant classes.

The paper's s%: `share` percent uniform. Clients fall into fixed groups of dominant classes: those that the data set
names, or {0,1,2}, {2,3,4}, {4,5,6}, ..., the last of which closes the ring; client i belongs to group i modulo the
number of groups. So the authors' code has it; with `groups = "random"` each client draws its own, as the paper's text
says. Clients never overlap.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from fedmate.core import Limits, option
from fedmate.data.partitions.base import Indices, Partition, PartitionInput, group_by_client
from fedmate.errors import UserError

DOMINANT = 3
"""How many classes dominate a client, where nothing else is said."""


@final
@dataclass(frozen=True, kw_only=True)
class Share(Partition):
    """Label skew by dominant classes, as in the paper's Table 1."""

    share: float = option(
        10.0, "percent of a client's samples that is uniform over classes (s)", Limits(at_least=0, at_most=100)
    )
    groups: Literal["fixed", "random"] = option(
        "fixed", "dominant classes: `fixed` groups that clients share, or drawn at `random` by each client"
    )
    dominant: int = option(DOMINANT, "how many classes a client draws if `groups` is `random`", Limits(at_least=1))

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Deal each class from one shuffled rows."""
        self._check_classes(data)
        by_class = data.shuffled_by_class()
        groups = self._groups(data)
        size = self.cap(len(data.labels) // self.clients)
        counts = self.class_counts(size, data.num_classes, groups)
        self._check_counts(counts, np.array([len(rows) for rows in by_class]), groups)
        rows = np.concatenate([rows[:used] for rows, used in zip(by_class, counts.sum(axis=0), strict=True)])
        owners = np.tile(np.arange(self.clients), data.num_classes)
        return group_by_client(rows, np.repeat(owners, counts.T.ravel()), self.clients)

    def class_counts(self, size: int, num_classes: int, groups: Sequence[Sequence[int]]) -> Indices:
        """Return how many samples of each class each client gets, `[clients, classes]`.

        Args:
            size: how many samples a client gets.
            num_classes: how many classes there are.
            groups: dominant classes; client i has those of group i modulo their number.
        """
        # The small addition undoes rounding: 18.4 percent of 375 is 68.99999999999999.
        uniform = math.floor(size * self.share / 100 + 1e-9)
        clients = np.arange(self.clients)
        counts = _evenly(uniform, num_classes, self.clients)
        for number, group in enumerate(groups):
            members = clients[number :: len(groups)]
            counts[members[:, None], group] += _evenly(size - uniform, len(group), len(members))
        return counts

    def _groups(self, data: PartitionInput) -> Sequence[Sequence[int]]:
        if self.groups == "fixed":
            return data.groups or ring(data.num_classes)
        draws = (data.rng.choice(data.num_classes, self.dominant, replace=False) for _ in range(self.clients))
        return [sorted(drawn.tolist()) for drawn in draws]

    def _check_classes(self, data: PartitionInput) -> None:
        """Refuse what makes no groups."""
        if self.groups == "random" and self.dominant > data.num_classes:
            raise UserError(
                f"`partition.dominant` is {self.dominant}, but the data set has {data.num_classes} classes; use at "
                "most that many."
            )
        if self.groups == "fixed" and self.dominant != DOMINANT:
            raise UserError(
                f"`partition.dominant` is {self.dominant}, but fixed groups have a size of their own; leave it out, or "
                "set `partition.groups` to `random`."
            )
        if self.groups == "fixed" and not data.groups and data.num_classes <= DOMINANT:
            raise UserError(
                f"`partition.name` is `share`, which needs over {DOMINANT} classes, not {data.num_classes}; use "
                "another partition."
            )

    def _check_counts(self, counts: Indices, available: Indices, groups: Sequence[Sequence[int]]) -> None:
        """Refuse to take more of a class than there is, and say what would fit."""
        short = np.flatnonzero(counts.sum(axis=0) > available)
        if not len(short):
            return
        k, size = int(short[0]), int(counts[0].sum())

        def too_large(smaller: int) -> bool:
            taken = self.class_counts(smaller, len(available), groups).sum(axis=0)
            return bool((taken > available).any())

        # Clients that get more samples take no fewer of any class, so sizes that fit come before those that do not.
        fitting = bisect_right(range(1, size), False, key=too_large)
        advice = "use another partition"
        if fitting:
            advice = f"set `partition.examples` to at most {fitting}"
        elif self.clients > 1 and available[k]:
            advice = "use fewer `partition.clients`"
        raise UserError(
            f"`partition.clients` is {self.clients}, who with {size} samples each take {counts[:, k].sum()} of class "
            f"{k}, but the data set has {available[k]}; {advice}."
        )


def ring(num_classes: int) -> list[list[int]]:
    """Return the groups {0,1,2}, {2,3,4}, ...: each shares a class with the next, and the last with the first.

    Example:
        >>> ring(7)
        [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 0, 1]]
    """
    return [[(first + j) % num_classes for j in range(DOMINANT)] for first in range(0, num_classes, 2)]


def _evenly(total: int, kinds: int, clients: int) -> Indices:
    """Divide `total` by `kinds` for each client, `[clients, kinds]`.

    What does not divide is dealt round: each client goes on where the one before it stopped, so that together they take
    as many of each kind.
    """
    each, rest = divmod(total, kinds)
    starts = np.arange(clients)[:, None] * rest
    return each + ((np.arange(kinds) - starts) % kinds < rest)
