"""Operations are counted as torch counts them, and nothing heavy is loaded for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
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
