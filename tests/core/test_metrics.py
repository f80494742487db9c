"""Losses and accuracies are those of the definition, padded or not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedmate.core.data import ClientData, client_data
from fedmate.core.layers import BufferPolicy
from fedmate.core.metrics import CHUNK, class_accuracies
from fedmate.core.model import Model


def make_module() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 4)).double()


def make_model(buffers: BufferPolicy = "shared") -> Model:
    return Model(make_module(), classifier="4", buffers=buffers)


def make_data(samples: int, classes: int = 4, seed: int = 0) -> ClientData:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 5, dtype=torch.float64, generator=generator)
    return client_data(x, torch.randint(classes, (samples,), generator=generator))


def expected_logits(x: Tensor) -> Tensor:
    logits: Tensor = make_module().eval()(x)
    return logits.detach()


class TestClassAccuracies:
    @pytest.mark.parametrize("samples", [50, CHUNK + 500])
    def test_is_a_plain_loop(self, samples: int) -> None:
        model, data = make_model(), make_data(samples)
        found = class_accuracies(model, model.init_params(), data, 4)
        guesses = expected_logits(data.x).argmax(1)
        hits, seen = [0] * 4, [0] * 4
        for guess, label in zip(guesses.tolist(), data.y.tolist(), strict=True):
            seen[label] += 1
            hits[label] += guess == label
        assert found.dtype == torch.float64
        assert found.tolist() == [h / n for h, n in zip(hits, seen, strict=True)]
        assert 0 < float(found.mean()) < 1

    def test_a_class_without_samples_is_nan(self) -> None:
        model, data = make_model(), make_data(30, classes=2)
        found = class_accuracies(model, model.init_params(), data, 4)
        assert torch.isfinite(found[:2]).all()
        assert all(math.isnan(value) for value in found[2:].tolist())
