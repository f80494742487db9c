"""FedMate: rounds by hand, its reduction to FedRep, its ablations, and what crosses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon  # type: ignore[import-untyped]
from tests.methods.small import TRAINING
from torch import Tensor, nn
from torch.testing import assert_close

from fedmate.backends.base import ClientReport, Round, RoundResult
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
    flatten,
    leaves,
    make_key,
    normal,
    select,
)
from fedmate.experiment.run import CommunicationCost
from fedmate.methods.fedmate import FedMate
from fedmate.methods.fedrep import FedRep

CLASSES = 4
LABELS = ((0, 1, 2, 0, 1), (1, 1, 1), (0, 2, 2, 1, 0, 2))
"""By client. The second holds one class; nobody holds class 3."""


def samples(seed: int, labels: Iterable[int]) -> ClientData:
    y = torch.tensor(tuple(labels))
    return client_data(normal(make_key(seed), (len(y), 1, 8), torch.float64) + y[:, None, None] / 2, y)


FEDERATION = Federation(
    tuple(samples(i, labels) for i, labels in enumerate(LABELS)), samples(9, range(CLASSES)), CLASSES
)


def make_model(buffers: BufferPolicy = "shared") -> Model:
    """22 numbers extract 2 features, 8 make the prototypes of 4 classes: CFT leaves out every second state."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = [
            nn.Conv1d(1, 2, 3, padding=1),
            nn.BatchNorm1d(2),
            nn.Tanh(),
            nn.Dropout(0.25),
            nn.AvgPool1d(4),
            nn.Flatten(),
        ]
        return Model(
            nn.Sequential(*layers, nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, CLASSES)).double(),
            classifier="8",
            buffers=buffers,
        )


def make(model: Model | None = None, rounds: int = 4, training: Training = TRAINING, **options: Any) -> FedMate:
    return FedMate(setup=Setup(model or make_model(), CLASSES, rounds, training), **options)


class Run:
    """A method on the sequential back end, round by round."""

    def __init__(self, method: Method, federation: Federation = FEDERATION, seed: int = 4) -> None:
        """Start it."""
        self.method, self.federation = method, federation
        self.backend = Sequential(method, federation, make_key(seed), workers=1)
        params = method.setup.model.init_params()
        self.servers: list[Tree] = [method.init_server(params, len(federation.clients), make_key(seed))]
        self.results: list[RoundResult] = []

    @property
    def clients(self) -> Sequence[Tree]:
        return self.backend.clients

    def go(self, *participants: tuple[int, ...], evaluate: bool = False) -> Run:
        """Run a round for each group of participants."""
        for group in participants:
            task = Round(len(self.results), group, evaluate)
            self.results.append(self.backend.run_round(self.servers[-1], task))
            self.servers.append(self.results[-1].server)
        return self

    def everybody(self, rounds: int, *, evaluate: bool = False) -> Run:
        everyone = tuple(range(len(self.federation.clients)))
        return self.go(*[everyone] * rounds, evaluate=evaluate)

    def personal(self) -> Tree:
        """Return the models the clients hold after the next broadcast."""
        t, server = len(self.results), self.servers[-1]
        downloads = [self.backend.download(server, t, torch.tensor(i)) for i in range(len(self.clients))]
        pairs = zip(self.clients, downloads, strict=True)
        return {str(i): self.method.personal_params(*pair) for i, pair in enumerate(pairs)}


def differ(one: Tree, other: Tree) -> bool:
    left, right = flatten(one), flatten(other)
    assert left.keys() == right.keys()
    return any(not torch.allclose(left[path], right[path], rtol=0, atol=1e-9) for path in left)


# -------------------- by hand


