"""FedMate: rounds by hand, its reduction to FedRep, its ablations, and which extractor a client goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon  # type: ignore[import-untyped]
from tests.methods.small import TRAINING, run, sequences
from torch import Tensor, nn
from torch.nn import functional
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
    leaves,
    make_key,
    normal,
    select,
)
from fedmate.methods.fedmate import FedMate
from fedmate.methods.fedrep import FedRep

CLIENTS = tuple(sequences(i, labels) for i, labels in enumerate(([0, 1, 2, 0, 1], [1, 1, 1], [0, 2, 2, 1, 0, 2])))
"""The second holds one class; no client holds class 3."""


def setup(buffers: BufferPolicy = "shared", rounds: int = 4) -> Setup:
    """Return a network whose prototypes are large enough that CFT leaves out every second state."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        block = [nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.Tanh(), nn.Dropout(0.25), nn.AvgPool1d(4)]
        layers = [*block, nn.Flatten(), nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4)]
        return Setup(Model(nn.Sequential(*layers).double(), classifier="8", buffers=buffers), 4, rounds, TRAINING)


def make(**options: Any) -> FedMate:
    return FedMate(setup=setup(), **options)


# -------------------- by hand


def step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take a step with torch's own optimiser."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def variables(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [t.clone().requires_grad_() for t in tensors]


def probability(discriminator: list[Tensor], logits: Tensor) -> Tensor:
    weight, bias, last, offset = discriminator
    return torch.sigmoid((logits @ weight.T + bias).clamp(min=0) @ last[0] + offset)


class ByHand:
    """Algorithms 1 and 2 on a linear extractor z = A x + a and a classifier V z + v, full batches, bce.

    Two clients hold classes {0, 1} and {0, 1, 2}; rates, weights and T are those of the test below.
    """

    def __init__(self, data: list[tuple[Tensor, Tensor]], params: Tree, discriminators: list[Tree], m: FedMate) -> None:
        self.data, self.m, self.s = data, m, m.setup.training
        self.theta, self.phi = list(params["extractor"].values()), list(params["classifier"].values())
        self.heads = [[t.clone() for t in self.phi] for _ in data]
        self.adversaries = [
            {name: [t.clone() for t in leaves(d)] for name, d in pair.items()} for pair in discriminators
        ]
        self.prototypes: Tensor | None = None
        self.weights = np.zeros((2, 3))

    def client(self, i: int, t: int) -> tuple[list[Tensor], Tensor]:
        """Train client i; return its extractor and its prototypes."""
        (x, y), m = self.data[i], self.m
        held = torch.tensor(sorted(set(y.tolist())))

        def means(theta: list[Tensor]) -> Tensor:
            return torch.stack([(x[y == k] @ theta[0].T + theta[1]).mean(0) for k in held])

        theta, head = variables(self.theta), variables(self.heads[i])
        adversaries = {name: variables(tensors) for name, tensors in self.adversaries[i].items()}
        own, z = means(theta).detach(), (x @ theta[0].T + theta[1]).detach()
        kappa = 1 - t / m.setup.rounds
        sgd = partial(torch.optim.SGD, momentum=self.s.momentum, weight_decay=self.s.weight_decay)
        descents = {name: sgd(r, m.discriminator_learning_rate) for name, r in adversaries.items()}
        descent = sgd(head, m.classifier_learning_rate)

        def logits(features: Tensor) -> Tensor:
            return features @ head[0].T + head[1]

        for _ in range(m.classifier_epochs):
            adversarial = torch.zeros((), dtype=torch.float64)
            if self.prototypes is not None:
                whole, shared = self.prototypes, self.prototypes[held]
                with torch.no_grad():
                    truth = whole @ self.phi[0].T + self.phi[1]
                    seen, mine, imitated = logits(shared), logits(own), logits(whole)
                pr, cl = adversaries["prototype"], adversaries["classifier"]
                step(descents["prototype"], -(probability(pr, seen).log() + (1 - probability(pr, mine)).log()).mean())
                loss = -(probability(cl, truth).log() + (1 - probability(cl, imitated)).log()).mean()
                step(descents["classifier"], loss)
                adversarial = -probability(pr, logits(own)).log().mean() - probability(cl, logits(whole)).log().mean()
            proto = functional.cross_entropy(logits(own), held)
            plain = functional.cross_entropy(logits(z), y)
            step(descent, plain + m.fusion_weight * (proto + kappa * adversarial))

        descent = sgd(theta, self.s.learning_rate)
        for _ in range(int(self.s.epochs)):
            z = x @ theta[0].T + theta[1]
            loss = functional.cross_entropy(logits(z), y)
            if self.prototypes is not None:
                loss = loss + m.centre_weight * ((z - self.prototypes[y]) ** 2).sum() / z.numel()
            step(descent, loss)
        self.heads[i] = [t.detach() for t in head]
        self.adversaries[i] = {name: [t.detach() for t in r] for name, r in adversaries.items()}
        return [t.detach() for t in theta], means(theta).detach()

    def round(self, t: int) -> None:
        trained = [self.client(i, t) for i in range(len(self.data))]
        counts = np.array([[int((y == k).sum()) for k in range(3)] for _, y in self.data])
        sizes = counts.sum(1) / counts.sum()
        self.theta = [sum(float(sizes[i]) * trained[i][0][n] for i in range(2)) for n in range(2)]

        # Class 2 has one holder, the others two; rows of own prototypes are in the order of the classes held.
        rows, heads = [], [torch.zeros_like(t) for t in self.phi]
        weights = np.zeros((2, 3))
        for k in range(3):
            holders = [i for i in range(2) if counts[i, k]]
            sent = np.stack([trained[i][1][k].numpy() for i in holders])
            alpha = counts[holders, k] / counts[holders, k].sum()
            centre = sent.mean(0)
            cosines = sent @ centre / np.linalg.norm(sent, axis=1) / np.linalg.norm(centre)
            closeness = np.maximum(cosines, 0) + 1e-12
            confidence = np.exp(sent @ self.phi[0][k].numpy() + float(self.phi[1][k]))
            views = [alpha, closeness / closeness.sum(), confidence / confidence.sum()]
            sums = np.array([sum(jensenshannon(p, q) ** 2 for q in views if q is not p) for p in views])
            mixing = np.exp(-np.nan_to_num(sums)) / np.exp(-np.nan_to_num(sums)).sum()
            final = sum(w * view for w, view in zip(mixing, views, strict=True))
            weights[holders, k] = final
            rows.append(torch.from_numpy(final @ sent))
            for n in range(2):
                heads[n][k] = sum(float(a) * self.heads[i][n][k] for a, i in zip(alpha, holders, strict=True))
        self.prototypes, self.weights = torch.stack(rows), weights
        phi = variables(heads)
        logits = self.prototypes @ phi[0].T + phi[1]
        loss = (logits.logsumexp(1) - logits.diagonal()).mean()
        gradients = torch.autograd.grad(loss, phi)
        pairs = zip(phi, gradients, strict=True)
        self.phi = [(p - self.m.integration_learning_rate * g).detach() for p, g in pairs]


