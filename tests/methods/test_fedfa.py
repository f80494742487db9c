"""FedFA: a round by hand."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from tests.methods.small import DECAY, MOMENTUM, RATE, Array, Labels, errors
from torch import nn
from torch.testing import assert_close

from fedmate.core import Model, Setup, Training, Tree, batches, client_data, data, leaves, make_key, stack
from fedmate.methods.fedfa import FedFA

WEIGHT, KEPT, ALPHA = 0.7, 0.4, 0.02


class ByHand:
    """Features z = x w', logits z v' + b of three classes; Adam trains v and b on the anchors after each step."""

    def __init__(self, anchors: Array) -> None:
        self.p = [np.array([[0.8], [-0.5]]), np.array([[0.5, 0.1], [-0.3, 0.4], [0.2, -0.6]]), np.zeros(3)]
        self.velocity = [np.zeros_like(rows) for rows in self.p]
        self.means = [np.zeros_like(rows) for rows in self.p[1:]]
        self.squares = [np.zeros_like(rows) for rows in self.p[1:]]
        self.anchors, self.own, self.prototypes, self.steps = anchors, anchors.copy(), np.zeros((3, 2)), 0

    def step(self, x: Array, y: Labels) -> Array:
        """Return the features of the pass; the anchor loss has the slope 2 (z - a_y) / (3 m_y) in z."""
        w, v, b = self.p
        z: Array = x @ w.T
        e = errors(z @ v.T + b, y) / len(y)
        back = e @ v + WEIGHT * 2 * (z - self.anchors[y]) / (3 * np.bincount(y)[y][:, None])
        gradients = [back.T @ x, e.T @ z, e.sum(0)]
        triples = zip(self.velocity, gradients, self.p, strict=True)
        self.velocity = [MOMENTUM * u + g + DECAY * p for u, g, p in triples]
        self.p = [p - RATE * u for p, u in zip(self.p, self.velocity, strict=True)]
        self.calibrate()
        return z

    def calibrate(self) -> None:
        self.steps += 1
        e = errors(self.anchors @ self.p[1].T + self.p[2], np.arange(3)) / 3
        for i, g in enumerate([e.T @ self.anchors, e.sum(0)]):
            self.means[i] = 0.9 * self.means[i] + 0.1 * g
            self.squares[i] = 0.999 * self.squares[i] + 0.001 * g**2
            root = np.sqrt(self.squares[i] / (1 - 0.999**self.steps))
            self.p[1 + i] = self.p[1 + i] - ALPHA * self.means[i] / (1 - 0.9**self.steps) / (root + 1e-8)

    def epoch(self, steps: list[tuple[Array, Labels]], divide_by: str) -> None:
        """Train for an epoch, then move the anchors of the classes that were there."""
        features = [(self.step(x, y), y) for x, y in steps]
        for k in range(3):
            means = [z[y == k].mean(0) for z, y in features if k in y]
            if means:
                self.prototypes[k] = sum(means) / (len(means) if divide_by == "own" else len(features))
                self.own[k] = KEPT * self.own[k] + (1 - KEPT) * self.prototypes[k]


def numbers(tree: Tree) -> list[torch.Tensor]:
    return [tree["extractor"]["0.weight"], *leaves(tree["classifier"]), tree["anchors"]]


@pytest.mark.parametrize("window", [2, 1000])
@pytest.mark.parametrize("divide_by", ["own", "all"])
def test_a_round_by_hand(divide_by: Literal["own", "all"], window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of batches of two, for clients with sizes 5 and 3; samples may be read in several windows."""
    monkeypatch.setattr(data, "WINDOW", window)
    w, v, b = ByHand(np.zeros((3, 2))).p
    extractor, classifier = nn.Linear(1, 2, bias=False).double(), nn.Linear(2, 3).double()
    extractor.load_state_dict({"weight": torch.from_numpy(w)})
    classifier.load_state_dict({"weight": torch.from_numpy(v), "bias": torch.from_numpy(b)})
    model, key = Model(nn.Sequential(extractor, classifier), classifier="1"), make_key(2)
    method = FedFA(
        setup=Setup(
            model, 3, 1, Training(batch_size=2, epochs=2, learning_rate=RATE, momentum=MOMENTUM, weight_decay=DECAY)
        ),
        anchor_weight=WEIGHT,
        anchor_momentum=KEPT,
        calibration_learning_rate=ALPHA,
        divide_by=divide_by,
    )
    server = method.init_server(model.init_params(), 2, key)
    uploads, expected = [], []
    for x, y in (([1.5, 0.2, -0.4, 0.9, -1.1], [0, 0, 1, 0, 1]), ([-0.7, 2.0, 0.4], [2, 1, 2])):
        own = client_data(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y))
        result = method.local_update({"buffers": {}}, server, own, key)
        steps = [(batch.x.numpy(), batch.y.numpy()) for batch in batches(own, 2, 2, key)]
        hand = ByHand(server["anchors"].numpy())
        for epoch in (steps[: len(steps) // 2], steps[len(steps) // 2 :]):
            hand.epoch(epoch, divide_by)
        assert_close(result.diagnostics["prototypes"], torch.from_numpy(hand.prototypes), rtol=0, atol=1e-12)
        uploads.append(result.upload)
        expected.append([torch.from_numpy(rows) for rows in (*hand.p, hand.own)])
        assert_close(numbers(uploads[-1]), expected[-1], rtol=0, atol=1e-12)
    mixed = method.aggregate(server, stack(uploads), torch.arange(2), torch.ones(2, dtype=torch.bool), make_key(0))
    averages = [(5 * one + 3 * other) / 8 for one, other in zip(*expected, strict=True)]
    assert_close(numbers(mixed), averages, rtol=0, atol=1e-12)
