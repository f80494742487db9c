"""Networks: the table that names them, and their base class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NoReturn, final

from torch import nn

from fedmate.core import BufferPolicy, option
from fedmate.core.options import Registry, check_options
from fedmate.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Architecture(ABC):
    """A recipe for a network whose last layer has a name; fields are its options."""

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


@final
@dataclass(frozen=True, kw_only=True)
class CustomModel(Architecture):
    """A module given to `fedmate.run(model=...)`; it starts from its own weights."""

    layer: str = option("classifier", "the name of its last layer")
    digest: str = option("", "fingerprint of its structure")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> NoReturn:
        """Raise `UserError`: no file holds this network."""
        raise UserError(
            "`model.name` is `given`, a network that was passed in Python and is in no file; call "
            "`fedmate.run(..., model=...)`, and pass it again, with `resume=...`, to continue a run."
        )


MODELS: Registry[type[Architecture]] = Registry(
    "models",
    {
        "animals_cnn": "fedmate.models.cnn:AnimalsCNN",
        "cifar100_cnn": "fedmate.models.cnn:Cifar100CNN",
        "cifar_cnn": "fedmate.models.cnn:CifarCNN",
        "digits_cnn": "fedmate.models.cnn:DigitsCNN",
        "emnist_cnn": "fedmate.models.cnn:EmnistCNN",
        "given": "fedmate.models:CustomModel",
        "mlp": "fedmate.models.mlp:MLP",
        "resnet18": "fedmate.models.resnet:ResNet18",
    },
)
