"""FedProto: rounds by hand, what it reduces to, what crosses, and the nearest prototype as a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.methods.small import TRAINING, normed_model, sequences
from torch import Tensor, nn
from torch.testing import assert_close

from fedmate.backends.base import Round, RoundResult
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    BufferPolicy,
    ClientData,
    Federation,
    Method,
    Model,
    Setup,
    Training,
    Tree,
    client_data,
    make_key,
    normal,
    uniform,
)
from fedmate.methods.fedproto import FedProto
from fedmate.methods.local import Local

Numbers = npt.NDArray[np.float64]

CLASSES = 4


CLIENTS = (sequences(1, [0, 1, 2, 0, 1]), sequences(2, [1, 1]), sequences(3, [0, 2, 2, 1]), sequences(4, [2]))
"""Nobody holds class 3."""
TEST = sequences(9, [0, 1, 2, 3])


def make(buffers: BufferPolicy = "shared", **options: Any) -> FedProto:
    return FedProto(setup=Setup(normed_model(buffers, classes=CLASSES), CLASSES, 3, TRAINING), **options)


def run(method: Method, rounds: int, clients: tuple[ClientData, ...] = CLIENTS) -> tuple[Sequential, list[RoundResult]]:
    """Run rounds in which one client after the other stays away."""
    backend = Sequential(method, Federation(clients, TEST, CLASSES), make_key(4), workers=1)
    server = method.init_server(method.setup.model.init_params(), len(clients), make_key(4))
    results = []
    for t in range(rounds):
        present = tuple(i for i in range(len(clients)) if i != t)
        results.append(backend.run_round(server, Round(t, present, evaluate=True)))
        server = results[-1].server
    return backend, results


# -------------------- two rounds by hand

ETA, DECAY, LAMBDA = 0.3, 0.05, 0.7
INPUTS = (np.array([1.5, 0.2, -0.4]), np.array([-0.7, 2.0, 0.4, 0.9]))
LABELS = (np.array([0, 0, 1]), np.array([1, 0, 1, 1]))


def step_by_hand(w: Numbers, v: Numbers, x: Numbers, y: Numbers, targets: Numbers | None) -> tuple[Numbers, Numbers]:
    """Features z = w x, logits v z; with e = p - [y = k] the cross-entropy sends v' e back to z, and e z' to v.

    The mean squared error over two features sends back lambda * 2 (z - P_y) / 2. In a first step the velocity is the
    gradient plus the decay.
    """
    z = w[:, None] * x
    powers = np.exp(v @ z)
    e = powers / powers.sum(0) - np.stack([y == 0, y == 1])
    back = v.T @ e
    if targets is not None:
        back = back + LAMBDA * (z - targets[y].T)
    by_v = e @ z.T / len(x)
    return w - ETA * ((back * x).mean(1) + DECAY * w), v - ETA * (by_v + DECAY * v)


def mix_by_hand(own: list[Numbers], weighting: str) -> Numbers:
    """Average the two clients' prototypes of each class by counts, 2 : 1 and 1 : 3, or alike."""
    shares = {"size": [[2 / 3, 1 / 3], [1 / 4, 3 / 4]], "equal": [[1 / 2, 1 / 2]] * 2}[weighting]
    return np.stack([sum(share * p[k] for share, p in zip(shares[k], own, strict=True)) for k in (0, 1)])


