"""The digits network has features of the given width and a named last layer."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fedmate.errors import UserError
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


@pytest.mark.parametrize("input_shape", [(64,), (8, 8), (1, 3, 8), (1, 8, 3)])
def test_other_inputs_are_refused(input_shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as error:
        DigitsCNN().build(input_shape, 10)
    assert str(error.value) == (
        f"`model.name` is `digits_cnn`, which reads images (channels, height, width) of at least 4 x 4, not "
        f"{input_shape}; choose another, or give your own network to `fedmate.run(model=...)`."
    )
