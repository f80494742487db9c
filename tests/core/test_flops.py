"""Operations are counted as torch counts them, and nothing heavy is loaded for it."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedmate.core.flops import count_flops

LAYERS = {
    "linear": (nn.Linear(5, 7), (3, 5)),
    "linear, no bias": (nn.Linear(5, 7, bias=False), (3, 5)),
    "convolution": (nn.Conv2d(4, 8, 3, padding=1, stride=2), (2, 4, 9, 7)),
    "grouped": (nn.Conv2d(4, 8, 3, groups=4), (2, 4, 9, 7)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 9, 7)),
    "one dimension": (nn.Conv1d(2, 3, 5), (2, 2, 11)),
    "recurrent": (nn.LSTM(4, 3), (2, 5, 4)),
    "nothing to count": (nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), (2, 4, 8, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_as_torch_counts(name: str) -> None:
    layer, shape = LAYERS[name]
    x = torch.zeros(shape)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(x)
    assert count_flops(lambda: layer(x)) == counter.get_total_flops()


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("grouped", "transposed")])
def test_gradients_as_torch_counts(name: str) -> None:
    layer, shape = copy.deepcopy(LAYERS[name])
    for input_too in (True, False):
        x = torch.zeros(shape, requires_grad=input_too)

        def slopes(x: Tensor = x) -> None:
            with torch.enable_grad():
                output = layer(x)
                total = (output[0] if isinstance(output, tuple) else output).sum()
            if total.requires_grad:
                total.backward()

        with FlopCounterMode(display=False) as counter:
            slopes()
        assert count_flops(slopes) == counter.get_total_flops()


def test_a_convolutions_gradients_by_hand() -> None:
    """Of 8 x 4 outputs each is a sum of 4 / 2 x 3 products, forward; backward the same for input and for weight."""
    layer, x = nn.Conv1d(4, 8, 3, groups=2), torch.zeros(5, 4, 6)
    forward = 2 * 5 * 8 * 4 * 2 * 3
    for wanted, times in ((("x",), 2), (("weight",), 2), (("weight", "bias", "x"), 3), (("bias",), 1)):
        points = {"weight": layer.weight.detach(), "bias": torch.zeros(8), "x": x.clone()}
        for name in wanted:
            points[name].requires_grad_()

        def slopes(points: dict[str, Tensor] = points, wanted: tuple[str, ...] = wanted) -> None:
            with torch.enable_grad():
                total = nn.functional.conv1d(points["x"], points["weight"], points["bias"], groups=2).sum()
            torch.autograd.grad(total, [points[name] for name in wanted])

        assert count_flops(slopes) == times * forward, wanted


def test_a_transposed_convolutions_gradients_by_hand() -> None:
    """Each of 6 x 3 inputs meets 2 x 5 weights."""
    layer, x = nn.ConvTranspose1d(6, 2, 5, stride=2), torch.zeros(4, 6, 3, requires_grad=True)

    def slopes() -> None:
        with torch.enable_grad():
            total = layer(x).sum()
        torch.autograd.grad(total, [x, layer.weight])

    assert count_flops(slopes) == 3 * 2 * 4 * (6 * 3) * (2 * 5)


def test_batched_products() -> None:
    left, right, sums = torch.zeros(3, 4, 5), torch.zeros(3, 5, 6), torch.zeros(3, 4, 6)
    assert count_flops(lambda: left @ right) == 2 * 3 * 4 * 5 * 6
    assert count_flops(lambda: torch.baddbmm(sums, left, right)) == 2 * 3 * 4 * 5 * 6


def test_the_compiler_is_not_loaded() -> None:
    code = (
        "import sys, torch; from fedmate.core.flops import count_flops;"
        "print(count_flops(lambda: torch.zeros(2, 3) @ torch.zeros(3, 4)), 'torch._dynamo' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer.split() == ["48", "False"]
