"""SCAFFOLD: two rounds by hand, what it reduces to, what its variates add up to, and what crosses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.methods.small import normed_model, run, sequences
from torch import nn
from torch.testing import assert_close

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    MODEL_PARTS,
    BufferPolicy,
    Federation,
    Method,
    Model,
    Setup,
    Training,
    Tree,
    client_data,
    make_key,
    select,
    stack,
    tree_map,
    weighted_mean,
)
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.scaffold import Scaffold

Array = npt.NDArray[np.float64]

TRAINED = ("extractor", "classifier")
TRAINING = Training(batch_size=2, epochs=2, learning_rate=0.1, momentum=0.0, weight_decay=0.01)


RAGGED = (sequences(1, [0, 1, 2, 0, 1]), sequences(2, [1, 1]), sequences(3, [0, 2, 2, 1]))
EQUAL = (sequences(1, [0, 1, 2]), sequences(2, [1, 1, 1]), sequences(3, [0, 2, 2]))


def controls(backend: Sequential) -> Tree:
    return stack([client["control"] for client in backend.clients])


# -------------------- rounds by hand

ETA, DECAY, EPOCHS = 0.3, 0.05, 2


def train_by_hand(p: Array, correction: Array, x: float, y: int, steps: int, momentum: float) -> Array:
    """Take steps on the cross-entropy of one sample under logits (v_0 w x, v_1 w x), p = (w, v_0, v_1).

    With e_k = p_k - [y = k]: d/dv_k = e_k w x, d/dw = (e_0 v_0 + e_1 v_1) x.
    """
    velocity = np.zeros(3)
    for _ in range(steps):
        logits = p[1:] * p[0] * x
        e = np.exp(logits) / np.exp(logits).sum() - np.eye(2)[y]
        gradient = np.array([e @ p[1:] * x, *(e * p[0] * x)])
        velocity = momentum * velocity + gradient + DECAY * p + correction
        p = p - ETA * velocity
    return p


def as_tree(p: Array) -> Tree:
    numbers = torch.from_numpy(p)
    return {"extractor": {"0.weight": numbers[:1, None]}, "classifier": {"weight": numbers[1:, None]}}


@pytest.mark.parametrize(("momentum", "server_rate"), [(0.0, 1.0), (0.5, 0.7)])
def test_two_rounds_by_hand(momentum: float, server_rate: float) -> None:
    """One sample, and three copies of one: batches of 2 make 1 and 2 steps an epoch. A third client stays away."""
    samples, sizes = [(1.5, 0), (-0.7, 1)], (1, 3)
    w, c, own = np.array([0.8, 0.5, -0.3]), np.zeros(3), [np.zeros(3), np.zeros(3)]
    for _ in range(2):
        ends, news = [], []
        for i, (x, y) in enumerate(samples):
            steps = EPOCHS * (i + 1)
            ends.append(train_by_hand(w, c - own[i], x, y, steps, momentum))
            reach = ETA * sum(momentum**j for k in range(steps) for j in range(k + 1))
            news.append(own[i] - c + (w - ends[i]) / reach)
        w = w + server_rate * (0.25 * (ends[0] - w) + 0.75 * (ends[1] - w))
        c = c + 2 / 3 * (0.25 * (news[0] - own[0]) + 0.75 * (news[1] - own[1]))
        own = news

    extractor, classifier = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        extractor.weight.fill_(0.8)
        classifier.weight.copy_(torch.tensor([[0.5], [-0.3]], dtype=torch.float64))
    model = Model(nn.Sequential(extractor, classifier), classifier="1")
    training = Training(batch_size=2, epochs=EPOCHS, learning_rate=ETA, momentum=0.9, weight_decay=DECAY)
    method = Scaffold(setup=Setup(model, 2, 2, training), momentum=momentum, server_learning_rate=server_rate)
    data = tuple(
        client_data(torch.full((size, 1), x, dtype=torch.float64), torch.full((size,), y))
        for (x, y), size in zip([*samples, (1.0, 0)], [*sizes, 5], strict=True)
    )
    backend = Sequential(method, Federation(data, data[1], 2), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 3, make_key(0))
    for t in range(2):
        server = backend.run_round(server, Round(t, (0, 1), evaluate=False)).server
    assert_close(select(server, TRAINED), as_tree(w), rtol=0, atol=1e-12)
    assert_close(server["control"], as_tree(c), rtol=0, atol=1e-12)
    for i, expected in enumerate([*own, np.zeros(3)]):
        assert_close(backend.clients[i]["control"], as_tree(expected), rtol=0, atol=1e-12)


# -------------------- reductions


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_without_variates_it_is_fedavg(buffers: BufferPolicy) -> None:
    """That is the first round, whatever `training.momentum` says; the second is another."""
    setup = Setup(normed_model(buffers), 3, 2, TRAINING)
    with_momentum = replace(setup, training=replace(TRAINING, momentum=0.9))
    _, mine = run(Scaffold(setup=with_momentum), RAGGED, 2)
    _, other = run(FedAvg(setup=setup), RAGGED, 2)
    assert_close(select(mine[0].server, MODEL_PARTS), other[0].server, rtol=0, atol=1e-12)
    assert_close(mine[0].views, {name: other[0].views[name] for name in mine[0].views}, rtol=0, atol=1e-12)
    with pytest.raises(AssertionError, match="not close"):
        assert_close(select(mine[1].server, MODEL_PARTS), other[1].server, rtol=0, atol=1e-6)


def pooled_slope(method: Method) -> float:
    """Return the largest slope of the loss of all samples together where a linear model ends up."""
    x, y = torch.tensor([[1.0, 0.2], [-0.5, 1.0], [0.3, -1.0], [2.0, 1.0]]).double(), torch.tensor([0, 1, 1, 0])
    clients = (client_data(x[:1], y[:1]), client_data(x[1:], y[1:]))
    backend = Sequential(method, Federation(clients, clients[0], 2), make_key(4), workers=1)
    server = method.init_server(method.setup.model.init_params(), 2, make_key(4))
    for t in range(method.setup.rounds):
        server = backend.run_round(server, Round(t, (0, 1), evaluate=False)).server
    weight, bias = (server["classifier"][name].clone().requires_grad_() for name in ("weight", "bias"))
    loss = nn.functional.cross_entropy(x @ weight.T + bias, y)
    loss = loss + method.setup.training.weight_decay / 2 * (weight.square().sum() + bias.square().sum())
    return max(float(slope.abs().max()) for slope in torch.autograd.grad(loss, (weight, bias)))


def test_it_ends_where_the_pooled_loss_is_lowest_and_fedavg_does_not() -> None:
    """Clients of 1 and 3 samples: variates with other weights than the models' would end elsewhere."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = Model(nn.Sequential(nn.Flatten(), nn.Linear(2, 2)).double(), classifier="1")
    training = Training(batch_size=3, epochs=4, learning_rate=0.5, momentum=0.0, weight_decay=0.3)
    setup = Setup(model, 2, 30, training)
    assert pooled_slope(FedAvg(setup=setup)) > 1e-2
    assert pooled_slope(Scaffold(setup=setup)) < 1e-8


