"""What a data set is: arrays with labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate.core.options import check_options


class Samples(NamedTuple):
    """Inputs `[samples, channels, height, width]`, float32, and labels `[samples]`, int64."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]


class Arrays(NamedTuple):
    """A loaded data set.

    Attributes:
        train: what is dealt to the clients.
        test: the official test split; `None` if there is none, then what no client holds is the test split.
        class_names: one for each label.
    """

    train: Samples
    test: Samples | None
    class_names: tuple[str, ...]


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
