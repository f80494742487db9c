"""Partitions: how the samples of a data set are split over clients, and the table that names them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import Limits, option
from fedmate.core.options import Registry, check_options
from fedmate.errors import UserError

Indices = NDArray[np.int64]

DOMINANT = 3
"""The size of a fixed group, and the default of `dominant`."""


class PartitionInput(NamedTuple):
    """The labelled samples that a partition splits."""

    labels: Indices  # `[samples]`
    num_classes: int
    rng: np.random.Generator
    groups: tuple[tuple[int, ...], ...] = ()  # of dominant classes, if the data set has them
    clients: Indices | None = None  # the natural client of each sample, numbered from 0, if known

    def by_class(self) -> list[Indices]:
        """Return the samples of each class in ascending order."""
        return group_by_client(np.arange(len(self.labels), dtype=np.int64), self.labels, self.num_classes)


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
        if self.clients is not None and self.clients > len(data.labels):
            raise UserError(
                f"`partition.clients` is {self.clients}, but the data set has {len(data.labels)} samples; use at most "
                "as many clients as samples."
            )
        return [np.sort(rows) for rows in self.assign(data)]

    @abstractmethod
    def assign(self, data: PartitionInput) -> list[Indices]:
        """Return the samples of each client, at least one, in any order."""

    def cap(self, size: int) -> int:
        """Return `size`, or `examples` if that is less."""
        return size if self.examples is None else min(size, self.examples)


@final
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label and size skew: proportions of each class from a Dirichlet distribution."""

    # The class-wise draw of Yurochkin et al. (ICML 2019), as in NIID-Bench, not the client-wise one of Hsu et al.
    alpha: float = option(0.5, "concentration; small values give each class to few clients", Limits(above=0))

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Split one class after the other; who would get nothing receives a sample from the largest client."""
        by_class = [data.rng.permutation(rows) for rows in data.by_class()]
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


@final
@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """The natural clients of the data set, each with its own samples; `examples` cuts large ones at random."""

    # Only here the number of clients is known already.
    clients: int | None = option(  # type: ignore[assignment]
        None, "number of clients, chosen at random; all if left out", Limits(at_least=1)
    )
    minimum: int = option(1, "clients with fewer samples are left out", Limits(at_least=1))

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Choose clients, and samples of each."""
        if data.clients is None:
            raise UserError(
                "`partition.name` is `natural`, but the data set has no natural clients; use another "
                "partition, or the data set `npz` with a file that has an array `train_client`."
            )
        _, owners, sizes = np.unique(data.clients, return_inverse=True, return_counts=True)
        client_rows = group_by_client(np.arange(len(owners), dtype=np.int64), owners, len(sizes))
        client_rows = [rows for rows in client_rows if len(rows) >= self.minimum]
        if not client_rows:
            raise UserError(
                f"`partition.minimum` is {self.minimum}, but no client has more than {sizes.max(initial=0)} samples; "
                "set it to at most that."
            )
        if self.clients is not None:
            if self.clients > len(client_rows):
                raise UserError(
                    f"`partition.clients` is {self.clients}, but {len(client_rows)} clients have at least "
                    f"`partition.minimum` samples, {self.minimum}; use at most that many."
                )
            # In the order of the data set.
            client_rows = [client_rows[i] for i in np.sort(data.rng.permutation(len(client_rows))[: self.clients])]
        return [data.rng.permutation(rows)[: self.cap(len(rows))] for rows in client_rows]


@final
@dataclass(frozen=True, kw_only=True)
class Predefined(Partition):
    """The clients of `fedmate.run(data=fedmate.Sites(...))`, or of the data set `sites`."""

    def assign(self, data: PartitionInput) -> NoReturn:
        """Refuse: nothing is left to split."""
        raise UserError(
            "`partition.name` is `given`, which takes clients as they are; call `fedmate.run` with "
            "`data=fedmate.Sites(...)`, or choose another partition."
        )


@final
@dataclass(frozen=True, kw_only=True)
class Pathological(Partition):
    """A few random classes per client, as many samples of each."""

    # As in the paper's Table 2: clients may share samples, and a class may have no client.
    classes_per_client: int = option(3, "number of classes per client (c)", Limits(at_least=1))

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Draw classes, then training samples / (clients * classes per client) of each, or all of the class."""
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


@final
@dataclass(frozen=True, kw_only=True)
class Share(Partition):
    """Label skew by dominant classes, as in the paper's Table 1.

    Of a client's samples `share` percent (the paper's s) are uniform over classes, the rest is of its dominant classes.
    Fixed groups are those of the data set or a ring; client i belongs to group i modulo their number, as in the
    authors' code. In the paper's text each client draws its own group.
    """

    share: float = option(
        10.0, "percentage of a client's samples that is uniform over classes (s)", Limits(at_least=0, at_most=100)
    )
    groups: Literal["fixed", "random"] = option(
        "fixed", "dominant classes: `fixed` groups, or `random` ones for each client"
    )
    dominant: int = option(DOMINANT, "number of dominant classes if `groups` is `random`", Limits(at_least=1))

    def assign(self, data: PartitionInput) -> list[Indices]:
        """Split each class after a shuffle."""
        by_class = [data.rng.permutation(rows) for rows in data.by_class()]
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
    """Divide `total` by `kinds` for each client, `[clients, kinds]`, so that the sum over clients is even, too."""
    each, rest = divmod(total, kinds)
    # A remainder is given round: each client goes on after the one before it.
    starts = np.arange(clients)[:, None] * rest
    return each + ((np.arange(kinds) - starts) % kinds < rest)


def group_by_client(rows: Indices, owners: Indices, count: int) -> list[Indices]:
    """Return the rows of each of `count` owners, in the order of `rows`."""
    # Sorting once is fast; a search for each owner would take hours with many.
    ends = np.bincount(owners, minlength=count).cumsum()
    return np.split(rows[np.argsort(owners, kind="stable")], ends[:-1])


def repeat_samples(
    client_rows: Sequence[Indices], client_share: float, sample_share: float, rng: np.random.Generator
) -> list[Indices]:
    """Return the samples of each client, where in a share of clients copies of one sample replace a share of the rest.

    This is the paper's redundancy experiment. Sizes of clients do not change, so the copied class gets more weight.
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


PARTITIONS: Registry[type[Partition]] = Registry(
    "partitions",
    {
        "dirichlet": "fedmate.data.partitions:Dirichlet",
        "given": "fedmate.data.partitions:Predefined",
        "iid": "fedmate.data.partitions:IID",
        "natural": "fedmate.data.partitions:Natural",
        "pathological": "fedmate.data.partitions:Pathological",
        "share": "fedmate.data.partitions:Share",
    },
)
