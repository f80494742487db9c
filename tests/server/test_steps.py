"""Aggregators and the server's optimisers: steps by hand, and a client that explodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.small import CLIENTS, normed

from fedmate.core import Server, fold, leaves, make_key, select, stack, tree_map
from fedmate.methods import METHODS
from fedmate.server import AGGREGATORS, SERVER_OPTIMISERS

RATE, TAU = 0.1, 1e-3


def second(name: str, v: float, d: float) -> float:
    """Return the second moment after a direction d, as the paper writes it."""
    if name == "adagrad":
        return v + d**2
    return 0.99 * v + 0.01 * d**2 if name == "adam" else v - 0.01 * d**2 * float(np.sign(v - d**2))


@pytest.mark.parametrize("name", ["adagrad", "adam", "yogi"])
def test_adaptive_steps_by_hand(name: str) -> None:
    """m <- b m + (1 - b) d, w <- w + rate m / (sqrt(v) + tau), from m = 0 and v = tau^2."""
    optimiser = SERVER_OPTIMISERS[name]()
    beta = 0.0 if name == "adagrad" else 0.9
    w, m, v = 1.0, 0.0, TAU**2
    model = {"w": torch.tensor([w], dtype=torch.float64)}
    state = optimiser.init(model)
    for target in (1.5, -2.0, 0.25):
        model, state = optimiser.step(model, {"w": torch.tensor([target], dtype=torch.float64)}, state)
        d = target - w
        m, v = beta * m + (1 - beta) * d, second(name, v, d)
        w += RATE * m / (v**0.5 + TAU)
        assert model["w"].item() == pytest.approx(w, rel=1e-12)


def test_the_first_step_of_fedadam_in_figures() -> None:
    """From 1 towards 3 it is 0.1 * 0.2 / (sqrt(0.99e-6 + 0.04) + 0.001)."""
    optimiser = SERVER_OPTIMISERS["adam"]()
    model = {"w": torch.ones(1, dtype=torch.float64)}
    moved, _ = optimiser.step(model, tree_map(lambda leaf: 3 * leaf, model), optimiser.init(model))
    assert moved["w"].item() == pytest.approx(1 + 0.0995012, abs=1e-7)


def test_nesterov_looks_ahead_by_hand() -> None:
    optimiser = SERVER_OPTIMISERS["nesterov"](momentum=0.5, learning_rate=2.0)  # type: ignore[call-arg]
    model = {"w": torch.zeros(1)}
    model, state = optimiser.step(model, {"w": torch.ones(1)}, optimiser.init(model))
    assert model["w"].item() == 3.0
    model, state = optimiser.step(model, {"w": torch.ones(1)}, state)
    # d = -2 and v = -1.5.
    assert (model["w"].item(), state["velocity"]["w"].item()) == (3 + 2 * (-2 - 0.75), -1.5)


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_the_median_is_that_of_numpy_over_who_counts(kept: int) -> None:
    rows = torch.from_numpy(np.random.RandomState(kept).standard_normal((6, 3, 2)))
    weights = torch.arange(6) * (torch.arange(6) >= 6 - kept)
    spoilt = rows.masked_fill(weights[:, None, None] == 0, torch.nan)
    found = AGGREGATORS["median"]()({"w": spoilt, "n": torch.arange(6)}, weights)
    np.testing.assert_allclose(found["w"], np.median(rows[6 - kept :], 0), rtol=0, atol=1e-15)
    assert found["n"].dtype == torch.int64


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "fedmate"])
def test_the_median_withstands_a_client_that_explodes(method: str) -> None:
    """The extractor that the third client sends is a billion times too large; the mean follows it."""
    moved = {}
    for name in ("mean", "median"):
        setup = replace(normed(), server=Server(AGGREGATORS[name]()))
        options: dict[str, Any] = {"cft": "all"} if method == "fedmate" else {}
        made = METHODS[method](setup=setup, **options)
        key, params, sent = make_key(4), setup.model.init_params(), []
        server = made.init_server(params, len(CLIENTS), key)
        for i, data in enumerate(CLIENTS):
            download = select(made.download(server, torch.tensor(i)), made.wire(0).down)
            result = made.local_update(made.init_client(params, key), download, data, fold(key, i))
            sent.append(select(result.upload, made.wire(0).up))
        sent[2]["extractor"] = tree_map(lambda leaf: 1e9 * leaf, sent[2]["extractor"])
        found = made.aggregate(server, stack(sent), torch.arange(3), torch.ones(3, dtype=torch.bool), key)
        apart = tree_map(lambda a, b: (a - b).abs().max(), found["extractor"], params["extractor"])
        moved[name] = max(leaf.item() for leaf in leaves(apart))
    assert moved["median"] < 1 < 1e6 < moved["mean"]
