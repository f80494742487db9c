"""FedPAC: rounds by hand, alignment, whose classifier goes where, and what crosses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.components.test_classifier_collaboration import by_supports
from tests.methods.small import TRAINING, normed_model, sequences
from torch import nn
from torch.testing import assert_close

from fedmate.backends.base import Round, RoundResult
from fedmate.backends.sequential import Sequential
from fedmate.components.classifier_collaboration import VARIANCE_FLOOR, combining_weights, drop_small
from fedmate.core import (
    BufferPolicy,
    Federation,
    Method,
    Model,
    Setup,
    Training,
    Tree,
    client_data,
    make_key,
    normal,
    select,
    tree_map,
    uniform,
)
from fedmate.errors import UserError
from fedmate.methods import fedpac
from fedmate.methods.fedpac import FedPAC
from fedmate.methods.fedrep import FedRep

Numbers = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

CLASSES = 4


CLIENTS = (sequences(1, [0, 1, 2, 0, 1]), sequences(2, [1, 1]), sequences(3, [0, 2, 2, 1]), sequences(4, [2]))
"""Nobody holds class 3."""
TEST = sequences(9, [0, 1, 2, 3])


def make(buffers: BufferPolicy = "shared", **options: Any) -> FedPAC:
    return FedPAC(setup=Setup(normed_model(buffers, classes=CLASSES), CLASSES, 3, TRAINING), **options)


def start(method: Method, clients: int = 4) -> Tree:
    return method.init_server(method.setup.model.init_params(), clients, make_key(4))


def run(method: Method, rounds: int, participants: Iterable[int] = range(4)) -> tuple[Sequential, list[RoundResult]]:
    backend, server, results = Sequential(method, Federation(CLIENTS, TEST, CLASSES), make_key(4), workers=1), None, []
    for t in range(rounds):
        server = start(method) if server is None else server
        results.append(backend.run_round(server, Round(t, tuple(participants), evaluate=True)))
        server = results[-1].server
    return backend, results


# -------------------- rounds by hand


class ByHand(NamedTuple):
    """What a client sends."""

    w: Numbers
    v: Numbers
    prototypes: Numbers
    shares: Numbers
    variance: float
    counts: Labels


ETA, ETA_CLASSIFIER, M, DECAY, WEIGHT, THRESHOLD = 0.3, 0.4, 0.6, 0.05, 1.5, 0.05
K = 3


def errors(w: Numbers, v: Numbers, x: Numbers, y: Labels) -> tuple[Numbers, Numbers]:
    """Return features x w^T and p - [y = k] of the logits v f."""
    f = x[:, None] * w
    logits = np.exp(f @ v.T)
    return f, logits / logits.sum(1, keepdims=True) - np.eye(K)[y]


def means(f: Numbers, y: Labels) -> Numbers:
    return np.stack([f[y == k].mean(0) if (y == k).any() else np.zeros(2) for k in range(K)])


def train_by_hand(w: Numbers, v: Numbers, x: Numbers, y: Labels, prototypes: Numbers, known: Labels) -> ByHand:
    """Statistics, two steps on v, two on w: towards prototypes once some are known, own ones for other classes."""
    f, _ = errors(w, v, x, y)
    counts, own = np.bincount(y, minlength=K), means(f, y)
    p = counts / len(y)
    square = sum(p[k] * (f[y == k] ** 2).sum(1).mean() for k in range(K) if counts[k])
    variance = (square - sum(p[k] ** 2 * (own[k] ** 2).sum() for k in range(K))) / len(y)

    velocity = np.zeros_like(v)
    for _ in range(2):
        f, e = errors(w, v, x, y)
        velocity = M * velocity + e.T @ f / len(y) + DECAY * v
        v = v - ETA_CLASSIFIER * velocity
    centres = np.where(known[:, None], prototypes, own)[y]
    velocity = np.zeros_like(w)
    for _ in range(2):
        f, e = errors(w, v, x, y)
        pull = WEIGHT * (f - centres) if known.any() else 0
        # The distance is averaged over samples and over the width, 2, which cancels the 2 of the square.
        velocity = M * velocity + ((e @ v + pull) * x[:, None]).mean(0) + DECAY * w
        w = w - ETA * velocity
    return ByHand(w, v, means(errors(w, v, x, y)[0], y), p[:, None] * own, float(variance), counts)


def weights_by_hand(sent: list[ByHand]) -> Numbers:
    """Return the weights of each, from differences of statistics and by trying every set of clients."""
    rows = []
    for mine in sent:
        differences = np.stack([(mine.shares - other.shares).ravel() for other in sent])
        variances = np.array([other.variance for other in sent])
        risk = differences @ differences.T
        floor = VARIANCE_FLOOR * (risk.diagonal() + variances).mean()
        weights = by_supports(risk + np.diag(np.maximum(variances, floor)))
        weights[weights < THRESHOLD] = 0
        rows.append(weights / weights.sum())
    return np.stack(rows)


W, V = np.array([0.8, -0.4]), np.array([[0.5, 0.2], [-0.3, 0.4], [0.1, -0.6]])
INPUTS = ([1.0], [1.3, 0.9, 1.1], [0.8, -0.5, 1.2], [1.2, 1.0, 0.7, 1.4])
LABELS = ([0], [0, 1, 1], [2, 0, 2], [1, 0, 1, 1])
COHORTS = ((0, 1, 3), (1, 2, 3))


def rounds_by_hand() -> list[tuple[Any, ...]]:
    """Return after each round: w, the average v, everybody's v, prototypes, which are known, those sent, weights."""
    w, average, v = W, V, np.stack([V] * 4)
    prototypes, known, states = np.zeros((K, 2)), np.zeros(K, dtype=bool), list[tuple[Any, ...]]()
    for cohort in COHORTS:
        sent = [train_by_hand(w, v[i], np.array(INPUTS[i]), np.array(LABELS[i]), prototypes, known) for i in cohort]
        sizes = np.array([len(INPUTS[i]) for i in cohort]) / sum(len(INPUTS[i]) for i in cohort)
        w, average = (np.tensordot(sizes, np.stack(rows), 1) for rows in ([a.w for a in sent], [a.v for a in sent]))
        everyone, v = np.zeros((4, 4)), v.copy()
        everyone[np.ix_(cohort, cohort)] = weights_by_hand(sent)
        v[list(cohort)] = np.tensordot(weights_by_hand(sent), np.stack([a.v for a in sent]), 1)
        counts = np.stack([a.counts for a in sent])
        held = counts.sum(0)
        local = np.stack([a.prototypes for a in sent])
        total = np.einsum("ik,ikd->kd", counts, local)
        prototypes = np.where((held > 0)[:, None], total / np.maximum(held, 1)[:, None], prototypes)
        known = known | (held > 0)
        states.append((w, average, v, prototypes, known, local, everyone))
    return states


