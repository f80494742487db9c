"""The interface of a partition, and parts that several share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate.core import Limits, option
from fedmate.core.options import check_options
from fedmate.errors import UserError

Indices = NDArray[np.int64]


class PartitionInput(NamedTuple):
    """The labelled samples that a partition splits.

    Attributes:
        labels: of the samples, `[samples]`.
        num_classes: how many classes there are.
        rng: the source of randomness.
        groups: groups of dominant classes, if the data set has them.
        clients: the natural client of each sample, numbered from 0, if known.
    """

    labels: Indices
    num_classes: int
    rng: np.random.Generator
    groups: tuple[tuple[int, ...], ...] = ()
    clients: Indices | None = None

    def by_class(self) -> list[Indices]:
        """Return the samples of each class in ascending order."""
        return group_by_client(np.arange(len(self.labels), dtype=np.int64), self.labels, self.num_classes)

    def shuffled_by_class(self) -> list[Indices]:
        """Return the samples of each class in random order."""
        return [self.rng.permutation(rows) for rows in self.by_class()]


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """A rule that splits samples over clients; its fields are its options."""

    clients: int = option(20, "number of clients (N)", Limits(at_least=1))
    examples: int | None = option(None, "maximum number of samples per client", Limits(at_least=1))
    redundant_clients: float = option(
        0.0, "share of clients that hold many copies of one sample", Limits(at_least=0, at_most=1)
    )
    redundant_samples: float = option(
        0.5, "share of such a client's samples that are copies", Limits(at_least=0, at_most=1)
    )

    def __post_init__(self) -> None:
        """Refuse options outside their limits."""
        check_options("partition", type(self), vars(self))

    def split(self, data: PartitionInput) -> list[Indices]:
        """Return the samples of each client, in ascending order, at least one each."""
        self.check(data)
        return [np.sort(rows) for rows in self.assign(data)]

    def check(self, data: PartitionInput) -> None:
        """Raise `UserError` if there cannot be that many clients."""
        if self.clients > len(data.labels):
            raise UserError(
                f"`partition.clients` is {self.clients}, but the data set has {len(data.labels)} samples; use at most "
                "as many clients as samples."
            )

    @abstractmethod
    def assign(self, data: PartitionInput) -> list[Indices]:
        """Return the samples of each client, at least one, in any order."""

    def cap(self, size: int) -> int:
        """Return `size`, or `examples` if that is less."""
        return size if self.examples is None else min(size, self.examples)


def group_by_client(rows: Indices, owners: Indices, count: int) -> list[Indices]:
    """Return the rows of each of `count` owners, in the order of `rows`."""
    # Sorting once is fast; a search for each owner would take hours with many.
    ends = np.bincount(owners, minlength=count).cumsum()
    return np.split(rows[np.argsort(owners, kind="stable")], ends[:-1])


def repeat_samples(
    client_rows: Sequence[Indices], client_share: float, sample_share: float, rng: np.random.Generator
) -> list[Indices]:
    """Return the samples of each client, where some clients hold many copies of one sample.

    This is the paper's redundancy experiment. Sizes of clients do not change, so the class of the copied sample gets
    more weight.

    Args:
        client_rows: the samples of each client, in ascending order.
        client_share: the share of clients that get copies, rounded to the nearest number.
        sample_share: the share of such a client's samples that copies replace, rounded down.
        rng: the source of randomness.
    """
    # The small addition undoes rounding: 0.29 * 50 is 14.499999999999998.
    total = len(client_rows)
    count = math.floor(client_share * total + 0.5 + 1e-9)
    if client_share and not count:
        raise UserError(
            f"`partition.redundant_clients` is {client_share}, which of {total} clients is none; raise it, or set it "
            "to 0."
        )
    result = list(client_rows)
    # In the order of clients, as each draws in turn.
    for i in sorted(rng.permutation(total)[:count].tolist()):
        rows = client_rows[i].copy()
        copied = rows[rng.integers(len(rows))]
        rows[rng.permutation(len(rows))[: math.floor(sample_share * len(rows) + 1e-9)]] = copied
        result[i] = np.sort(rows)
    return result
