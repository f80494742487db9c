"""The digits network has features of the given width and a named last layer."""

from __future__ import annotations

import torch
from torch.nn import functional

from fedmate.models.digits_cnn import DigitsCNN


def test_is_two_convolutions_and_two_linear_layers() -> None:
    module, x = DigitsCNN(width=5).build((1, 8, 8), 3), torch.randn(4, 1, 8, 8)
    state = module.state_dict()
    z = x
    for layer in ("conv1", "conv2"):
        z = functional.conv2d(z, state[f"{layer}.weight"], state[f"{layer}.bias"], padding=1)
        z = functional.max_pool2d(functional.leaky_relu(z, 0.01), 2)
    z = functional.leaky_relu(functional.linear(z.flatten(1), state["fc1.weight"], state["fc1.bias"]), 0.01)
    logits = functional.linear(z, state["classifier.weight"], state["classifier.bias"])
    torch.testing.assert_close(module(x), logits)
