"""The paper's networks: convolutions, each with an activation and 2 x 2 pooling, then one layer of features.

| name         | input       | convolutions (kernel, padding)    | features | extractor + classifier       |
|--------------|-------------|-----------------------------------|----------|------------------------------|
| cifar_cnn    | 3 x 32 x 32 | 16 (5, 0), 32 (5, 1), 64 (3, 1)   | 128      | 106,400 + 1,290 (10 classes) |
| emnist_cnn   | 1 x 28 x 28 | 16 (5, 0), 32 (5, 1)              | 128      | 115,776 + 7,998 (62 classes) |
| cifar100_cnn | 3 x 32 x 32 | 32, 64, 128, 256 (all 3, 1), ReLU | 1024     | 1,438,016 + 102,500 (100)    |
| animals_cnn  | 3 x 32 x 32 | 16, 32, 64 (all 3, 1)             | 128      | 154,784 + 1,290 (10 classes) |

Activations are LeakyReLU with slope 0.01 unless noted; no BatchNorm, no dropout, PyTorch's initialisation.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import nn

from fedmate.errors import UserError
from fedmate.models.base import Architecture


class Convolution(NamedTuple):
    """A convolution: how many channels it gives, its kernel and its padding."""

    channels: int
    kernel: int
    padding: int


class Layout(NamedTuple):
    """What tells the paper's networks apart."""

    convolutions: tuple[Convolution, ...]  # from the input on
    width: int = 128  # the length of the feature vector (K)
    slope: float = 0.01  # of the activation for negative numbers; 0 is ReLU


@dataclass(frozen=True, kw_only=True)
class ConvolutionalNetwork(Architecture):
    """The shape that the paper's networks share."""

    layout: ClassVar[Layout]

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return the network with PyTorch's default initialisation."""
        layout = self.layout
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        channels = input_shape[0]
        for number, (given, kernel, padding) in enumerate(layout.convolutions, start=1):
            layers[f"conv{number}"] = nn.Conv2d(channels, given, kernel, padding=padding)
            layers[f"act{number}"] = nn.LeakyReLU(layout.slope) if layout.slope else nn.ReLU()
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            channels = given
        layers["flatten"] = nn.Flatten()
        layers["fc1"] = nn.Linear(self._flat_size(layers, input_shape), layout.width)
        layers["act_fc1"] = nn.LeakyReLU(layout.slope) if layout.slope else nn.ReLU()
        layers["classifier"] = nn.Linear(layout.width, num_classes)
        return nn.Sequential(layers)

    def _flat_size(self, layers: OrderedDict[str, nn.Module], input_shape: tuple[int, ...]) -> int:
        try:
            with torch.no_grad():
                flat: torch.Tensor = nn.Sequential(layers)(torch.zeros(1, *input_shape))
        except RuntimeError:
            raise UserError(
                f"`model.name` is a {type(self).__name__}, which cannot read inputs of shape {input_shape}; choose "
                "the network of the data set."
            ) from None
        return flat.shape[1]


@final
@dataclass(frozen=True, kw_only=True)
class CifarCNN(ConvolutionalNetwork):
    """Three convolutions and two linear layers, for CIFAR-10 and CINIC-10."""

    layout: ClassVar[Layout] = Layout((Convolution(16, 5, 0), Convolution(32, 5, 1), Convolution(64, 3, 1)))


@final
@dataclass(frozen=True, kw_only=True)
class EmnistCNN(ConvolutionalNetwork):
    """Two convolutions and two linear layers, for EMNIST, MNIST and Fashion-MNIST."""

    layout: ClassVar[Layout] = Layout((Convolution(16, 5, 0), Convolution(32, 5, 1)))


@final
@dataclass(frozen=True, kw_only=True)
class Cifar100CNN(ConvolutionalNetwork):
    """Four convolutions and two linear layers with ReLU, for CIFAR-100."""

    layout: ClassVar[Layout] = Layout(
        tuple(Convolution(channels, 3, 1) for channels in (32, 64, 128, 256)), width=1024, slope=0.0
    )


@final
@dataclass(frozen=True, kw_only=True)
class AnimalsCNN(ConvolutionalNetwork):
    """Three convolutions with small kernels and two linear layers, for Animals-10 at 32 x 32."""

    layout: ClassVar[Layout] = Layout(tuple(Convolution(channels, 3, 1) for channels in (16, 32, 64)))
