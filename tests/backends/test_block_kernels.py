"""The Triton kernels against PyTorch's own operations: on a GPU, or in Triton's interpreter where that is installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from tests.backends.plain_kernels import PlainKernels
from torch import Tensor
from torch.testing import assert_close

from fedmate.backends.blocks import Block
from fedmate.backends.precision import arithmetic

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if find_spec("triton") is None:
    pytest.skip("triton is not installed: it comes with torch for CUDA", allow_module_level=True)
from fedmate.backends.block_kernels import TritonKernels  # noqa: E402 - Triton is there

SHAPES = {
    "first layer": (3, 12, 12, 16, 5, 0),
    "last layer": (32, 6, 6, 64, 3, 1),
    "odd sizes": (5, 9, 7, 6, 3, 1),
    "one channel": (1, 8, 9, 3, 2, 0),
    "many channels": (33, 5, 5, 70, 3, 2),
}
"""Channels, height, width, outputs, kernel, padding."""


def tensors(shape: tuple[int, ...], clients: int = 2, samples: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    channels, height, width, outputs, kernel, _ = shape
    torch.manual_seed(0)
    x = torch.randn(clients, samples, channels, height, width)
    weight = torch.randn(clients, outputs, channels, kernel, kernel) / kernel
    return x.to(DEVICE), weight.to(DEVICE), torch.randn(clients, outputs).to(DEVICE)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("shared", ["nothing", "samples", "parameters"])
def test_kernels_compute_what_pytorch_computes(name: str, shared: str) -> None:
    x, weight, bias = tensors(SHAPES[name])
    if shared == "samples":
        x = x[:1]
    if shared == "parameters":
        weight, bias = weight[:1], bias[:1]
    block = Block(SHAPES[name][-1], 0.1)
    with arithmetic("strict", x.device):
        plain, ours = PlainKernels(), TritonKernels()
        expected, found = plain.forward(x, weight, bias, block), ours.forward(x, weight, bias, block)
        assert_close(found.y, expected.y, rtol=1e-4, atol=1e-4)
        assert torch.equal(found.winner, expected.winner)
        grad = torch.randn_like(expected.y)
        for wants_x in (True, False):
            back = plain.backward(grad, weight, expected, block, wants_x=wants_x)
            assert_close(ours.backward(grad, weight, found, block, wants_x=wants_x), back, rtol=1e-4, atol=1e-3)


def test_sums_are_split_and_put_together_again() -> None:
    x, weight, bias = tensors((1, 20, 20, 2, 3, 1), clients=1, samples=40)
    block = Block(1, 0.0)
    with arithmetic("strict", x.device):
        plain, ours = PlainKernels(), TritonKernels()
        expected, found = plain.forward(x, weight, bias, block), ours.forward(x, weight, bias, block)
        grad = torch.randn_like(expected.y)
        back = plain.backward(grad, weight, expected, block, wants_x=False)
        assert_close(ours.backward(grad, weight, found, block, wants_x=False), back, rtol=1e-4, atol=1e-3)


def test_nan_wins_every_pool() -> None:
    x, weight, bias = tensors(SHAPES["odd sizes"])
    x[0, 0, 0, 4, 4] = torch.nan
    block = Block(1, 0.1)
    expected, found = (k.forward(x, weight, bias, block) for k in (PlainKernels(), TritonKernels()))
    assert torch.equal(found.y.isnan(), expected.y.isnan())
    assert expected.y.isnan().any()
