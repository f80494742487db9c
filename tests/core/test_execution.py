"""What one client may do alone: images laid out as a CPU reads them fastest, with the same numbers in them."""

from __future__ import annotations

import pytest
import torch

from fedmate.core.data import ClientData, batches, pad, rows_of
from fedmate.core.execution import unmapped
from fedmate.core.random import make_key
from fedmate.core.source import Augmentation, Source


def make_data(channels: int, samples: int = 12) -> ClientData:
    images = torch.randint(0, 256, (samples, channels, 6, 5), dtype=torch.uint8)
    mean, std = torch.linspace(90, 120, channels)[:, None, None], torch.linspace(50, 60, channels)[:, None, None]
    return rows_of(Source(images, mean, std, Augmentation(1, True)), torch.arange(samples), torch.arange(samples) % 3)


@pytest.mark.parametrize("count", [1, 3])
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
