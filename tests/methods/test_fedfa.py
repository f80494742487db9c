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
from fedmate.components.feature_anchors import calibration_loss
from fedmate.core import (
    BufferPolicy,
    ClientData,
    Federation,
    LocalResult,
    Method,
    Model,
    Setup,
    Training,
    Tree,
    batches,
    class_means,
    client_data,
    data,
    make_key,
    normal,
    pad,
    select,
)
from fedmate.errors import UserError
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedfa import FedFA
from fedmate.models import MODELS

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


def update(method: FedFA, own: ClientData, server: Tree | None = None) -> LocalResult:
    """Train one client in its first round."""
    client = method.init_client(method.setup.model.init_params(), make_key(0))
    return method.local_update(client, begin(method) if server is None else server, own, make_key(3))


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


@pytest.mark.parametrize("option", ["anchor_weight", "calibration_learning_rate"])
def test_each_of_its_losses_changes_the_model(option: str) -> None:
    off: dict[str, Any] = {"anchor_weight": 0.0, "calibration_learning_rate": 0.0}
    plain, changed = (run(make(**options), 1)[1][0].server["extractor"] for options in (off, off | {option: 0.1}))
    assert not torch.equal(plain["0.weight"], changed["0.weight"])


def test_where_every_batch_holds_every_class_the_divisors_agree() -> None:
    whole = Training(batch_size=8, epochs=2, learning_rate=0.1)
    own, every = (update(make(training=whole, divide_by=by), CLIENTS[0]).upload for by in ("own", "all"))
    assert_close(own, every, rtol=0, atol=0)


# -------------------- anchors


def test_anchors_follow_the_means_of_features_and_absent_classes_stay() -> None:
    """With one full batch, nothing kept and training off, an anchor is the class mean of features in training mode."""
    still = Training(batch_size=8, epochs=1, learning_rate=0.0)
    method = FedFA(setup=Setup(tiny_model(), 3, 1, still), anchor_momentum=0.0)
    own = client_data(normal(make_key(1), (5, 1), torch.float64), torch.tensor([0, 1, 0, 0, 1]))
    server = begin(method)
    found = method.local_update({"buffers": {}}, server, own, make_key(3)).upload["anchors"]
    z, _ = method.setup.model.features(server, own.x)
    expected, _ = class_means(z, own.y, own.mask, 3)
    assert_close(found[:2], expected[:2])
    assert torch.equal(found[2], server["anchors"][2])


def test_momentum_one_and_no_epochs_leave_the_anchors() -> None:
    for method in (make(anchor_momentum=1.0), make(training=Training(epochs=0))):
        server = begin(method)
        assert_close(update(method, CLIENTS[2], server).upload["anchors"], server["anchors"], rtol=0, atol=0)
    assert not update(method, CLIENTS[2], server).diagnostics["prototypes"].any(), "without an epoch there is no mean"


def test_clients_that_lack_a_class_pull_its_anchor_back_by_their_size() -> None:
    """Class 2 is held by client 2 alone, with 4 of 11 samples."""
    method = make()
    server = begin(method, 3)
    backend = Sequential(method, Federation(CLIENTS, TEST, CLASSES), make_key(4), workers=1)
    mixed = backend.run_round(server, Round(0, (0, 1, 2), evaluate=False)).server["anchors"]
    alone = Sequential(method, Federation(CLIENTS, TEST, CLASSES), make_key(4), workers=1)
    sent = alone.run_round(server, Round(0, (2,), evaluate=False)).server["anchors"]
    assert_close(mixed[2], (7 * server["anchors"][2] + 4 * sent[2]) / 11)


def test_calibration_teaches_the_classifier_alone_to_recognise_the_anchors() -> None:
    still = Training(batch_size=2, epochs=3, learning_rate=0.0)
    method = make(training=still, calibration_learning_rate=0.01)
    server = begin(method)
    params = update(method, CLIENTS[0], server).params
    assert_close(params["extractor"], server["extractor"], rtol=0, atol=0)
    before, after = (
        calibration_loss(method.setup.model, classifier, server["anchors"])
        for classifier in (server["classifier"], params["classifier"])
    )
    assert after < before


def test_padding_ends_epochs_where_they_end() -> None:
    """Twelve rows make six batches, of which three are real: epochs and divisors are those of five samples."""
    method = make(divide_by="all")
    plain, padded = update(method, CLIENTS[0]), update(method, pad(CLIENTS[0], 12))
    assert_close(padded, plain, rtol=0, atol=1e-12)


# -------------------- what crosses and what stays


def test_the_ledger_on_cifar() -> None:
    """The model's 107,690 numbers and 1,280 of anchors, each way."""
    model = Model(MODELS["cifar_cnn"]().build((3, 32, 32), 10), classifier="classifier")
    own = client_data(normal(make_key(0), (2, 3, 32, 32)), torch.tensor([0, 7]))
    method = FedFA(setup=Setup(model, 10, 1, Training(batch_size=2, epochs=1)))
    backend = Sequential(method, Federation((own,), own, 10), make_key(0), workers=1)
    result = backend.run_round(begin(method), Round(0, (0,), evaluate=False))
    [report] = result.reports
    numbers = {"extractor": 4 * 106_400, "classifier": 4 * 1_290, "anchors": 4 * 1_280}
    assert sum(numbers.values()) == 4 * 108_970
    assert report.down == numbers
    assert report.up == {**numbers, "bookkeeping": 8}


@pytest.mark.parametrize("buffers", ["shared", "private"])
def test_buffers_follow_the_declaration(buffers: BufferPolicy) -> None:
    method = make(buffers)
    backend, results = run(method, 2)
    start = method.setup.model.init_params()["buffers"]["1.running_mean"]
    moved = not torch.equal(results[-1].server["buffers"]["1.running_mean"], start)
    assert moved == (buffers == "shared")
    assert ("buffers" in results[-1].reports[0].up) == (buffers == "shared")
    received = select(method.download(results[-1].server, torch.tensor(2)), method.wire(2).down)
    held = method.personal_params(backend.clients[2], received)
    assert_close(held["buffers"], (results[-1].server if moved else backend.clients[2])["buffers"], rtol=0, atol=0)
    assert set(held) == set(MODEL_PARTS)
    assert not torch.equal(backend.clients[2]["buffers"]["1.running_mean"], start)


def test_a_classifier_of_several_layers_is_refused() -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)))
    model = Model(layers, classifier="2")
    with pytest.raises(UserError, match="`classifier` must be a single linear layer"):
        FedFA(setup=Setup(model, CLASSES, 1, TRAINING)).prepare(model)


def test_defaults_and_the_authors_setting() -> None:
    method = make()
    assert (method.anchor_weight, method.anchor_momentum, method.calibration_learning_rate) == (0.1, 0.5, 1e-3)
    assert (method.divide_by, method.primary_view) == ("own", "post")
    assert FedFA.presets["authors"] == {
        "method": {
            "anchor_weight": 0.1,
            "anchor_momentum": 0.5,
            "calibration_learning_rate": 1e-3,
            "divide_by": "all",
        },
        "training": {"batch_size": 64, "epochs": 5, "learning_rate": 0.01, "momentum": 0.0, "weight_decay": 1e-3},
    }
    with pytest.raises(UserError, match=r"`method.anchor_momentum` is 1.5"):
        make(anchor_momentum=1.5)