def test_three_rounds_by_hand() -> None:
    """Round 0 without prototypes, round 1 with everything, round 2 with discriminators that have learned."""
    with torch.random.fork_rng():
        torch.manual_seed(8)
        model = Model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)).double(), classifier="1")
    settings = Training(batch_size=9, epochs=2, learning_rate=0.1, momentum=0.6, weight_decay=0.05)
    method = FedMate(
        setup=Setup(model, 3, 4, settings),
        classifier_epochs=2,
        classifier_learning_rate=0.3,
        discriminator_learning_rate=0.2,
        integration_learning_rate=0.5,
        cft="all",
    )
    labels = ([0, 0, 1], [0, 1, 1, 2, 1])
    data = [(normal(make_key(i), (len(y), 2), torch.float64) + 0.5, torch.tensor(y)) for i, y in enumerate(labels)]
    clients = tuple(client_data(*pair) for pair in data)
    backend = Sequential(method, Federation(clients, clients[1], 3), make_key(4), workers=1)
    server = method.init_server(model.init_params(), 2, make_key(4))
    hand = ByHand(data, model.init_params(), [client["discriminators"] for client in backend.clients], method)
    for t in range(3):
        server = backend.run_round(server, Round(t, (0, 1), evaluate=False)).server
        hand.round(t)
        assert_close(
            [*leaves(server["extractor"]), *leaves(server["classifier"])], [*hand.theta, *hand.phi], rtol=0, atol=1e-10
        )
        assert_close(server["prototypes"], hand.prototypes, rtol=0, atol=1e-10)
        assert_close(server["diagnostics"]["weights"], torch.from_numpy(hand.weights), rtol=0, atol=1e-10)
        for client, head, adversaries in zip(backend.clients, hand.heads, hand.adversaries, strict=True):
            assert_close(list(leaves(client["classifier"])), head, rtol=0, atol=1e-10)
            for name, expected in adversaries.items():
                assert_close(list(leaves(client["discriminators"][name])), expected, rtol=0, atol=1e-10)


