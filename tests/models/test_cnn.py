"""The paper's networks: exactly these layers, this many parameters, this wide."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch.nn import functional

from fedmate.core import Model
from fedmate.models import MODELS


class Network(NamedTuple):
    """A network of the specification.

    Attributes:
        shape, classes: what it reads and answers.
        layers: parameters of each layer, in order, the classifier last.
        paddings: of its convolutions.
        width: the length of its feature vector.
        slope: of its activation for negative numbers.
    """

    shape: tuple[int, ...]
    classes: int
    layers: list[int]
    paddings: list[int]
    width: int = 128
    slope: float = 0.01


NETWORKS = {
    "cifar_cnn": Network((3, 32, 32), 10, [1_216, 12_832, 18_496, 73_856, 1_290], [0, 1, 1]),
    "emnist_cnn": Network((1, 28, 28), 62, [416, 12_832, 102_528, 7_998], [0, 1]),
    "cifar100_cnn": Network(
        (3, 32, 32), 100, [896, 18_496, 73_856, 295_168, 1_049_600, 102_500], [1, 1, 1, 1], 1024, 0.0
    ),
    "animals_cnn": Network((3, 32, 32), 10, [448, 4_640, 18_496, 131_200, 1_290], [1, 1, 1]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_features_and_logits(name: str) -> None:
    """Layer by layer with torch's functions: pools 2 x 2, an activation after each layer but the last."""
    network = NETWORKS[name]
    module = MODELS[name]().build(network.shape, network.classes)
    model = Model(module, classifier=MODELS[name]().classifier)
    x = torch.randn(2, *network.shape, generator=torch.Generator().manual_seed(1))
    tensors = list(module.parameters())
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    assert [weight.numel() + bias.numel() for weight, bias in pairs] == network.layers
    z = x
    for padding, weight, bias in zip(network.paddings, tensors[::2], tensors[1::2], strict=False):
        z = functional.conv2d(z, weight, bias, padding=padding)
        z = functional.max_pool2d(functional.leaky_relu(z, network.slope), 2, stride=2)
    z = functional.leaky_relu(functional.linear(z.flatten(1), *tensors[-4:-2]), network.slope)
    params = model.init_params()
    features, buffers = model.features(params, x)
    assert features.shape == (2, network.width)
    assert model.width == network.width
    assert buffers == {}
    torch.testing.assert_close(features, z.detach())
    torch.testing.assert_close(model.logits(params, x), functional.linear(z, *tensors[-2:]).detach())
    assert (features < 0).any() == (network.slope > 0)
    assert model.extractor_size == sum(network.layers[:-1])
    model.check(x, network.classes)


def test_digits_cnn_is_two_convolutions_and_two_linear_layers() -> None:
    module, x = MODELS["digits_cnn"](width=5).build((1, 8, 8), 3), torch.randn(4, 1, 8, 8)  # type: ignore[call-arg]
    state = module.state_dict()
    z = x
    for layer in ("conv1", "conv2"):
        z = functional.conv2d(z, state[f"{layer}.weight"], state[f"{layer}.bias"], padding=1)
        z = functional.max_pool2d(functional.leaky_relu(z, 0.01), 2)
    z = functional.leaky_relu(functional.linear(z.flatten(1), state["fc1.weight"], state["fc1.bias"]), 0.01)
    logits = functional.linear(z, state["classifier.weight"], state["classifier.bias"])
    torch.testing.assert_close(module(x), logits)
