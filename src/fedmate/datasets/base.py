"""What a data set is: arrays with labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate.core.options import check_options


class Samples(NamedTuple):
    """Inputs `[samples, ...]`, images as `[samples, channels, height, width]`, and labels `[samples]`, int64."""

    x: NDArray[Any]
    y: NDArray[np.int64]


class Normalisation(NamedTuple):
    """What is done to raw samples before a network reads them: subtract `mean`, divide by `std`.

    Both have a number for each channel, or one for all. They are constants of the data set, so that a client's input
    does not depend on anybody's data, and travel with every model that leaves.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def apply(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return samples as the network reads them, in single precision unless there is nothing to do."""
        if self == Normalisation():
            return x
        shape = (-1, *[1] * (x.ndim - 2))
        mean, std = (np.array(values).reshape(shape) for values in self)
        normalised: NDArray[np.float32] = ((x - mean) / std).astype(np.float32)
        return normalised


class Arrays(NamedTuple):
    """A loaded data set.

    Attributes:
        train: what is dealt to the clients.
        test: the official test split; `None` if there is none, then what no client holds is the test split.
        class_names: one for each label.
        normalisation: what the samples still need.
    """

    train: Samples
    test: Samples | None
    class_names: tuple[str, ...]
    normalisation: Normalisation = Normalisation()


def hold_back(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose a fifth of samples for a test, from each class as nearly as can be, but never a class's only sample."""
    order = rng.permutation(len(labels))
    order = order[np.bincount(labels)[labels[order]] > 1]
    # Every fifth of a row in which classes stand together: each gives a fifth, rounded up or down.
    chosen: NDArray[np.int64] = np.sort(order[np.argsort(labels[order], kind="stable")][2::5])
    return chosen


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A data set; fields are its options."""

    defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    """What an experiment on this data set starts from, by section."""

    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}
    """Named settings that replace those defaults, by section."""

    def __post_init__(self) -> None:
        """Refuse options outside their limits."""
        check_options("dataset", type(self), vars(self))

    @abstractmethod
    def load(self) -> Arrays:
        """Read the arrays."""
