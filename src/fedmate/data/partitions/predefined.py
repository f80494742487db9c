"""Given: samples that came split into clients already, from Python, or that lie with sites of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, final

from fedmate.data.partitions.base import Partition, PartitionInput
from fedmate.errors import UserError


@final
@dataclass(frozen=True, kw_only=True)
class Predefined(Partition):
    """Clients as they are: those of `fedmate.run(data=fedmate.Sites(...))`, or the sites of the data set `sites`."""

    def assign(self, data: PartitionInput) -> NoReturn:
        """Say that there is nothing to deal."""
        raise UserError(
            "`partition.name` is `given`, which takes clients as they are; call `fedmate.run` with "
            "`data=fedmate.Sites(...)`, or choose another partition."
        )