# -------------------- variates


def test_the_common_variate_is_the_mean_of_the_clients() -> None:
    """With clients of one size, also of those who were never there."""
    method = Scaffold(setup=Setup(normed_model(), 3, 4, TRAINING))
    for rounds in (1, 2, 4):
        backend, results = run(method, EQUAL, rounds)
        mean = tree_map(lambda rows: rows.mean(0), controls(backend))
        assert float(mean["classifier"]["weight"].abs().max()) > 1e-3
        assert_close(results[-1].server["control"], mean, rtol=0, atol=1e-12)


def test_the_common_variate_does_not_drift_from_those_of_ragged_clients() -> None:
    """One after the other stays away: a share of a weighted mean would lead c astray a little further every round."""
    method = Scaffold(setup=Setup(normed_model(), 3, 9, TRAINING))
    sizes = torch.tensor([len(data.y) for data in RAGGED])
    for rounds in (1, 2, 9):
        backend, results = run(method, RAGGED, rounds)
        met = sizes[1:] if rounds == 1 else sizes
        share = sizes.sum() / (len(sizes) * met.double().mean())
        expected = tree_map(lambda leaf, share=share: leaf * share, weighted_mean(controls(backend), sizes))
        assert_close(results[-1].server["control"], expected, rtol=0, atol=1e-12)