# -------------------- reduction and ablations


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
@pytest.mark.parametrize(
    "options",
    [
        {"fusion_weight": 0.0},
        {"fusion_weight": 0.0, "discriminator": "wgan_gp", "fusion_reduction": "sum", "kappa": "grow"},
        {"ccf": False, "mps": False, "cci": False},
    ],
)
def test_with_every_weight_0_it_is_fedrep(buffers: BufferPolicy, options: dict[str, Any]) -> None:
    shared: dict[str, Any] = {"setup": setup(buffers), "classifier_learning_rate": 0.07, "classifier_epochs": 2}
    ours, found = run(FedMate(**shared, centre_weight=0.0, cft="all", **options), CLIENTS)
    theirs, expected = run(FedRep(**shared), CLIENTS)
    for client, reference in zip(ours.clients, theirs.clients, strict=True):
        assert_close(select(client, reference), reference, rtol=0, atol=1e-12)
    for mine, other in zip(found, expected, strict=True):
        assert_close(select(mine.server, other.server), other.server, rtol=0, atol=1e-12)
        for view in ("pre", "post"):
            assert_close(mine.views[view], other.views[view], rtol=0, atol=1e-12, equal_nan=True)


def test_without_mps_prototypes_are_averaged_by_class_counts() -> None:
    _, [result] = run(make(mps=False), CLIENTS, [(0, 1, 2)])
    sent, counts = result.diagnostics["clients"]["prototypes"], torch.tensor([[2, 2, 1], [0, 3, 0], [2, 1, 3]])
    expected = torch.stack([(counts[:, k, None] * sent[:, k]).sum(0) / counts[:, k].sum() for k in range(3)])
    assert_close(result.server["prototypes"][:3], expected)


def test_without_cci_classifiers_are_averaged_by_size() -> None:
    backend, [result] = run(make(cci=False), CLIENTS, [(0, 1, 2)])
    for name, found in result.server["classifier"].items():
        expected = sum(
            n / 14 * client["classifier"][name] for n, client in zip((5, 3, 6), backend.clients, strict=True)
        )
        assert_close(found, expected)


# -------------------- rounds without an extractor


def held(method: FedMate, backend: Sequential, server: Tree, t: int) -> Sequence[Tensor]:
    """Return one weight of the extractor that each client goes on from in round `t`."""
    downloads = [backend.download(server, t, torch.tensor(i)) for i in range(3)]
    pairs = zip(backend.clients, downloads, strict=True)
    return [method.personal_params(*pair)["extractor"]["0.weight"] for pair in pairs]


def weight(state: Tree) -> Tensor:
    found: Tensor = state["extractor"]["0.weight"]
    return found


def start(method: FedMate) -> tuple[Sequential, Tree]:
    backend = Sequential(method, Federation(CLIENTS, CLIENTS[0], 4), make_key(4), workers=1)
    return backend, method.init_server(method.setup.model.init_params(), 3, make_key(4))


def test_after_a_skipped_extractor_clients_go_on_with_their_own() -> None:
    """period:2 leaves out state 2: no upload in round 1, no download in round 2."""
    method = make(cft="period:2")
    backend, server = start(method)
    for t in range(4):
        own, found = [weight(client) for client in backend.clients], held(method, backend, server, t)
        assert_close(found, own if t == 2 else [weight(server)] * 3, rtol=0, atol=0)
        result = backend.run_round(server, Round(t, (0, 1, 2), evaluate=False))
        assert {"extractor" in report.up for report in result.reports} == {t in (0, 2)}
        assert torch.equal(weight(result.server), weight(server)) == (t in (1, 3))
        assert not torch.equal(weight(backend.clients[0]), own[0])
        server = result.server


@pytest.mark.parametrize("cft", ["cft", "half", "period:2", "period:3"])
def test_sampled_clients_never_train_an_extractor_older_than_the_servers(cft: str) -> None:
    """Client 0 misses the round before a skipped one; it must not go on from an extractor of before."""
    method = FedMate(setup=replace(setup(rounds=6), participation=0.5), cft=cft)
    backend, server = start(method)
    for t, group in enumerate([(0, 1), (1, 2), (0, 2), (0, 1), (1, 2), (0, 2)]):
        server = backend.run_round(server, Round(t, group, evaluate=False)).server
        assert_close(held(method, backend, server, t + 1), [weight(server)] * 3, rtol=0, atol=0)
