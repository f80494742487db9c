"""Convolutional networks: the paper's, and a small one for 8 x 8 digits.

Each convolution has an activation and 2 x 2 pooling; one layer of features comes before the classifier.

| name         | input       | convolutions (kernel, padding)    | features | extractor + classifier       |
|--------------|-------------|-----------------------------------|----------|------------------------------|
| cifar_cnn    | 3 x 32 x 32 | 16 (5, 0), 32 (5, 1), 64 (3, 1)   | 128      | 106,400 + 1,290 (10 classes) |
| emnist_cnn   | 1 x 28 x 28 | 16 (5, 0), 32 (5, 1)              | 128      | 115,776 + 7,998 (62 classes) |
| cifar100_cnn | 3 x 32 x 32 | 32, 64, 128, 256 (all 3, 1), ReLU | 1024     | 1,438,016 + 102,500 (100)    |
| animals_cnn  | 3 x 32 x 32 | 16, 32, 64 (all 3, 1)             | 128      | 154,784 + 1,290 (10 classes) |
| digits_cnn   | 1 x 8 x 8   | 16, 32 (all 3, 1)                 | 64       | 13,056 + 650 (10 classes)    |

Activations are LeakyReLU with slope 0.01 unless noted; no BatchNorm, no dropout, PyTorch's initialisation.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import nn

from fedmate.core import Limits, option
from fedmate.errors import UserError
from fedmate.models import Architecture


@dataclass(frozen=True, kw_only=True)
class ConvolutionalNetwork(Architecture):
    """The shape that the paper's networks share."""

    convolutions: ClassVar[tuple[tuple[int, int, int], ...]]  # channels, kernel and padding, from the input on
    features: ClassVar[int] = 128  # the length of the feature vector (K)
    slope: ClassVar[float] = 0.01  # of the activation for negative numbers; 0 is ReLU

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return the network with PyTorch's default initialisation."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        before = input_shape[0]
        for number, (channels, kernel, padding) in enumerate(self.convolutions, start=1):
            layers[f"conv{number}"] = nn.Conv2d(before, channels, kernel, padding=padding)
            layers[f"act{number}"] = nn.LeakyReLU(self.slope) if self.slope else nn.ReLU()
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            before = channels
        layers["flatten"] = nn.Flatten()
        try:
            with torch.no_grad():
                flat: torch.Tensor = nn.Sequential(layers)(torch.zeros(1, *input_shape))
        except RuntimeError:
            raise UserError(
                f"`model.name` is a {type(self).__name__}, which cannot read inputs of shape {input_shape}; choose "
                "the network of the data set."
            ) from None
        layers["fc1"] = nn.Linear(flat.shape[1], self.features)
        layers["act_fc1"] = nn.LeakyReLU(self.slope) if self.slope else nn.ReLU()
        layers["classifier"] = nn.Linear(self.features, num_classes)
        return nn.Sequential(layers)


@final
@dataclass(frozen=True, kw_only=True)
class CifarCNN(ConvolutionalNetwork):
    """Three convolutions and two linear layers, for CIFAR-10 and CINIC-10."""

    convolutions = ((16, 5, 0), (32, 5, 1), (64, 3, 1))


@final
@dataclass(frozen=True, kw_only=True)
class EmnistCNN(ConvolutionalNetwork):
    """Two convolutions and two linear layers, for EMNIST, MNIST and Fashion-MNIST."""

    convolutions = ((16, 5, 0), (32, 5, 1))


@final
@dataclass(frozen=True, kw_only=True)
class Cifar100CNN(ConvolutionalNetwork):
    """Four convolutions and two linear layers with ReLU, for CIFAR-100."""

    convolutions = ((32, 3, 1), (64, 3, 1), (128, 3, 1), (256, 3, 1))
    features = 1024
    slope = 0.0


@final
@dataclass(frozen=True, kw_only=True)
class AnimalsCNN(ConvolutionalNetwork):
    """Three convolutions with small kernels and two linear layers, for Animals-10 at 32 x 32."""

    convolutions = ((16, 3, 1), (32, 3, 1), (64, 3, 1))


@final
@dataclass(frozen=True, kw_only=True)
class DigitsCNN(Architecture):
    """Two 3 x 3 convolutions with pooling, then features of the given width."""

    width: int = option(64, "length of the feature vector (K)", Limits(at_least=1))

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return the network with PyTorch's default initialisation."""
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise UserError(
                f"`model.name` is `digits_cnn`, which reads images (channels, height, width) of at least 4 x 4, not "
                f"{input_shape}; choose another, or give your own network to `fedmate.run(model=...)`."
            )
        channels, height, width = input_shape
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 16, 3, padding=1),
                act1=nn.LeakyReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(16, 32, 3, padding=1),
                act2=nn.LeakyReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                fc1=nn.Linear(32 * (height // 4) * (width // 4), self.width),
                act3=nn.LeakyReLU(),
                classifier=nn.Linear(self.width, num_classes),
            )
        )
