"""FedRep: a round by hand, its phases, and what stays with the client."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.testing import assert_close

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    Federation,
    Model,
    Setup,
    Training,
    client_data,
    make_key,
)
from fedmate.methods.fedrep import FedRep

# -------------------- one step by hand


def test_a_round_by_hand() -> None:
    """Logits (v_0 w x, v_1 w x) from w = 0.8, v = (0.5, -0.3), full batches, sizes 1 and 3.

    First two steps on v at rate 0.4, w fixed: with e_k = p_k - [y = k], d/dv_k = mean(e_k w x). Then two steps on w
    at rate 0.3, v fixed at what the first phase left: d/dw = mean((e_0 v_0 + e_1 v_1) x). Each phase starts with
    velocity 0 and decays only what it trains. The server averages w, 1 : 3; each client keeps its own v.
    """
    eta, eta_classifier, m, decay = 0.3, 0.4, 0.6, 0.05
    inputs, labels = ([1.5], [-0.7, 2.0, 0.4]), ([0], [1, 0, 1])
    trained = []
    for x, y in zip(map(np.array, inputs), map(np.array, labels), strict=True):
        w, v = 0.8, np.array([0.5, -0.3])
        onehot = np.stack([y == 0, y == 1])

        velocity = np.zeros(2)
        for _ in range(2):
            exponentials = np.exp(v[:, None] * w * x)
            e = exponentials / exponentials.sum(0) - onehot
            velocity = m * velocity + (e * w * x).mean(1) + decay * v
            v = v - eta_classifier * velocity

        speed = 0.0
        for _ in range(2):
            exponentials = np.exp(v[:, None] * w * x)
            e = exponentials / exponentials.sum(0) - onehot
            speed = m * speed + float(((e * v[:, None]).sum(0) * x).mean()) + decay * w
            w = w - eta * speed
        trained.append((w, v))

    extractor, classifier = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        extractor.weight.fill_(0.8)
        classifier.weight.copy_(torch.tensor([[0.5], [-0.3]], dtype=torch.float64))
    model = Model(nn.Sequential(extractor, classifier), classifier="1")
    settings = Training(batch_size=3, epochs=2, learning_rate=eta, momentum=m, weight_decay=decay)
    method = FedRep(setup=Setup(model, 2, 1, settings), classifier_epochs=2, classifier_learning_rate=eta_classifier)
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
