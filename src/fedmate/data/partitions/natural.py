"""Clients that exist already: in the data set, such as writers of characters, in Python, or as sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, final

import numpy as np

from fedmate.core import Limits, option
from fedmate.data.partitions.base import Indices, Partition, PartitionInput, group_by_client
from fedmate.errors import UserError


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
        _, owners = np.unique(_owners(data), return_inverse=True)
        client_rows = group_by_client(np.arange(len(owners), dtype=np.int64), owners, int(owners.max()) + 1)
        client_rows = [rows for rows in client_rows if len(rows) >= self.minimum]
        if self.clients is not None:
            # In the order of the data set.
            client_rows = [client_rows[i] for i in np.sort(data.rng.permutation(len(client_rows))[: self.clients])]
        return [data.rng.permutation(rows)[: self.cap(len(rows))] for rows in client_rows]

    def check(self, data: PartitionInput) -> None:
        """Refuse a data set without clients, or with too few."""
        _, sizes = np.unique(_owners(data), return_counts=True)
        found = int((sizes >= self.minimum).sum())
        if not found:
            raise UserError(
                f"`partition.minimum` is {self.minimum}, but no client has more than {sizes.max(initial=0)} samples; "
                "set it to at most that."
            )
        if self.clients is not None and self.clients > found:
            raise UserError(
                f"`partition.clients` is {self.clients}, but {found} clients have at least `partition.minimum` "
                f"samples, {self.minimum}; use at most that many."
            )


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


def _owners(data: PartitionInput) -> Indices:
    if data.clients is None:
        raise UserError(
            "`partition.name` is `natural`, but the data set has no natural clients; use another "
            "partition, or the data set `npz` with a file that has an array `train_client`."
        )
    return data.clients
