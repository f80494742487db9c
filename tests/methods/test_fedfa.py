"""FedFA: a round by hand, what it reduces to, what moves the anchors, and what crosses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.methods.small import TRAINING, normed_model, sequences
from torch import nn
from torch.testing import assert_close

from fedmate.backends.base import Round, RoundResult
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    BufferPolicy,
    Federation,
    Method,
    Model,
    Setup,
    Training,
    Tree,
    batches,
    client_data,
    data,
    make_key,
    select,
)
from fedmate.errors import UserError
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedfa import FedFA

Numbers = npt.NDArray[np.float64]

CLASSES = 3
MODEL_PARTS = ("extractor", "classifier", "buffers")


CLIENTS = (sequences(1, [0, 1, 0, 0, 1]), sequences(2, [1, 1]), sequences(3, [0, 2, 2, 1]))
"""The first lacks class 2, the second holds class 1 alone."""
TEST = sequences(9, [0, 1, 2])


def make(buffers: BufferPolicy = "shared", training: Training = TRAINING, **options: Any) -> FedFA:
    return FedFA(setup=Setup(normed_model(buffers, classes=CLASSES), CLASSES, 3, training), **options)


def begin(method: Method, clients: int = 1) -> Tree:
    return method.init_server(method.setup.model.init_params(), clients, make_key(4))


def run(method: Method, rounds: int) -> tuple[Sequential, list[RoundResult]]:
    """Run rounds in which one client after the other stays away."""
    backend = Sequential(method, Federation(CLIENTS, TEST, CLASSES), make_key(4), workers=1)
    server, results = begin(method, len(CLIENTS)), []
    for t in range(rounds):
        present = tuple(i for i in range(len(CLIENTS)) if i != t % len(CLIENTS))
        results.append(backend.run_round(server, Round(t, present, evaluate=True)))
        server = results[-1].server
    return backend, results


# -------------------- a round by hand

ETA, MOMENTUM, DECAY, WEIGHT, KEPT, ALPHA = 0.3, 0.6, 0.05, 0.7, 0.4, 0.02


class ByHand:
    """Features z = w x of width 2, logits v z + b of three classes."""

    def __init__(self, anchors: Numbers) -> None:
        self.w, self.v, self.b = np.array([0.8, -0.5]), np.array([[0.5, 0.1], [-0.3, 0.4], [0.2, -0.6]]), np.zeros(3)
        self.velocity = [np.zeros(2), np.zeros((3, 2)), np.zeros(3)]
        self.moments = [np.zeros((3, 2)), np.zeros(3), np.zeros((3, 2)), np.zeros(3)]
        self.anchors, self.own, self.means, self.steps = anchors, anchors.copy(), np.zeros((3, 2)), 0

    def errors(self, z: Numbers, y: npt.NDArray[np.int64]) -> Numbers:
        """Return p - [y = k], `[classes, samples]`."""
        powers = np.exp(self.v @ z + self.b[:, None])
        found: Numbers = powers / powers.sum(0) - (np.arange(3)[:, None] == y)
        return found

    def step(self, x: Numbers, y: npt.NDArray[np.int64]) -> Numbers:
        """Take a step of SGD, one of Adam; return the features of the pass.

        The cross-entropy sends v' e back to z and e z' to v; the anchor loss sends back 2 (z - a_y) / (3 m_y).
        """
        z = self.w[:, None] * x
        e = self.errors(z, y) / len(y)
        m = np.array([(y == k).sum() for k in y])
        back = self.v.T @ e + WEIGHT * 2 * (z - self.anchors[y].T) / (3 * m)
        gradients = [(back * x).sum(1), e @ z.T, e.sum(1)]
        variables = [self.w, self.v, self.b]
        for i, (variable, gradient) in enumerate(zip(variables, gradients, strict=True)):
            self.velocity[i] = MOMENTUM * self.velocity[i] + gradient + DECAY * variable
            variables[i] = variable - ETA * self.velocity[i]
        self.w, self.v, self.b = variables
        self.calibrate()
        return z

    def calibrate(self) -> None:
        e, self.steps = self.errors(self.anchors.T, np.arange(3)) / 3, self.steps + 1
        for i, gradient in enumerate([e @ self.anchors, e.sum(1)]):
            self.moments[i] = 0.9 * self.moments[i] + 0.1 * gradient
            self.moments[2 + i] = 0.999 * self.moments[2 + i] + 0.001 * gradient**2
        means = [moment / (1 - 0.9**self.steps) for moment in self.moments[:2]]
        roots = [np.sqrt(moment / (1 - 0.999**self.steps)) for moment in self.moments[2:]]
        self.v = self.v - ALPHA * means[0] / (roots[0] + 1e-8)
        self.b = self.b - ALPHA * means[1] / (roots[1] + 1e-8)

    def epoch(self, steps: list[tuple[Numbers, npt.NDArray[np.int64]]], divide_by: str) -> None:
        """Train for an epoch, then move the anchors of the classes that were there."""
        features = [(self.step(x, y), y) for x, y in steps]
        for k in range(3):
            means = [z[:, y == k].mean(1) for z, y in features if k in y]
            if means:
                self.means[k] = sum(means) / (len(means) if divide_by == "own" else len(features))
                self.own[k] = KEPT * self.own[k] + (1 - KEPT) * self.means[k]


def tiny_model() -> Model:
    start = ByHand(np.zeros((3, 2)))
    extractor, classifier = nn.Linear(1, 2, bias=False).double(), nn.Linear(2, 3).double()
    with torch.no_grad():
        extractor.weight.copy_(torch.from_numpy(start.w)[:, None])
        classifier.weight.copy_(torch.from_numpy(start.v))
        classifier.bias.zero_()
    return Model(nn.Sequential(extractor, classifier), classifier="1")


@pytest.mark.parametrize("window", [2, 1000])
@pytest.mark.parametrize("divide_by", ["own", "all"])
def test_a_round_by_hand(divide_by: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of batches of two, for clients with sizes 5 and 3; samples may be read in several windows."""
    monkeypatch.setattr(data, "WINDOW", window)
    model, key = tiny_model(), make_key(2)
    training = Training(batch_size=2, epochs=2, learning_rate=ETA, momentum=MOMENTUM, weight_decay=DECAY)
    options: dict[str, Any] = {"anchor_weight": WEIGHT, "anchor_momentum": KEPT, "divide_by": divide_by}
    method = FedFA(setup=Setup(model, 3, 1, training), calibration_learning_rate=ALPHA, **options)
    server = method.init_server(model.init_params(), 2, key)
    inputs = ([1.5, 0.2, -0.4, 0.9, -1.1], [-0.7, 2.0, 0.4])
    uploads, expected = [], []
    for x, y in zip(inputs, ([0, 0, 1, 0, 1], [2, 1, 2]), strict=True):
        own = client_data(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y))
        result = method.local_update({"buffers": {}}, server, own, key)
        uploads.append(result.upload)
        steps = [(batch.x[:, 0].numpy(), batch.y.numpy()) for batch in batches(own, 2, 2, key)]
        hand = ByHand(server["anchors"].numpy())
        for epoch in (steps[: len(steps) // 2], steps[len(steps) // 2 :]):
            hand.epoch(epoch, divide_by)
        assert_close(result.diagnostics["prototypes"], torch.from_numpy(hand.means), rtol=0, atol=1e-12)
        expected.append({"w": hand.w[:, None], "v": hand.v, "b": hand.b, "anchors": hand.own})

    def check(tree: Tree, hand: dict[str, Numbers]) -> None:
        found = (tree["extractor"]["0.weight"], *tree["classifier"].values(), tree["anchors"])
        assert_close(found, tuple(map(torch.from_numpy, hand.values())), rtol=0, atol=1e-12)

    for upload, hand_made in zip(uploads, expected, strict=True):
        check(upload, hand_made)
    stacked = {part: torch.stack([u[part] for u in uploads]) for part in ("anchors", "num_samples")}
    models = {
        part: {name: torch.stack([u[part][name] for u in uploads]) for name in uploads[0][part]} for part in MODEL_PARTS
    }
    mixed = method.aggregate(server, {**stacked, **models}, torch.arange(2), torch.ones(2, dtype=torch.bool))
    check(mixed, {name: (5 * expected[0][name] + 3 * expected[1][name]) / 8 for name in expected[0]})


# -------------------- reductions


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_without_its_losses_it_is_fedavg_bit_for_bit(buffers: BufferPolicy) -> None:
    method = make(buffers, anchor_weight=0.0, calibration_learning_rate=0.0)
    ours, mine = run(method, 3)
    theirs, other = run(FedAvg(setup=method.setup, tuning_epochs=0), 3)
    assert_close(ours.clients, theirs.clients, rtol=0, atol=0)
    for a, b in zip(mine, other, strict=True):
        assert_close(select(a.server, MODEL_PARTS), b.server, rtol=0, atol=0)
        assert set(a.views) == {"pre", "post", "global"}
        assert_close(a.views, {name: b.views[name] for name in a.views}, rtol=0, atol=0)


# -------------------- what crosses and what stays


def test_a_classifier_of_several_layers_is_refused() -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)))
    model = Model(layers, classifier="2")
    with pytest.raises(UserError, match="`classifier` must be a single linear layer"):
        FedFA(setup=Setup(model, CLASSES, 1, TRAINING)).prepare(model)
