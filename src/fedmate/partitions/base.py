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


class Deck(NamedTuple):
    """What is dealt.

    Attributes:
        labels: of every sample, `[samples]`.
        num_classes: how many classes there are.
        rng: where chance comes from.
    """

    labels: Indices
    num_classes: int
    rng: np.random.Generator

    def shuffled_classes(self) -> list[Indices]:
        """Return the samples of each class in random order."""
        return [self.rng.permutation(np.flatnonzero(self.labels == k)) for k in range(self.num_classes)]


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """A way to deal samples; fields are its options."""

    clients: int = option(20, "how many clients there are (N)", Limits(at_least=1))
    examples: int | None = option(None, "the most samples a client gets", Limits(at_least=1))

    def __post_init__(self) -> None:
        """Refuse options outside their limits."""
        check_options("partition", type(self), vars(self))

    def split(self, labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
        """Return which samples each client holds, in ascending order, at least one each."""
        if self.clients > len(labels):
            raise UserError(
                f"`partition.clients` is {self.clients}, but the data set has {len(labels)} samples; use at most as "
                "many clients as samples."
            )
        hands = [np.sort(rows) for rows in self.deal(Deck(labels, num_classes, rng))]
        empty = next((i for i, rows in enumerate(hands) if not len(rows)), None)
        if empty is not None:
            raise UserError(f"`partition.clients` is {self.clients}, but client {empty} gets no sample; use fewer.")
        return hands

    @abstractmethod
    def deal(self, deck: Deck) -> list[Indices]:
        """Return which samples each client holds, in any order."""

    def cap(self, size: int) -> int:
        """Return `size`, or `examples` if that is less."""
        return size if self.examples is None else min(size, self.examples)
