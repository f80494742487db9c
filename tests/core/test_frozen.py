"""A frozen extractor gives the features that its batches would have, and does no more than it must."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmate.core import data as data_module
from fedmate.core.data import ClientData, batches, pad, rows_of
from fedmate.core.frozen import frozen_batches
from fedmate.core.layers import BufferPolicy, mask_context
from fedmate.core.model import Model
from fedmate.core.random import make_key
from fedmate.core.source import Augmentation, Source

VARIED, FIXED = Augmentation(1, True), Augmentation()
kinds = pytest.mark.parametrize("augmentation", [VARIED, FIXED], ids=["varied", "fixed"])
policies = pytest.mark.parametrize("buffers", ["shared", "dropped"])


def make_model(buffers: BufferPolicy = "shared") -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Tanh(), nn.Flatten()]
        return Model(nn.Sequential(*body, nn.Linear(24, 3)).double(), classifier="5", buffers=buffers)


def make_data(samples: int, augmentation: Augmentation, seed: int = 0) -> ClientData:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (samples, 1, 3, 4), generator=generator, dtype=torch.uint8)
    mean, std = torch.full((2, 1, 1, 1), 100.0, dtype=torch.float64)
    y = torch.randint(3, (samples,), generator=generator)
    return rows_of(Source(images, mean, std, augmentation), torch.arange(samples), y)


@kinds
@policies
@pytest.mark.parametrize("window", [1, 8, 1000])
def test_steps_are_those_of_batches(
    augmentation: Augmentation, buffers: BufferPolicy, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_module, "WINDOW", window)
    model, data = make_model(buffers), pad(make_data(10, augmentation), 13)
    params, key = model.init_params(), make_key(3)
    found, expected = frozen_batches(model, params, data, 4, 3, key), batches(data, 4, 3, key)
    for mine, other in zip(found, expected, strict=True):
        assert mine.filled == other.filled
        for name in ("y", "mask", "ids", "key"):
            assert torch.equal(getattr(mine, name), getattr(other, name))
        with mask_context(other.mask):
            z, _ = model.features(params, other.x)
        torch.testing.assert_close(mine.x, z, rtol=0, atol=1e-12)
