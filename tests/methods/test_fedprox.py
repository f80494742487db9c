"""FedProx: a round by hand, what it reduces to, and what crosses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
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
from fedmate.methods.fedprox import FedProx

# -------------------- one round by hand

ETA, MOMENTUM, DECAY, MU = 0.3, 0.6, 0.05, 0.7


def train_by_hand(start: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Two full-batch steps on the cross-entropy of softmax(v_0 w x, v_1 w x) plus MU / 2 |p - start|^2, p = (w, v).

    With e_k = p_k - [y = k]: d/dv_k = mean(e_k w x), d/dw = mean((e_0 v_0 + e_1 v_1) x). In the first step the model
    is where it started, and the pull is 0; the velocity carries the pull of the second on.
    """
    p, velocity = start, np.zeros(3)
    for _ in range(2):
        w, v = p[0], p[1:]
        logits = v[:, None] * w * x
        e = np.exp(logits) / np.exp(logits).sum(0) - np.stack([y == 0, y == 1])
        slope = np.array([((e * v[:, None]).sum(0) * x).mean(), *(e * w * x).mean(1)])
        velocity = MOMENTUM * velocity + slope + MU * (p - start) + DECAY * p
        p = p - ETA * velocity
    return p


def test_a_round_by_hand() -> None:
    """Clients with 1 and 3 samples train from the same model; the server takes 1/4 and 3/4 of what they send."""
    start = np.array([0.8, 0.5, -0.3])
    inputs, labels = ([1.5], [-0.7, 2.0, 0.4]), ([0], [1, 0, 1])
    ones = [train_by_hand(start, np.array(x), np.array(y)) for x, y in zip(inputs, labels, strict=True)]
    w, *v = 0.25 * ones[0] + 0.75 * ones[1]

    extractor, classifier = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        extractor.weight.fill_(start[0])
        classifier.weight.copy_(torch.from_numpy(start[1:])[:, None])
    model = Model(nn.Sequential(extractor, classifier), classifier="1")
    training = Training(batch_size=3, epochs=2, learning_rate=ETA, momentum=MOMENTUM, weight_decay=DECAY)
    method = FedProx(setup=Setup(model, 2, 1, training), proximal_weight=MU)
    data = tuple(
        client_data(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y))
        for x, y in zip(inputs, labels, strict=True)
    )
    backend = Sequential(method, Federation(data, data[1], 2), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 2, make_key(0))
    server = backend.run_round(server, Round(0, (0, 1), evaluate=False)).server
    expected = {
        "extractor": {"0.weight": torch.tensor([[w]], dtype=torch.float64)},
        "classifier": {"weight": torch.tensor(v, dtype=torch.float64)[:, None]},
        "buffers": {},
    }
    assert_close(server, expected, rtol=0, atol=1e-12)


# -------------------- reductions


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_without_weight_it_is_fedavg_bit_for_bit(buffers: BufferPolicy) -> None:
    setup = Setup(normed_model(buffers), 3, 3, TRAINING)
    ours, mine = run(FedProx(setup=setup, proximal_weight=0), CLIENTS, 3)
    theirs, other = run(FedAvg(setup=setup), CLIENTS, 3)
    assert_close(ours.clients, theirs.clients, rtol=0, atol=0)
    for a, b in zip(mine, other, strict=True):
        assert_close(a.server, b.server, rtol=0, atol=0)
        assert_close(a.reports, b.reports, rtol=0, atol=0)
        assert set(a.views) == {"pre", "post", "global"}
        assert_close(a.views, {name: b.views[name] for name in a.views}, rtol=0, atol=0)
