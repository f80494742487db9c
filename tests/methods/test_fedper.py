"""FedPer: a round by hand, what it reduces to, and what stays with the client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.small import CLIENTS, TRAINING, normed_model, run
from torch import nn
from torch.testing import assert_close

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    BufferPolicy,
    Federation,
    Model,
    Setup,
    Training,
    client_data,
    make_key,
)
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedper import FedPer
from fedmate.methods.local import Local


def perceptron() -> Model:
    """Two layers of features, `1` and `3`, and the classifier `5`."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = [nn.Flatten(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)]
        return Model(nn.Sequential(*layers).double(), classifier="5")


# -------------------- one step by hand


def test_a_round_by_hand() -> None:
    """Logits (v_0 w x, v_1 w x), one full-batch step each from w = 0.8, v = (0.5, -0.3), sizes 1 and 3.

    With e_k = p_k - [y = k]: d/dv_k = mean(e_k w x), d/dw = mean((e_0 v_0 + e_1 v_1) x). In a first step the
    velocity is the gradient plus the decay. The server averages w, 1 : 3; each client keeps its own v.
    """
    eta, decay, w, v = 0.3, 0.05, 0.8, np.array([0.5, -0.3])
    inputs, labels = ([1.5], [-0.7, 2.0, 0.4]), ([0], [1, 0, 1])
    trained = []
    for x, y in zip(map(np.array, inputs), map(np.array, labels), strict=True):
        logits = v[:, None] * w * x
        e = np.exp(logits) / np.exp(logits).sum(0) - np.stack([y == 0, y == 1])
        w_after = w - eta * (((e * v[:, None]).sum(0) * x).mean() + decay * w)
        trained.append((w_after, v - eta * ((e * w * x).mean(1) + decay * v)))

    extractor, classifier = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        extractor.weight.fill_(w)
        classifier.weight.copy_(torch.from_numpy(v)[:, None])
    model = Model(nn.Sequential(extractor, classifier), classifier="1")
    training = Training(batch_size=3, epochs=1, learning_rate=eta, momentum=0.6, weight_decay=decay)
    method = FedPer(setup=Setup(model, 2, 1, training))
    data = tuple(
        client_data(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y))
        for x, y in zip(inputs, labels, strict=True)
    )
    backend = Sequential(method, Federation(data, data[1], 2), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 2, make_key(0))
    server = backend.run_round(server, Round(0, (0, 1), evaluate=False)).server
    average = torch.tensor([[0.25 * trained[0][0] + 0.75 * trained[1][0]]], dtype=torch.float64)
    assert_close(server, {"extractor": {"0.weight": average}, "buffers": {}}, rtol=0, atol=1e-12)
    for client, (_, own) in zip(backend.clients, trained, strict=True):
        assert_close(client["classifier"]["weight"], torch.from_numpy(own)[:, None], rtol=0, atol=1e-12)


# -------------------- reductions


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_without_personal_layers_it_is_fedavg_bit_for_bit(buffers: BufferPolicy) -> None:
    setup = Setup(normed_model(buffers), 3, 3, TRAINING)
    ours, mine = run(FedPer(setup=setup, personal_layers=0), CLIENTS, 3)
    theirs, other = run(FedAvg(setup=setup), CLIENTS, 3)
    assert_close(ours.clients, theirs.clients, rtol=0, atol=0)
    for a, b in zip(mine, other, strict=True):
        assert_close(a.server, b.server, rtol=0, atol=0)
        assert_close(a.reports, b.reports, rtol=0, atol=0)
        assert set(a.views) == {"pre", "post", "global"}
        assert_close(a.views, {name: b.views[name] for name in a.views}, rtol=0, atol=0)


@pytest.mark.parametrize("personal_layers", [3, 7])
def test_with_personal_layers_alone_it_is_local_training_bit_for_bit(personal_layers: int) -> None:
    setup = Setup(perceptron(), 3, 3, TRAINING)
    ours, results = run(FedPer(setup=setup, personal_layers=personal_layers), CLIENTS, 3)
    theirs, _ = run(Local(setup=setup), CLIENTS, 3)
    assert_close(ours.clients, theirs.clients, rtol=0, atol=0)
    assert all(sum(report.down.values()) == 0 for report in results[-1].reports)


# -------------------- what stays with the client


def test_two_personal_layers_keep_the_last_layer_of_the_extractor_too() -> None:
    method = FedPer(setup=Setup(perceptron(), 3, 3, TRAINING), personal_layers=2)
    backend, results = run(method, CLIENTS, 3)
    for result in results:
        assert set(result.server["extractor"]) == {"1.weight", "1.bias"}
        assert [report.up["extractor"] for report in result.reports] == [8 * (4 * 8 + 4)] * 2
    own = [client["extractor"] for client in backend.clients]
    assert [set(tensors) for tensors in own] == [{"3.weight", "3.bias"}] * 3
    assert not torch.equal(own[0]["3.weight"], own[1]["3.weight"])
