"""FedAvg: a round by hand, what it reduces to, and what happens to buffers."""

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
    Tree,
    client_data,
    make_key,
)
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.local import Local

ETA, MOMENTUM, DECAY = 0.3, 0.6, 0.05


def scalar_model() -> Model:
    """Logits (v_0 w x, v_1 w x): an extractor w and a classifier v, three numbers in all."""
    extractor, classifier = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        extractor.weight.fill_(0.8)
        classifier.weight.copy_(torch.tensor([[0.5], [-0.3]], dtype=torch.float64))
    return Model(nn.Sequential(extractor, classifier), classifier="1")


def train_by_hand(w: float, v: tuple[float, float], x: list[float], y: list[int]) -> tuple[float, float, float]:
    """Two full-batch steps on the mean cross-entropy of softmax(v_0 w x, v_1 w x).

    With e_k = p_k - [y = k]: d/dv_k = mean(e_k w x), d/dw = mean((e_0 v_0 + e_1 v_1) x).
    """
    xs, ys, p = np.array(x), np.array(y), np.array([w, *v])
    velocity = np.zeros(3)
    for _ in range(2):
        logits = np.stack([p[1] * p[0] * xs, p[2] * p[0] * xs])
        e = np.exp(logits) / np.exp(logits).sum(0) - np.stack([ys == 0, ys == 1])
        gradient = np.array(
            [((e[0] * p[1] + e[1] * p[2]) * xs).mean(), (e[0] * p[0] * xs).mean(), (e[1] * p[0] * xs).mean()]
        )
        velocity = MOMENTUM * velocity + gradient + DECAY * p
        p = p - ETA * velocity
    return float(p[0]), float(p[1]), float(p[2])


def test_a_round_by_hand() -> None:
    """Clients with 1 and 3 samples train from the same model; the server takes 1/4 and 3/4 of what they send."""
    x, y = ([1.5], [0]), ([-0.7, 2.0, 0.4], [1, 0, 1])
    ones = [train_by_hand(0.8, (0.5, -0.3), list(a), list(b)) for a, b in (x, y)]
    w, v0, v1 = (0.25 * a + 0.75 * b for a, b in zip(*ones, strict=True))

    data = tuple(client_data(torch.tensor(a, dtype=torch.float64)[:, None], torch.tensor(b)) for a, b in (x, y))
    training = Training(batch_size=3, epochs=2, learning_rate=ETA, momentum=MOMENTUM, weight_decay=DECAY)
    model = scalar_model()
    method = FedAvg(setup=Setup(model, 2, 1, training))
    backend = Sequential(method, Federation(data, data[1], 2), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 2, make_key(0))
    server = backend.run_round(server, Round(0, (0, 1), evaluate=False)).server
    expected = {
        "extractor": {"0.weight": torch.tensor([[w]], dtype=torch.float64)},
        "classifier": {"weight": torch.tensor([[v0], [v1]], dtype=torch.float64)},
        "buffers": {},
    }
    assert_close(server, expected, rtol=0, atol=1e-12)


# -------------------- with BatchNorm and dropout


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_with_one_client_it_is_local_training_bit_for_bit(buffers: BufferPolicy) -> None:
    setup = Setup(normed_model(buffers), 3, 3, TRAINING)
    average, ours = run(FedAvg(setup=setup), CLIENTS[:1], 3, everybody=True)
    local, theirs = run(Local(setup=setup), CLIENTS[:1], 3, everybody=True)
    held: Tree = {**ours[-1].server, **(average.clients[0] if buffers == "private" else {})}
    assert_close(held, local.clients[0], rtol=0, atol=0)
    for mine, other in zip(ours, theirs, strict=True):
        for view in ("pre", "post"):
            assert_close(mine.views[view], other.views[view], rtol=0, atol=0)
        assert mine.reports[0].loss_after == other.reports[0].loss_after
