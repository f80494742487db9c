"""Given: samples that came split into clients already, from Python, or that lie with sites of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, final

from fedmate.errors import UserError
from fedmate.partitions.base import Deck, Partition


@final
@dataclass(frozen=True, kw_only=True)
class Given(Partition):
    """Clients as they are: those of `fedmate.run(data=fedmate.Sites(...))`, or the sites of the data set `sites`."""

    def deal(self, deck: Deck) -> NoReturn:
        """Say that there is nothing to deal."""
        raise UserError(
            "`partition.name` is `given`, which takes clients as they are; call `fedmate.run` with "
            "`data=fedmate.Sites(...)`, or choose another partition."
        )
