"""The perceptron reads anything, and is as deep and as wide as it is told."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from fedmate.core import Model
from fedmate.models.mlp import MLP


@pytest.mark.parametrize(("shape", "depth"), [((5,), 1), ((1, 8, 8), 2), ((2, 3, 4, 5), 3)])
def test_is_linear_layers_with_activations_between(shape: tuple[int, ...], depth: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = MLP(width=6, depth=depth).build(shape, 4)
        x = torch.randn(3, *shape)
    model = Model(module, classifier=MLP.classifier)
    state, z = module.state_dict(), x.flatten(1)
    for number in range(1, depth + 1):
        z = functional.leaky_relu(functional.linear(z, state[f"fc{number}.weight"], state[f"fc{number}.bias"]), 0.01)
    params = model.init_params()
    features, buffers = model.features(params, x)
    assert buffers == {}
    assert_close(features, z)
    assert bool((features < 0).any())
    assert_close(model.logits(params, x), functional.linear(z, state["classifier.weight"], state["classifier.bias"]))
    assert (model.width, len(model.extractor_layers)) == (6, depth)
    model.check(x, 4)
