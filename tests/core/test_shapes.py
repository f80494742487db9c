"""Operations are counted by hand, and nothing heavy is loaded for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmate.core.shapes import count_flops


@pytest.mark.parametrize(("wanted", "times"), [((), 1), (("weight",), 2), (("weight", "bias", "x"), 3), (("bias",), 1)])
def test_a_convolution_and_its_gradients_by_hand(wanted: tuple[str, ...], times: int) -> None:
    """Each of 8 x 4 outputs is a sum of 4 x 3 products, forward; backward the same for input and for weight."""
    layer, x = nn.Conv1d(4, 8, 3), torch.zeros(5, 4, 6)
    points = {"weight": layer.weight.detach(), "bias": torch.zeros(8), "x": x}
    for name in wanted:
        points[name].requires_grad_()

    def slopes() -> None:
        with torch.enable_grad():
            total = nn.functional.conv1d(points["x"], points["weight"], points["bias"]).sum()
        if wanted:
            torch.autograd.grad(total, [points[name] for name in wanted])

    assert count_flops(slopes) == times * 2 * 5 * 8 * 4 * 4 * 3