class Descent:
    """SGD with momentum and weight decay, written out."""

    def __init__(self, tensors: list[Tensor], rate: float, settings: Training) -> None:
        """Start at rest."""
        self.tensors, self.rate, self.settings = tensors, rate, settings
        self.velocity = [torch.zeros_like(t) for t in tensors]

    def step(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.tensors)
        with torch.no_grad():
            for t, v, g in zip(self.tensors, self.velocity, gradients, strict=True):
                v.mul_(self.settings.momentum).add_(g + self.settings.weight_decay * t)
                t.sub_(self.rate * v)


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
        """Start from the common model and each client's own discriminators."""
        self.data, self.m, self.s = data, m, m.setup.training
        self.theta, self.phi = list(params["extractor"].values()), list(params["classifier"].values())
        self.heads = [[t.clone() for t in self.phi] for _ in data]
        self.rivals = [{name: [t.clone() for t in leaves(d)] for name, d in pair.items()} for pair in discriminators]
        self.prototypes: Tensor | None = None
        self.views: dict[str, np.ndarray] = {}

    def client(self, i: int, t: int) -> tuple[list[Tensor], Tensor]:
        """Train client i; return its extractor and its prototypes."""
        (x, y), m = self.data[i], self.m
        held = torch.tensor(sorted(set(y.tolist())))

        def means(theta: list[Tensor]) -> Tensor:
            return torch.stack([(x[y == k] @ theta[0].T + theta[1]).mean(0) for k in held])

        theta, head = variables(self.theta), variables(self.heads[i])
        rivals = {name: variables(tensors) for name, tensors in self.rivals[i].items()}
        own, z = means(theta).detach(), (x @ theta[0].T + theta[1]).detach()
        kappa = 1 - t / m.setup.rounds
        steps = {name: Descent(r, m.discriminator_learning_rate, self.s) for name, r in rivals.items()}
        descent = Descent(head, m.classifier_learning_rate, self.s)

        def logits(features: Tensor) -> Tensor:
            return features @ head[0].T + head[1]

        for _ in range(m.classifier_epochs):
            adversarial = torch.zeros((), dtype=torch.float64)
            if self.prototypes is not None:
                whole, shared = self.prototypes, self.prototypes[held]
                with torch.no_grad():
                    truth = whole @ self.phi[0].T + self.phi[1]
                    seen, mine, imitated = logits(shared), logits(own), logits(whole)
                pr, cl = rivals["prototype"], rivals["classifier"]
                steps["prototype"].step(-(probability(pr, seen).log() + (1 - probability(pr, mine)).log()).mean())
                steps["classifier"].step(-(probability(cl, truth).log() + (1 - probability(cl, imitated)).log()).mean())
                adversarial = -probability(pr, logits(own)).log().mean() - probability(cl, logits(whole)).log().mean()
            proto = (logits(own).logsumexp(1) - logits(own)[range(len(held)), held]).mean()
            plain = (logits(z).logsumexp(1) - logits(z)[range(len(y)), y]).mean()
            descent.step(plain + m.fusion_weight * (proto + kappa * adversarial))

        descent = Descent(theta, self.s.learning_rate, self.s)
        for _ in range(self.s.epochs):
            z = x @ theta[0].T + theta[1]
            loss = (logits(z).logsumexp(1) - logits(z)[range(len(y)), y]).mean()
            if self.prototypes is not None:
                loss = loss + m.centre_weight * ((z - self.prototypes[y]) ** 2).sum() / z.numel()
            descent.step(loss)
        self.heads[i] = [t.detach() for t in head]
        self.rivals[i] = {name: [t.detach() for t in r] for name, r in rivals.items()}
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
        self.prototypes, self.views = torch.stack(rows), {"weights": weights}
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
    federation = Federation(tuple(client_data(*pair) for pair in data), client_data(*data[1]), 3)
    run = Run(method, federation)
    discriminators = [client["discriminators"] for client in run.clients]
    hand = ByHand(data, model.init_params(), discriminators, method)
    starts = [list(leaves(pair)) for pair in discriminators]
    for t in range(3):
        run.everybody(1)
        hand.round(t)
        server = run.servers[-1]
        assert hand.prototypes is not None
        assert_close(list(leaves(server["extractor"])), hand.theta, rtol=0, atol=1e-10)
        assert_close(list(leaves(server["classifier"])), hand.phi, rtol=0, atol=1e-10)
        assert_close(server["prototypes"], hand.prototypes, rtol=0, atol=1e-10)
        assert_close(server["diagnostics"]["weights"], torch.from_numpy(hand.views["weights"]), rtol=0, atol=1e-10)
        for client, head, rivals, start in zip(run.clients, hand.heads, hand.rivals, starts, strict=True):
            assert_close(list(leaves(client["classifier"])), head, rtol=0, atol=1e-10)
            for name, expected in rivals.items():
                assert_close(list(leaves(client["discriminators"][name])), expected, rtol=0, atol=1e-10)
            moved = [not torch.equal(*pair) for pair in zip(leaves(client["discriminators"]), start, strict=True)]
            assert any(moved) == all(moved) == (t > 0)


