"""What an architecture is: a recipe for a network whose last layer has a name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedmate.core import BufferPolicy, option
from fedmate.core.options import check_options


@dataclass(frozen=True, kw_only=True)
class Architecture(ABC):
    """A network; fields are its options."""

    classifier: ClassVar[str] = "classifier"
    """The name of its last layer."""

    buffers: BufferPolicy = option(
        "shared", "BatchNorm statistics: `shared` with the extractor, `private` to a client, or `dropped`"
    )

    def __post_init__(self) -> None:
        check_options("model", type(self), vars(self))

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return a freshly initialised network for inputs of this shape (without the sample axis)."""
