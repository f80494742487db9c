"""Blocks of convolution, activation and pooling: found where they are, and the same numbers in every way of mapping."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.backends.plain_kernels import PlainKernels
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.testing import assert_close

from fedmate.backends.blocks import GroupedKernels, Kernels, PooledConvolution, fuse
from fedmate.models import MODELS

CLIENTS, SAMPLES = 3, 4


def network(channels: int = 2) -> nn.Sequential:
    """Return two blocks with odd sizes on the way (9 x 8 -> 4 x 4 -> 1 x 1), of both activations."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(channels, 5, 3, padding=1), nn.LeakyReLU(0.1), nn.MaxPool2d(2)),
        *(nn.Conv2d(5, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 2)),
        *(nn.Flatten(), nn.Linear(4, 3)),
    ).double()


def answers(module: nn.Module, params: dict[str, Tensor], x: Tensor) -> Tensor:
    answer: Tensor = functional_call(module, params, (x,))
    return answer


def loss(module: nn.Module, params: dict[str, Tensor], x: Tensor) -> Tensor:
    return answers(module, params, x).square().sum()


@pytest.fixture
def params() -> dict[str, Tensor]:
    """A stack of clients, each with parameters of its own."""
    named = network().named_parameters()
    return {name: torch.stack([p.detach() + 0.3 * torch.randn_like(p) for _ in range(CLIENTS)]) for name, p in named}


@pytest.fixture(params=[PlainKernels, GroupedKernels])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Every way of computing blocks on a CPU."""
    made: Kernels = request.param()
    return made


@pytest.mark.parametrize("shared", ["nothing", "parameters", "samples"])
def test_gradients_of_many_clients_are_those_of_each(params: dict[str, Tensor], shared: str, kernels: Kernels) -> None:
    x = torch.randn(CLIENTS, SAMPLES, 2, 9, 8, dtype=torch.float64)
    axes = (None if shared == "parameters" else 0, None if shared == "samples" else 0)
    if axes[0] is None:
        params = {name: leaf[0] for name, leaf in params.items()}
    x = x[0] if axes[1] is None else x
    plain, fused = network(), fuse(network(), kernels)
    for function in (grad(loss, 1), answers):
        expected, found = (vmap(partial(function, module), axes)(params, x) for module in (plain, fused))
        assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_pool_with_nan_is_nan(kernels: Kernels) -> None:
    x = torch.randn(1, 2, 9, 8, dtype=torch.float64)
    x[0, 0, 3, 3] = torch.nan
    plain, fused = network()[:3], fuse(network()[:3], kernels)
    assert_close(fused(x), plain(x), equal_nan=True)
    assert plain(x).isnan().any()


@pytest.mark.parametrize("name", ["cifar_cnn", "emnist_cnn", "cifar100_cnn", "animals_cnn"])
def test_the_papers_networks_are_all_blocks(name: str) -> None:
    shape = (1, 28, 28) if name == "emnist_cnn" else (3, 32, 32)
    module = MODELS[name]().build(shape, 10)
    fused = fuse(module, PlainKernels())
    assert not any(isinstance(part, nn.Conv2d | nn.MaxPool2d) for part in fused.modules())
    x = torch.randn(2, *shape)
    assert_close(fused(x), module(x), rtol=1e-4, atol=1e-5)


class OwnConvolution(nn.Conv2d):
    """A convolution somebody may have changed."""


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda module, args, output: 2 * output)
    return layer


OTHERS = {
    "stride": (nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
    "groups": (nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2)),
    "no bias": (nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
    "padding in words": (nn.Conv2d(2, 4, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
    "own class": (OwnConvolution(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "hook": (hooked(nn.Conv2d(2, 4, 3)), nn.ReLU(), nn.MaxPool2d(2)),
    "activation": (nn.Conv2d(2, 4, 3), nn.Tanh(), nn.MaxPool2d(2)),
    "overlapping pool": (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2, 1)),
    "ceiling": (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
    "order": (nn.ReLU(), nn.Conv2d(2, 4, 3), nn.MaxPool2d(2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_block_is_left_alone(name: str) -> None:
    module = nn.Sequential(*OTHERS[name])
    fused = fuse(module, PlainKernels())
    assert not any(isinstance(part, PooledConvolution) for part in fused.modules())
    x = torch.randn(2, 2, 9, 9)
    assert_close(fused(x), module(x))
