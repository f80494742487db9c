"""BatchNorm and dropout are torch's, but blind to padding and to company."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedmate.core.data import Batch
from fedmate.core.layers import KeyedDropout, MaskedBatchNorm, sample_context, swap_layers
from fedmate.core.random import make_key
from fedmate.errors import UserError


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def batch_of(x: Tensor, real: int | None = None, key: Tensor | None = None, ids: Tensor | None = None) -> Batch:
    """A batch whose first `real` rows count."""
    rows = torch.arange(len(x))
    mask = rows < (len(x) if real is None else real)
    return Batch(x, torch.zeros_like(rows), mask, rows if ids is None else ids, make_key(0) if key is None else key)


NORMS = [
    pytest.param(nn.BatchNorm1d, (16, 3), id="1d"),
    pytest.param(nn.BatchNorm1d, (8, 3, 5), id="1d with length"),
    pytest.param(nn.BatchNorm2d, (6, 3, 4, 2), id="2d"),
    pytest.param(nn.BatchNorm3d, (4, 3, 2, 3, 2), id="3d"),
]


def trained_norm(kind: type[Any], options: dict[str, Any]) -> Any:
    """A BatchNorm in double precision whose parameters and statistics are not the usual ones and zeros."""
    norm = kind(3, **options).double()
    with torch.no_grad():
        for i, tensor in enumerate([*norm.parameters(), norm.running_mean, norm.running_var]):
            if tensor is not None:
                tensor.copy_(torch.tensor([0.75, 1.5, 2.25]) + i / 8)
    return norm


class TestBatchNorm:
    @pytest.mark.parametrize(("kind", "shape"), NORMS)
    @pytest.mark.parametrize(
        "options",
        [{}, {"momentum": 0.3, "eps": 1e-2}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.0}],
        ids=["usual", "momentum", "no weight", "no statistics", "momentum 0"],
    )
    def test_is_torchs_in_training_and_evaluation(
        self, kind: type[Any], shape: tuple[int, ...], options: dict[str, Any]
    ) -> None:
        norm = trained_norm(kind, options)
        twin: Any = swap_layers(copy.deepcopy(norm), "shared")
        assert isinstance(twin, MaskedBatchNorm)
        for step in range(4):
            x = randn(*shape, seed=step) * (step + 1) + step
            with sample_context(batch_of(x)):
                torch.testing.assert_close(twin(x), norm(x), rtol=0, atol=1e-12)
        if norm.running_mean is None:
            assert twin.running_mean is None
        else:
            torch.testing.assert_close(twin.running_mean, norm.running_mean, rtol=0, atol=1e-12)
            torch.testing.assert_close(twin.running_var, norm.running_var, rtol=0, atol=1e-12)
        x = randn(*shape, seed=9)
        torch.testing.assert_close(twin.eval()(x), norm.eval()(x), rtol=0, atol=1e-12)


class TestDropout:
    @pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
    def test_share_and_scale(self, probability: float) -> None:
        layer, n = KeyedDropout(probability, channels=False), 400 * 250
        x = randn(400, 250).abs() + 1
        with sample_context(batch_of(x)):
            y = layer(x)
        dropped = y == 0
        deviation = math.sqrt(probability * (1 - probability) / n)
        assert abs(float(dropped.double().mean()) - probability) < 5 * deviation
        torch.testing.assert_close(y[~dropped], (x / (1 - probability))[~dropped], rtol=1e-14, atol=0)
        # No sample and no position is favoured.
        for axis, length in ((0, 400), (1, 250)):
            shares = dropped.double().mean(axis)
            assert float((shares - probability).abs().max()) < 6 * math.sqrt(probability * (1 - probability) / length)

    def test_calls_keys_and_samples_differ(self) -> None:
        layer, x = KeyedDropout(0.5, channels=False), torch.ones(4, 200)
        with sample_context(batch_of(x)):
            first, second = layer(x), layer(x)
        with sample_context(batch_of(x)):
            again = layer(x)
        with sample_context(batch_of(x, key=make_key(1))):
            other = layer(x)
        assert torch.equal(first, again)
        for a, b in ((first, second), (first, other), (first[:1], first[1:2])):
            agreement = float(((a == 0) == (b == 0)).double().mean())
            assert abs(agreement - 0.5) < 5 * 0.5 / math.sqrt(a.numel())

    def test_one_layer_in_two_places(self) -> None:
        """`named_children` leaves out what it has seen: the second place must be swapped all the same."""
        drop, norm = nn.Dropout(0.5), nn.BatchNorm1d(4)
        module = nn.Sequential(nn.Linear(4, 4), norm, drop, nn.Linear(4, 4), norm, drop)
        twins: Any = swap_layers(module, "shared")
        assert [type(layer) for layer in twins] == [nn.Linear, MaskedBatchNorm, KeyedDropout] * 2
        assert twins[4] is twins[1]


@pytest.mark.parametrize(
    ("layer", "remedy"),
    [
        (nn.AlphaDropout(0.2), "use `nn.Dropout`"),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.2), "set its own `dropout` to 0"),
        (nn.MultiheadAttention(4, 2, dropout=0.2), "set its own `dropout` to 0"),
    ],
)
def test_other_random_layers_are_refused_by_name(layer: nn.Module, remedy: str) -> None:
    with pytest.raises(UserError, match=rf"^`1.inner` is a {type(layer).__name__} with randomness .*{remedy}"):
        swap_layers(nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"inner": layer})), "shared")