def test_two_rounds_by_hand() -> None:
    """Features x w, logits v f, full batches; who takes part: 0, 1 and 3, then 1, 2 and 3.

    Client 0 has one sample, and so no variance. Client 2 alone holds class 2, of which there is no prototype when its
    turn comes: it is drawn to its own. Client 0 keeps the classifier of the first round.
    """
    extractor, classifier = nn.Linear(1, 2, bias=False).double(), nn.Linear(2, K, bias=False).double()
    with torch.no_grad():
        extractor.weight.copy_(torch.from_numpy(W)[:, None])
        classifier.weight.copy_(torch.from_numpy(V))
    model = Model(nn.Sequential(extractor, classifier), classifier="1")
    training = Training(batch_size=4, epochs=2, learning_rate=ETA, momentum=M, weight_decay=DECAY)
    method = FedPAC(
        setup=Setup(model, K, 2, training),
        classifier_epochs=2,
        classifier_learning_rate=ETA_CLASSIFIER,
        alignment_weight=WEIGHT,
        threshold=THRESHOLD,
    )
    people = tuple(
        client_data(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y))
        for x, y in zip(INPUTS, LABELS, strict=True)
    )
    backend = Sequential(method, Federation(people, people[1], K), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 4, make_key(0))
    for t, expected in enumerate(rounds_by_hand()):
        result = backend.run_round(server, Round(t, COHORTS[t], evaluate=False))
        server = result.server
        found = (
            server["extractor"]["0.weight"][:, 0],
            server["classifier"]["weight"],
            server["classifiers"]["weight"],
            server["prototypes"],
            server["known"],
            result.diagnostics["clients"]["prototypes"],
            server["diagnostics"]["weights"],
        )
        assert_close(found, tuple(map(torch.from_numpy, expected)), rtol=0, atol=1e-9)


