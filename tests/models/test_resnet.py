"""ResNet-18: exactly these layers, this many parameters, and statistics that go where they are told."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from fedmate.core import (
    Model,
    make_key,
    normal,
)
from fedmate.models.resnet import ResNet18

every_norm = pytest.mark.parametrize("norm", ["group", "batch"])


def build(shape: tuple[int, ...], classes: int = 10, **options: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ResNet18(**options).build(shape, classes)


# -------------------- layers


def count(module: nn.Module, *path: str) -> int:
    return sum(p.numel() for p in module.get_submodule(".".join(path)).parameters())


@every_norm
def test_number_of_parameters(norm: str) -> None:
    """A block has two convolutions and a shortcut; each is followed by a scale and a shift for each channel."""
    module = build((3, 32, 32), norm=norm)
    assert (count(module, "conv1"), count(module, "norm1")) == (3 * 64 * 9, 128)
    assert count(module, "stage1") == 4 * (64 * 64 * 9 + 128) == 147_968
    assert count(module, "stage2") == 64 * 128 * 9 + 3 * 128 * 128 * 9 + 64 * 128 + 5 * 256 == 525_568
    assert count(module, "stage3") == 128 * 256 * 9 + 3 * 256 * 256 * 9 + 128 * 256 + 5 * 512 == 2_099_712
    assert count(module, "stage4") == 256 * 512 * 9 + 3 * 512 * 512 * 9 + 256 * 512 + 5 * 1024 == 8_393_728
    assert count(module, "classifier") == 513 * 10
    model = Model(module, classifier=ResNet18.classifier)
    assert model.num_parameters == 11_173_962
    assert model.extractor_size == 11_168_832
    assert model.width == 512


def by_hand(state: dict[str, Tensor], x: Tensor, groups: int) -> Tensor:
    """Return the features with torch's functions, GroupNorm written out."""

    def norm(name: str, z: Tensor) -> Tensor:
        dealt = z.reshape(len(z), groups, -1)
        centred = dealt - dealt.mean(2, keepdim=True)
        z = (centred / (centred.square().mean(2, keepdim=True) + 1e-5).sqrt()).reshape(z.shape)
        return z * state[f"{name}.weight"][:, None, None] + state[f"{name}.bias"][:, None, None]

    def convolve(name: str, z: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        return functional.conv2d(z, weight, stride=stride, padding=weight.shape[-1] // 2)

    large = max(x.shape[2:]) > 64
    z = norm("norm1", convolve("conv1", x, 2 if large else 1)).clamp(min=0)
    if large:
        z = functional.max_pool2d(z, 3, 2, 1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            name, stride = f"stage{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            inner = norm(f"{name}.norm1", convolve(f"{name}.conv1", z, stride)).clamp(min=0)
            change = norm(f"{name}.norm2", convolve(f"{name}.conv2", inner))
            if stride > 1:
                z = norm(f"{name}.shortcut.norm", convolve(f"{name}.shortcut.conv", z, stride))
            z = (z + change).clamp(min=0)
    assert z.shape[2:] == tuple(math.ceil(side / (32 if large else 8)) for side in x.shape[2:])
    return z.mean((2, 3))


@pytest.mark.parametrize("shape", [(1, 17, 30), (2, 70, 66)])
def test_features_and_logits(shape: tuple[int, ...]) -> None:
    module = build(shape, 5, width=4, groups=2).double()
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.add_(normal(make_key(i), tuple(parameter.shape), torch.float64), alpha=0.1)
    model = Model(module, classifier="classifier")
    x = normal(make_key(1), (3, *shape), torch.float64)
    z = by_hand(module.state_dict(), x, 2)
    params = model.init_params()
    features, buffers = model.features(params, x)
    assert buffers == {}
    assert_close(features, z, rtol=0, atol=1e-10)
    head = params["classifier"]
    assert_close(model.logits(params, x), z @ head["weight"].T + head["bias"], rtol=0, atol=1e-10)
    assert len({*features.flatten().tolist()}) > 50
    model.check(x, 5)
