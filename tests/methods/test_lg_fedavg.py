"""LG-FedAvg: a round by hand, what it reduces to, what crosses and what never mixes."""

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
    Wire,
    client_data,
    make_key,
)
from fedmate.methods.lg_fedavg import LGFedAvg

# -------------------- one step by hand


def test_a_round_by_hand() -> None:
    """Logits (v_0 w x, v_1 w x), one full-batch step each from w = 0.8, v = (0.5, -0.3), sizes 1 and 3.

    With e_k = p_k - [y = k]: d/dv_k = mean(e_k w x), d/dw = mean((e_0 v_0 + e_1 v_1) x). In a first step the
    velocity is the gradient plus the decay. The server averages v, 1 : 3; each client keeps its own w.
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
    method = LGFedAvg(setup=Setup(model, 2, 1, training))
    data = tuple(
        client_data(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y))
        for x, y in zip(inputs, labels, strict=True)
    )
    backend = Sequential(method, Federation(data, data[1], 2), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 2, make_key(0))
    server = backend.run_round(server, Round(0, (0, 1), evaluate=False)).server
    average = torch.from_numpy(0.25 * trained[0][1] + 0.75 * trained[1][1])[:, None]
    assert_close(server, {"classifier": {"weight": average}}, rtol=0, atol=1e-12)
    for client, (own, _) in zip(backend.clients, trained, strict=True):
        expected = {"extractor": {"0.weight": torch.tensor([[own]], dtype=torch.float64)}, "buffers": {}}
        assert_close(client, expected, rtol=0, atol=1e-12)


# -------------------- what stays with the client


@pytest.mark.parametrize("buffers", ["shared", "private"])
def test_nothing_of_the_extractor_crosses_whatever_buffers_are_declared(buffers: BufferPolicy) -> None:
    method = LGFedAvg(setup=Setup(normed_model(buffers), 3, 2, TRAINING))
    backend, results = run(method, CLIENTS, 2, everybody=True)
    assert method.wire(0) == Wire(frozenset({"classifier"}), frozenset({"classifier", "num_samples"}))
    for result in results:
        assert set(result.server) == {"classifier"}
        assert result.views["global"] is None
        assert [(set(report.down), set(report.up)) for report in result.reports] == [
            ({"classifier"}, {"classifier", "bookkeeping"})
        ] * 3
    means = [client["buffers"]["1.running_mean"] for client in backend.clients]
    assert not torch.equal(means[0], means[1])
    assert all(set(client) == {"extractor", "buffers"} for client in backend.clients)
