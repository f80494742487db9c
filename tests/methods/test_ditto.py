"""Ditto: a round by hand, what it reduces to, and which of its two models crosses."""

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
from fedmate.methods.ditto import Ditto
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.local import Local

# -------------------- by hand


def test_two_rounds_by_hand() -> None:
    """Logits (v_0 w x, v_1 w x), p = (w, v_0, v_1), two full-batch steps a round, sizes 1 and 3.

    With e_k = p_k - [y = k]: d/dw = mean((e_0 v_0 + e_1 v_1) x), d/dv_k = mean(e_k w x). The common model follows that;
    a personal one has lambda (p - p of the server at the start of the round) on top. Both have velocity 0 at the start
    of a round and decay. The server averages common models, 1 : 3; personal ones go on from where they were.
    """
    eta, m, decay, weight, initial = 0.3, 0.6, 0.05, 0.7, np.array([0.8, 0.5, -0.3])
    inputs, labels = (np.array([1.5]), np.array([-0.7, 2.0, 0.4])), (np.array([0]), np.array([1, 0, 1]))

    def train(p: np.ndarray, x: np.ndarray, y: np.ndarray, pull: float, centre: np.ndarray) -> np.ndarray:
        velocity = np.zeros(3)
        for _ in range(2):
            exponentials = np.exp(p[1:, None] * p[0] * x)
            e = exponentials / exponentials.sum(0) - np.stack([y == 0, y == 1])
            gradient = np.array([((e * p[1:, None]).sum(0) * x).mean(), *(e * p[0] * x).mean(1)])
            velocity = m * velocity + gradient + pull * (p - centre) + decay * p
            p = p - eta * velocity
        return p

    common, personal = initial, [initial, initial]
    for _ in range(2):
        samples = list(zip(inputs, labels, strict=True))
        personal = [train(p, x, y, weight, common) for p, (x, y) in zip(personal, samples, strict=True)]
        sent = [train(common, x, y, 0.0, common) for x, y in samples]
        common = 0.25 * sent[0] + 0.75 * sent[1]

    extractor, classifier = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        extractor.weight.fill_(initial[0])
        classifier.weight.copy_(torch.from_numpy(initial[1:])[:, None])
    model = Model(nn.Sequential(extractor, classifier), classifier="1")
    training = Training(batch_size=3, epochs=2, learning_rate=eta, momentum=m, weight_decay=decay)
    method = Ditto(setup=Setup(model, 2, 2, training), proximal_weight=weight)
    data = tuple(
        client_data(torch.from_numpy(x)[:, None], torch.from_numpy(y)) for x, y in zip(inputs, labels, strict=True)
    )
    backend = Sequential(method, Federation(data, data[1], 2), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 2, make_key(0))
    for t in range(2):
        server = backend.run_round(server, Round(t, (0, 1), evaluate=False)).server
    found = [server, *(client["personal_model"] for client in backend.clients)]
    for tree, expected in zip(found, (common, *personal), strict=True):
        numbers = torch.cat([tree["extractor"]["0.weight"], tree["classifier"]["weight"]]).flatten()
        assert_close(numbers, torch.from_numpy(expected), rtol=0, atol=1e-12)


# -------------------- reductions


@pytest.mark.parametrize(("buffers", "weight"), [("shared", 0.0), ("shared", 0.7), ("private", 0.7), ("dropped", 0.7)])
def test_the_common_model_is_fedavgs_bit_for_bit(buffers: BufferPolicy, weight: float) -> None:
    setup = Setup(normed_model(buffers), 3, 3, TRAINING)
    ours, mine = run(Ditto(setup=setup, proximal_weight=weight), CLIENTS, 3)
    theirs, other = run(FedAvg(setup=setup), CLIENTS, 3)
    for a, b in zip(mine, other, strict=True):
        assert_close(a.server, b.server, rtol=0, atol=0)
        assert_close(a.views["global"], b.views["global"], rtol=0, atol=0)
        assert [(report.down, report.up) for report in a.reports] == [(report.down, report.up) for report in b.reports]
    # The common model's own statistics, which matter where they are private.
    for client, reference in zip(ours.clients, theirs.clients, strict=True):
        assert_close(client["buffers"], reference["buffers"], rtol=0, atol=0)


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_without_a_pull_personal_models_are_locals_bit_for_bit(buffers: BufferPolicy) -> None:
    setup = Setup(normed_model(buffers), 3, 3, TRAINING)
    ours, mine = run(Ditto(setup=setup, proximal_weight=0.0), CLIENTS, 3)
    theirs, other = run(Local(setup=setup), CLIENTS, 3)
    for client, reference in zip(ours.clients, theirs.clients, strict=True):
        assert_close(client["personal_model"], reference, rtol=0, atol=0)
    for a, b in zip(mine, other, strict=True):
        for view in ("pre", "post"):
            assert_close(a.views[view], b.views[view], rtol=0, atol=0)
        losses = [[(report.loss_before, report.loss_after) for report in result.reports] for result in (a, b)]
        assert losses[0] == losses[1]
