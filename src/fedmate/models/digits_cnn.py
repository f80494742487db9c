"""A small network for 8 x 8 digits: two convolutions and a layer of features."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import final

from torch import nn

from fedmate.core import Limits, option
from fedmate.errors import UserError
from fedmate.models.base import Architecture


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
