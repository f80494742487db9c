"""FedRoD: a round by hand, what the generic stream reduces to, and what stays with the client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.small import TRAINING, normed_model, run, sequences
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
from fedmate.errors import UserError
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedrod import FedRoD

CLIENTS = (sequences(1, [0, 1, 2, 0, 1]), sequences(2, [1, 1]), sequences(3, [0, 2, 2, 0]))


def perceptron() -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = [nn.Flatten(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)]
        return Model(nn.Sequential(*layers).double(), classifier="3")


# -------------------- a round by hand


def test_a_round_by_hand() -> None:
    """Logits v w x and (v + u) w x over three classes, two full-batch steps, sizes 3 and 1; u starts at 0.

    With e = softmax(logits) - [y = k]: d/dv_k = mean(e_k w x), d/dw = mean(sum_k e_k v_k x) of the balanced logits,
    and d/du_k = mean(e_k w x) of the personal ones. The balanced softmax is taken over the classes a client holds.
    """
    eta, momentum, decay = 0.3, 0.6, 0.05
    inputs, labels = ([-0.7, 2.0, 0.4], [1.5]), ([0, 1, 0], [2])
    trained = []
    for x, y in zip(map(np.array, inputs), map(np.array, labels), strict=True):
        w, v, u, velocity = 0.8, np.array([0.5, -0.3, 0.2]), np.zeros(3), np.zeros(7)
        counts, truth = np.bincount(y, minlength=3), np.eye(3)[y].T
        for _ in range(2):
            balanced, personal = counts[:, None] * np.exp(np.outer(v, w * x)), np.exp(np.outer(v + u, w * x))
            e, own = balanced / balanced.sum(0) - truth, personal / personal.sum(0) - truth
            slopes = [(v @ e * x).mean(), *(e * w * x).mean(1), *(own * w * x).mean(1)]
            velocity = momentum * velocity + slopes + decay * np.array([w, *v, *u])
            w, v, u = w - eta * velocity[0], v - eta * velocity[1:4], u - eta * velocity[4:]
        trained.append((w, v, u))

    extractor, classifier = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 3, bias=False).double()
    with torch.no_grad():
        extractor.weight.fill_(0.8)
        classifier.weight.copy_(torch.tensor([[0.5], [-0.3], [0.2]], dtype=torch.float64))
    model = Model(nn.Sequential(extractor, classifier), classifier="1")
    training = Training(batch_size=3, epochs=2, learning_rate=eta, momentum=momentum, weight_decay=decay)
    method = FedRoD(setup=Setup(model, 3, 1, training))
    data = tuple(
        client_data(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y))
        for x, y in zip(inputs, labels, strict=True)
    )
    backend = Sequential(method, Federation(data, data[0], 3), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 2, make_key(0))
    server = backend.run_round(server, Round(0, (0, 1), evaluate=False)).server
    (w_0, v_0, _), (w_1, v_1, _) = trained
    mean_w, mean_v = 0.75 * w_0 + 0.25 * w_1, 0.75 * v_0 + 0.25 * v_1
    assert_close(server["extractor"]["0.weight"].numpy(), np.array([[mean_w]]), rtol=0, atol=1e-12)
    assert_close(server["classifier"]["weight"].numpy(), mean_v[:, None], rtol=0, atol=1e-12)
    for client, (_, _, own) in zip(backend.clients, trained, strict=True):
        assert_close(client["personal_classifier"]["weight"].numpy(), own[:, None], rtol=0, atol=1e-12)


# -------------------- the generic stream


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_without_balance_the_generic_stream_is_fedavg_bit_for_bit(buffers: BufferPolicy) -> None:
    setup = Setup(normed_model(buffers), 3, 3, TRAINING)
    ours, mine = run(FedRoD(setup=setup, balanced=False), CLIENTS, 3)
    theirs, other = run(FedAvg(setup=setup), CLIENTS, 3)
    for a, b in zip(mine, other, strict=True):
        assert_close(a.server, b.server, rtol=0, atol=0)
        assert (a.views["global"] is None) == (buffers == "private")
        assert_close(a.views["global"], b.views["global"], rtol=0, atol=0)
        assert [(r.down, r.up) for r in a.reports] == [(r.down, r.up) for r in b.reports]
    for i, client in enumerate(ours.clients):
        assert_close(client["buffers"], theirs.clients[i]["buffers"], rtol=0, atol=0)


def test_classes_a_client_lacks_are_neither_raised_nor_lowered() -> None:
    """Nothing but weight decay moves their rows; a client of one class moves nothing at all."""
    setup = Setup(perceptron(), 3, 1, replace(TRAINING, weight_decay=0.0))
    method = FedRoD(setup=setup)
    start = setup.model.init_params()
    for data, lacking in ((CLIENTS[2], [1]), (CLIENTS[1], [0, 2])):
        result = method.local_update(method.init_client(start, make_key(0)), start, data, make_key(1))
        for name, before in start["classifier"].items():
            assert_close(result.upload["classifier"][name][lacking], before[lacking], rtol=0, atol=0)
        alone = len(lacking) == 2
        assert torch.equal(result.upload["extractor"]["1.weight"], start["extractor"]["1.weight"]) == alone
        assert result.client["personal_classifier"]["weight"].abs().min() > 0


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("absent", [0.0, 0.1])
def test_the_generic_loss_follows_calibration_and_is_balanced_without(tau: float, absent: float) -> None:
    """By hand, one full-batch step: shares to the power of tau, or of 1; classes that are not held as rare, or not."""
    setup = Setup(perceptron(), 3, 1, Training(batch_size=4, epochs=1, learning_rate=0.3, weight_decay=0.0))
    method, data = FedRoD(setup=setup, calibration=tau, absent_share=absent), CLIENTS[2]
    start = setup.model.init_params()
    result = method.local_update(method.init_client(start, make_key(0)), start, data, make_key(1))
    z, _ = setup.model.features(start, data.x)
    shares = torch.tensor([0.5, absent * bool(tau), 0.5], dtype=torch.float64)
    answers = shares ** (tau or 1.0) * setup.model.classify(start, z).exp() * (shares > 0)
    wrong = answers / answers.sum(1, keepdim=True) - torch.eye(3, dtype=torch.float64)[data.y]
    expected = start["classifier"]["weight"] - 0.3 * wrong.T @ z / 4
    assert_close(result.upload["classifier"]["weight"], expected, rtol=0, atol=1e-12)


# -------------------- the personal classifier


def test_a_classifier_of_two_layers_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 3)))
    model = Model(module, classifier="1")
    with pytest.raises(UserError, match=r"`classifier` must be a single linear layer, .* `0\.weight`"):
        FedRoD(setup=Setup(model, 3, 1, TRAINING)).prepare(model)
    bare = Model(nn.Sequential(nn.Flatten(), nn.Linear(8, 3, bias=False)), classifier="1")
    assert FedRoD(setup=Setup(bare, 3, 1, TRAINING)).prepare(bare) is bare
