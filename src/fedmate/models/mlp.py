"""A multilayer perceptron: it flattens what it reads, so it reads anything.

Two hidden layers of 200 are the "2NN" of McMahan et al. (AISTATS 2017), 199,210 parameters for 28 x 28 pixels and 10
classes, but for the activation, which is LeakyReLU with slope 0.01 as elsewhere in the package, not ReLU. PyTorch's
initialisation.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import final

from torch import nn

from fedmate.core import Limits, option
from fedmate.models import Architecture


@final
@dataclass(frozen=True, kw_only=True)
class MLP(Architecture):
    """Fully connected layers, for samples of any shape."""

    width: int = option(200, "length of each hidden layer, and of the feature vector (K)", Limits(at_least=1))
    depth: int = option(2, "number of hidden layers", Limits(at_least=1, at_most=100))

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Return the network with PyTorch's default initialisation."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        length = math.prod(input_shape)
        for number in range(1, self.depth + 1):
            layers[f"fc{number}"] = nn.Linear(length, self.width)
            layers[f"act{number}"] = nn.LeakyReLU()
            length = self.width
        layers["classifier"] = nn.Linear(length, num_classes)
        return nn.Sequential(layers)