# -------------------- reduction


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
@pytest.mark.parametrize(
    "options",
    [
        {"fusion_weight": 0.0},
        {"ccf": False},
        {"fusion_weight": 0.0, "discriminator": "wgan_gp", "fusion_reduction": "sum", "kappa": "grow"},
        {"ccf": False, "mps": False, "cci": False},
    ],
)
def test_with_every_weight_0_it_is_fedrep(buffers: BufferPolicy, options: dict[str, Any]) -> None:
    model = make_model(buffers)
    ours = make(model, centre_weight=0.0, cft="all", classifier_learning_rate=0.07, classifier_epochs=2, **options)
    theirs = FedRep(setup=ours.setup, classifier_learning_rate=0.07, classifier_epochs=2)
    groups = ((0, 1, 2), (0, 2), (0, 1, 2))
    one, other = Run(ours).go(*groups, evaluate=True), Run(theirs).go(*groups, evaluate=True)
    assert differ(one.personal(), {str(i): model.init_params() for i in range(3)})
    assert_close(one.personal(), other.personal(), rtol=0, atol=1e-12)
    for mine, its in zip(one.servers, other.servers, strict=True):
        assert_close(select(mine, its), its, rtol=0, atol=1e-12)
    for found, expected in zip(one.results, other.results, strict=True):
        for view in ("pre", "post"):
            assert_close(found.views[view], expected.views[view], rtol=0, atol=1e-12, equal_nan=True)


# -------------------- ablations


def test_without_mps_prototypes_are_averaged_by_class_counts() -> None:
    run = Run(make(mps=False)).everybody(1)
    sent, counts = run.results[0].diagnostics["clients"]["prototypes"], torch.tensor([[2, 2, 1], [0, 3, 0], [2, 1, 3]])
    expected = torch.stack([(counts[:, k, None] * sent[:, k]).sum(0) / counts[:, k].sum() for k in range(3)])
    assert_close(run.servers[-1]["prototypes"][:3], expected)
    assert differ(run.servers[-1], Run(make()).everybody(1).servers[-1])


def test_without_cci_classifiers_are_averaged_by_size() -> None:
    run = Run(make(cci=False)).everybody(1)
    for name, found in run.servers[-1]["classifier"].items():
        sizes = (5, 3, 6)
        expected = sum(n / 14 * client["classifier"][name] for n, client in zip(sizes, run.clients, strict=True))
        assert_close(found, expected)


# -------------------- options


def test_alternating_is_a_pass_of_each_in_turn() -> None:
    """Two epochs in turn are one epoch twice, fusion being constant but for the prototypes of the round's start."""
    quick = Training(batch_size=9, epochs=1, learning_rate=0.1, momentum=0.5, weight_decay=0.01)
    double = Training(batch_size=9, epochs=2, learning_rate=0.1, momentum=0.5, weight_decay=0.01)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Model(
            nn.Sequential(nn.Flatten(), nn.Linear(8, 2), nn.Tanh(), nn.Linear(2, CLASSES)).double(), classifier="3"
        )
    once, twice = make(model, training=quick, ccf=False), make(model, training=double, ccf=False, alternate=True)
    params = model.init_params()
    client, server = twice.init_client(params, make_key(0)), twice.init_server(params, 1, make_key(0))
    download, data = twice.download(server, torch.tensor(0)), FEDERATION.clients[0]
    expected = once.local_update(client, download, data, make_key(1))
    expected = once.local_update(expected.client, select(download, set(download) - {"extractor"}), data, make_key(2))
    found = twice.local_update(client, download, data, make_key(3))
    assert_close(found.params, expected.params, rtol=0, atol=1e-12)


