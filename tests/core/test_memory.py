"""Features are computed once for the same tensors, and never taken for those of others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedmate.core.data import ClientData, client_data
from fedmate.core.execution import remembered_features
from fedmate.core.metrics import all_features, mean_loss, statistics
from fedmate.core.model import Model
from fedmate.core.random import make_key
from fedmate.core.tree import Tree, tree_map


def make_data(samples: int, seed: int = 0) -> ClientData:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 5, dtype=torch.float64, generator=generator)
    return client_data(x, torch.randint(4, (samples,), generator=generator))


@pytest.fixture
def model() -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
        return Model(module.double(), classifier="3")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each call of an extractor has seen."""
    seen: list[int] = []
    features = Model.features

    def counting(self: Model, params: Tree, x: Tensor, *, train: bool = False) -> tuple[Tensor, Tree]:
        seen.append(len(x))
        return features(self, params, x, train=train)

    monkeypatch.setattr(Model, "features", counting)
    return seen


def test_the_same_tensors_are_looked_at_once(model: Model, passes: list[int]) -> None:
    params, data = model.init_params(), make_data(9)
    expected = mean_loss(model, params, data), statistics(model, params, data, 4, None)
    passes.clear()
    with remembered_features():
        found = mean_loss(model, params, data), statistics(model, params, data, 4, None)
        # Another classifier sees the same features.
        other: Tree = {**params, "classifier": tree_map(lambda leaf: leaf + 1, params["classifier"])}
        mean_loss(model, other, data)
    assert passes == [9]
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    mean_loss(model, params, data)
    assert passes == [9, 9]


def test_what_differs_in_anything_is_looked_at_again(model: Model, passes: list[int]) -> None:
    params, data = model.init_params(), make_data(9)
    copied = tree_map(torch.clone, params)
    with remembered_features():
        all_features(model, params, data)
        for part in ("extractor", "buffers"):
            all_features(model, {**params, part: copied[part]}, data)
        all_features(model, params, data._replace(rows=data.rows.flip(0)))
        all_features(model, params, data._replace(mask=data.mask.clone()))
        all_features(model, params, data._replace(source=data.source._replace(samples=data.source.samples * 2)))
        all_features(model, params, data._replace(source=data.source._replace(std=data.source.std * 2)))
        # Varied samples are never remembered, nor is anything remembered taken for them.
        for _ in range(2):
            all_features(model, params, data, make_key(0))
    assert passes == [9] * 9
