"""What a partition is: a way to deal labelled samples to clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate.core import Limits, option
from fedmate.core.options import check_options
from fedmate.errors import UserError

Indices = NDArray[np.int64]


class PartitionInput(NamedTuple):
    """What is dealt.

    Attributes:
        labels: of the samples, `[samples]`.
        num_classes: how many classes there are.
        rng: where all randomness comes from.
        groups: classes that dominate clients together, if the data set names them.
        clients: whose each sample is, numbered from 0, if the data set tells.
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
    """A way to deal samples; fields are its options."""

    clients: int = option(20, "how many clients there are (N)", Limits(at_least=1))
    examples: int | None = option(None, "the most samples a client gets", Limits(at_least=1))
    redundant_clients: float = option(
        0.0, "share of clients that hold one of their samples many times", Limits(at_least=0, at_most=1)
    )
    redundant_samples: float = option(
        0.5, "the share of such a client's places that this sample takes", Limits(at_least=0, at_most=1)
    )

    def __post_init__(self) -> None:
        """Refuse options outside their limits."""
        check_options("partition", type(self), vars(self))

    def split(self, data: PartitionInput) -> list[Indices]:
        """Return which samples each client holds, in ascending order, at least one each."""
        self.check(data)
        client_rows = [np.sort(rows) for rows in self.assign(data)]
        empty = next((i for i, rows in enumerate(client_rows) if not len(rows)), None)
        if empty is not None:
            raise UserError(
                f"`partition.clients` makes {len(client_rows)} clients, but client {empty} gets no sample; use "
                "fewer, or another partition."
            )
        return client_rows

    def check(self, data: PartitionInput) -> None:
        """Raise `UserError` if there cannot be that many clients."""
        if self.clients > len(data.labels):
            raise UserError(
                f"`partition.clients` is {self.clients}, but the data set has {len(data.labels)} samples; use at most "
                "as many clients as samples."
            )

    @abstractmethod
    def assign(self, data: PartitionInput) -> list[Indices]:
        """Return which samples each client holds, in any order."""

    def cap(self, size: int) -> int:
        """Return `size`, or `examples` if that is less."""
        return size if self.examples is None else min(size, self.examples)


def group_by_client(rows: Indices, owners: Indices, count: int) -> list[Indices]:
    """Give each of `rows` to its owner, a number below `count`; each client's rows keep their order.

    Sorted once for everybody: looking through all rows for each owner would take hours with many.
    """
    ends = np.bincount(owners, minlength=count).cumsum()
    return np.split(rows[np.argsort(owners, kind="stable")], ends[:-1])
