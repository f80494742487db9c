"""What is counted is what a plain loop counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmate.core.data import client_data
from fedmate.core.metrics import CHUNK, statistics
from fedmate.core.model import Model


@pytest.mark.parametrize("samples", [50, CHUNK + 500])
def test_statistics_are_a_plain_loop(samples: int) -> None:
    """The last of five classes has no sample."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 5, dtype=torch.float64, generator=generator)
    y = torch.randint(4, (samples,), generator=generator)
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 5)).double()
    model = Model(module, classifier="4")
    found = statistics(model, model.init_params(), client_data(x, y), 5, None)[0]["confusion"]
    expected = torch.zeros(5, 5, dtype=torch.int64)
    for guess, label in zip(module.eval()(x).argmax(1).tolist(), y.tolist(), strict=True):
        expected[label, guess] += 1
    assert torch.equal(found, expected)
    assert 0 < int(expected.diagonal().sum()) < samples