# -------------------- alignment


def update(method: FedPAC, server: Tree, i: int) -> Tree:
    """Return what client `i` sends."""
    client = method.init_client(method.setup.model.init_params(), make_key(0))
    received = select(method.download(server, torch.tensor(i)), method.wire(0).down)
    with torch.no_grad():
        return method.local_update(client, received, CLIENTS[i], make_key(3)).upload


# -------------------- reductions


def test_with_classifiers_of_their_own_and_no_alignment_it_is_fedrep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpac, "combining_weights", lambda shares, *_: torch.eye(len(shares), dtype=torch.float64))
    setup = Setup(normed_model(classes=CLASSES), CLASSES, 3, TRAINING)
    _, ours = run(FedPAC(setup=setup, alignment_weight=0.0), 3)
    theirs, expected = run(FedRep(setup=setup), 3)
    for mine, other in zip(ours, expected, strict=True):
        assert_close(mine.server["extractor"], other.server["extractor"], rtol=0, atol=1e-12)
        assert_close(mine.views["pre"], other.views["pre"], rtol=0, atol=0)
    for i, client in enumerate(theirs.clients):
        own = tree_map(lambda leaf, i=i: leaf[i], ours[-1].server["classifiers"])
        assert_close(own, client["classifier"], rtol=0, atol=1e-12)


# -------------------- whose classifier goes where


def uploads_of(clients: int) -> Tree:
    """Return a stack of made-up uploads; every client's classifier is full of its own number, from 1."""
    method = make()
    one = update(method, start(method), 0)
    number = torch.arange(1, clients + 1).double()
    return {
        **tree_map(lambda leaf: leaf.expand(clients, *leaf.shape), one),
        "classifier": tree_map(
            lambda leaf: number.reshape(-1, *[1] * leaf.dim()) * torch.ones_like(leaf), one["classifier"]
        ),
        "statistics": {
            "shares": 0.5 * normal(make_key(11), (clients, CLASSES, 16), torch.float64),
            "variance": 10 + uniform(make_key(12), (clients,), torch.float64),
        },
    }


def aggregate(method: FedPAC, server: Tree, uploads: Tree, ids: list[int], valid: list[bool] | None = None) -> Tree:
    with torch.no_grad():
        return method.aggregate(server, uploads, torch.tensor(ids), torch.tensor(valid or [True] * len(ids)))


def test_every_participant_gets_its_own_combination_and_the_others_keep_theirs() -> None:
    """Whatever the order in which participants are listed: ids say who is who."""
    method, uploads = make(), uploads_of(3)
    server = start(method, 6)
    statistics, valid = uploads["statistics"], torch.ones(3, dtype=torch.bool)
    weights = drop_small(combining_weights(statistics["shares"], statistics["variance"], valid), 1e-3)
    combined = weights @ torch.tensor([1.0, 2, 3]).double()
    assert len(set(combined.tolist())) == 3
    for order in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        ids = [(1, 3, 4)[row] for row in order]
        found = aggregate(method, server, tree_map(lambda leaf, order=order: leaf[order], uploads), ids)
        for client in range(6):
            classifier = method.download(found, torch.tensor(client))["classifier"]
            expected = server["classifier"]
            if client in (1, 3, 4):
                value = combined[(1, 3, 4).index(client)]
                expected = tree_map(lambda leaf, value=value: value.expand(leaf.shape), expected)
            assert_close(classifier, expected, rtol=0, atol=1e-9)
        recorded = torch.zeros(6, 6).double()
        recorded[torch.tensor([1, 3, 4])[:, None], torch.tensor([1, 3, 4])] = weights
        assert_close(found["diagnostics"]["weights"], recorded, rtol=0, atol=1e-9)


# -------------------- settings


def test_a_classifier_of_several_layers_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, CLASSES)))
    model = Model(module, classifier="2")
    with pytest.raises(UserError, match="single linear layer"):
        FedPAC(setup=Setup(model, CLASSES, 1, TRAINING)).prepare(model)
