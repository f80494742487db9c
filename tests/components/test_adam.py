"""Adam takes the steps that PyTorch's takes."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from fedmate.components.adam import Adam
from fedmate.core import Tree, make_key, normal


def variables(dtype: torch.dtype) -> Tree:
    return {"weight": normal(make_key(1), (3, 2), dtype), "nested": {"bias": normal(make_key(2), (3,), dtype)}}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_many_steps_are_those_of_torch(dtype: torch.dtype) -> None:
    adam, current = Adam(0.05), variables(dtype)
    state = adam.init(current)
    theirs = [t.clone().requires_grad_() for t in (current["weight"], current["nested"]["bias"])]
    optimiser = torch.optim.Adam(theirs, lr=0.05)
    for t in range(20):
        weight, bias = normal(make_key(10 + t), (3, 2), dtype), 1e-3 * normal(make_key(50 + t), (3,), dtype)
        current, state = adam.step(current, {"weight": weight, "nested": {"bias": bias}}, state)
        theirs[0].grad, theirs[1].grad = weight, bias
        optimiser.step()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    found = [current["weight"], current["nested"]["bias"]]
    assert_close(found, [t.detach() for t in theirs], rtol=0, atol=tolerance)
    assert {leaf.dtype for leaf in (*found, state["mean_share"], state["square_share"])} == {dtype}