def test_own_prototypes_centre_what_the_server_does_not_know() -> None:
    """In round 0 nothing is known: the centre loss is off, unless the client centres on itself."""
    plain = [Run(make(centre_weight=weight)).everybody(1).personal() for weight in (0.0, 0.8)]
    assert_close(*plain, rtol=0, atol=0)
    own = [Run(make(centre_weight=weight, own_prototypes=True)).everybody(1).personal() for weight in (0.0, 0.8)]
    assert_close(own[0], plain[0], rtol=0, atol=0)
    assert differ(own[1], plain[0])


# -------------------- what crosses


def numbers(report: ClientReport, direction: str) -> tuple[int, int]:
    """Return how many float32 numbers crossed, and how many bytes of bookkeeping."""
    items = dict(report.down if direction == "down" else report.up)
    bookkeeping = items.pop("bookkeeping")
    return sum(items.values()) // 4, bookkeeping


def test_a_skipped_extractor_neither_crosses_nor_counts() -> None:
    """period:2 leaves out state 2: no upload in round 1, no download in round 2, everybody goes on with its own."""
    method = make(rounds=4, cft="period:2")
    run, ledger = Run(method), CommunicationCost(method, 4)
    size, statistics = 8 * method.setup.model.extractor_size, 8 * 4
    rows = []
    for t in range(4):
        own = [client["extractor"] for client in run.clients]
        held = [params["extractor"] for params in run.personal().values()]
        run.everybody(1)
        rows.append([ledger.add(report) for report in run.results[-1].reports])
        for mine, theirs in zip(held, own, strict=True):
            assert_close(mine, theirs if t == 2 else run.servers[t]["extractor"], rtol=0, atol=0)
        assert differ(run.servers[t + 1]["extractor"], run.servers[t]["extractor"]) == (t in (0, 2))
        assert differ({"": own[0]}, {"": run.clients[0]["extractor"]})
    for item, expected in (("extractor", size), ("buffers", statistics)):
        assert [{row[f"up_{item}"] for row in round_} for round_ in rows] == [{expected}, {0}, {expected}, {0}]
        assert [{row[f"down_{item}"] for row in round_} for round_ in rows] == [{expected}, {expected}, {0}, {expected}]
        assert (ledger.up[item], ledger.down[item]) == (3 * 2 * expected, 3 * 3 * expected)
    prototypes, classifier = 8 * CLASSES * 2, 8 * (CLASSES * 2 + CLASSES)
    assert ledger.up["prototypes"] == ledger.down["prototypes"] == 4 * 3 * prototypes
    assert ledger.up["classifier"] == ledger.down["classifier"] == 4 * 3 * classifier
    assert ledger.up["bookkeeping"] == 4 * 3 * 8 * CLASSES
    assert ledger.down["bookkeeping"] == 4 * 3 * (CLASSES + 8)


@pytest.mark.parametrize("cft", ["cft", "half", "period:2", "period:3"])
def test_sampled_clients_never_train_an_extractor_older_than_the_servers(cft: str) -> None:
    """Client 0 misses the round before a skipped one; it must not go on from an extractor of before."""
    method = make(rounds=6, cft=cft)
    run = Run(replace(method, setup=replace(method.setup, participation=0.5)))
    for t, group in enumerate([(0, 1), (1, 2), (0, 2), (0, 1), (1, 2), (0, 2)]):
        run.go(group)
        newest = {str(i): run.servers[-1]["extractor"] for i in range(3)}
        assert not differ({i: params["extractor"] for i, params in run.personal().items()}, newest)
        sent = "extractor" in method.wire(t).up
        assert differ(run.servers[-1]["extractor"], run.servers[-2]["extractor"]) == sent
