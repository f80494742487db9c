"""What one client may do alone: images laid out as a CPU reads them fastest, with the same numbers in them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedmate.core import model as model_module
from fedmate.core.data import ClientData, batches, pad, rows_of
from fedmate.core.execution import unmapped
from fedmate.core.metrics import all_features
from fedmate.core.model import Model
from fedmate.core.random import make_key
from fedmate.core.source import Augmentation, Source

channels = pytest.mark.parametrize("count", [1, 3])


def make_data(channels: int, samples: int = 12) -> ClientData:
    images = torch.randint(0, 256, (samples, channels, 6, 5), dtype=torch.uint8)
    mean, std = torch.linspace(90, 120, channels)[:, None, None], torch.linspace(50, 60, channels)[:, None, None]
    return rows_of(Source(images, mean, std, Augmentation(1, True)), torch.arange(samples), torch.arange(samples) % 3)


@channels
def test_batches_are_laid_out_and_hold_the_same_numbers(count: int) -> None:
    data = pad(make_data(count), 14)
    expected = list(batches(data, 5, 2, make_key(0)))
    with unmapped():
        found = list(batches(data, 5, 2, make_key(0)))
        x = data.x
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine.x, other.x)
        assert mine.x.stride(1) == 1
    assert x.stride(1) == 1
    assert torch.equal(x, data.x)


@pytest.mark.parametrize(("small", "stride"), [(1, 30), (10**6, 1)])
def test_a_large_network_reads_images_as_they_are(small: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stride(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            seen.append(input.stride(1))
            return super().forward(input)

    monkeypatch.setattr(model_module, "SMALL", small)
    seen: list[int] = []
    model = Model(nn.Sequential(Stride(3, 4, 3), nn.Flatten(), nn.Linear(48, 3)), classifier="2")
    with torch.no_grad(), unmapped():
        all_features(model, model.init_params(), make_data(3))
    assert seen[-1] == stride