@pytest.mark.parametrize("weighting", ["size", "equal"])
def test_two_rounds_by_hand(weighting: str) -> None:
    w, v = np.array([0.8, -0.5]), np.array([[0.5, 0.1], [-0.3, 0.4]])
    models, targets = [(w, v)] * 2, None
    for _ in range(2):
        models = [step_by_hand(*model, x, y, targets) for model, x, y in zip(models, INPUTS, LABELS, strict=True)]
        own = [
            np.stack([model[0] * x[y == k].mean() for k in (0, 1)])
            for model, x, y in zip(models, INPUTS, LABELS, strict=True)
        ]
        targets = mix_by_hand(own, weighting)

    extractor, classifier = nn.Linear(1, 2, bias=False).double(), nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        extractor.weight.copy_(torch.from_numpy(w)[:, None])
        classifier.weight.copy_(torch.from_numpy(v))
    model = Model(nn.Sequential(extractor, classifier), classifier="1")
    training = Training(batch_size=4, epochs=1, learning_rate=ETA, momentum=0.6, weight_decay=DECAY)
    method = FedProto(setup=Setup(model, 2, 2, training), prototype_weight=LAMBDA, weighting=weighting)  # type: ignore[arg-type]
    data = tuple(
        client_data(torch.from_numpy(x)[:, None], torch.from_numpy(y)) for x, y in zip(INPUTS, LABELS, strict=True)
    )
    backend = Sequential(method, Federation(data, data[1], 2), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 2, make_key(0))
    for t in range(2):
        result = backend.run_round(server, Round(t, (0, 1), evaluate=False))
        server = result.server
    for client, (w_after, v_after) in zip(backend.clients, models, strict=True):
        assert_close(client["extractor"]["0.weight"], torch.from_numpy(w_after)[:, None], rtol=0, atol=1e-12)
        assert_close(client["classifier"]["weight"], torch.from_numpy(v_after), rtol=0, atol=1e-12)
    assert_close(server["prototypes"], torch.from_numpy(targets), rtol=0, atol=1e-12)
    assert server["known"].all()
    recorded = result.diagnostics["clients"]["prototypes"]
    assert_close(recorded, torch.from_numpy(np.stack(own)), rtol=0, atol=1e-12)


# -------------------- reductions


def test_without_weight_it_is_local_training_bit_for_bit() -> None:
    method = make(prototype_weight=0.0)
    ours, mine = run(method, 3)
    theirs, other = run(Local(setup=method.setup), 3)
    assert_close(ours.clients, theirs.clients, rtol=0, atol=0)
    for a, b in zip(mine, other, strict=True):
        assert_close({name: a.views[name] for name in b.views}, b.views, rtol=0, atol=0)
        assert set(a.views) - set(b.views) == {"nearest_prototype"}


# -------------------- what crosses


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_prototypes_alone_cross_and_are_all_that_a_client_learns_of_others(weight: float) -> None:
    ends = []
    for stranger in (CLIENTS[1], sequences(9, [2, 0, 2])):
        method = make(prototype_weight=weight)
        backend, results = run(method, 2, (*CLIENTS[:1], stranger, CLIENTS[2]))
        for result in results:
            assert set(result.server) == {"prototypes", "known"}
            for report in result.reports:
                assert report.down == {"prototypes": 8 * CLASSES * 16, "bookkeeping": CLASSES}
                assert report.up == {"prototypes": 8 * CLASSES * 16, "bookkeeping": 8 * CLASSES}
        ends.append((backend.clients[0]["extractor"]["0.weight"], results[0].server["prototypes"]))
    assert torch.equal(ends[0][0], ends[1][0]) == (weight == 0)
    assert not torch.equal(ends[0][1], ends[1][1])


# -------------------- the nearest prototype


def nearest_view(method: FedProto, client: Tree, prototypes: Tensor, known: Tensor) -> Tree:
    return method.extra_views(client, {"prototypes": prototypes, "known": known}, CLIENTS[0], make_key(0))[
        "nearest_prototype"
    ]


def test_the_nearest_known_prototype_wins() -> None:
    """Class 2 has no prototype: it is never chosen, near as zero may be."""
    method = make()
    client = method.init_client(normed_model(classes=CLASSES).init_params(), make_key(0))
    prototypes, known = (
        2 * uniform(make_key(1), (CLASSES, 16), torch.float64) - 1,
        torch.ones(CLASSES, dtype=torch.bool),
    )
    prototypes[2], known[2] = 0.0, False
    view = nearest_view(method, client, prototypes, known)
    x = 3 * normal(make_key(2), (200, 1, 8), torch.float64)
    distances = torch.cdist(method.setup.model.features(client, x)[0], prototypes)
    distances[:, 2] = torch.inf
    chosen = method.setup.model.logits(view, x).argmax(-1)
    assert torch.equal(chosen, distances.argmin(-1))
    assert set(chosen.tolist()) == {0, 1, 3}
    assert_close({**view, "classifier": None}, {**client, "classifier": None}, rtol=0, atol=0)
