"""Accuracies are those of the definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedmate.core.data import client_data
from fedmate.core.metrics import CHUNK, class_accuracies
from fedmate.core.model import Model


@pytest.mark.parametrize("samples", [50, CHUNK + 500])
def test_class_accuracies_are_a_plain_loop(samples: int) -> None:
    """The last of five classes has no sample, and so no accuracy."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 5, dtype=torch.float64, generator=generator)
    y = torch.randint(4, (samples,), generator=generator)
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 5)).double()
    model = Model(module, classifier="4")
    found = class_accuracies(model, model.init_params(), client_data(x, y), 5)
    hits, seen = [0] * 4, [0] * 4
    for guess, label in zip(module.eval()(x).argmax(1).tolist(), y.tolist(), strict=True):
        seen[label] += 1
        hits[label] += guess == label
    assert found.dtype == torch.float64
    assert found[:4].tolist() == [h / n for h, n in zip(hits, seen, strict=True)]
    assert math.isnan(found[4])
    assert 0 < float(found[:4].mean()) < 1
