"""Prior calibration in every phase of every method: one step by hand, and classes that a client lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.core.four_classes import CLASSES, model, samples
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    ClientData,
    Federation,
    LocalResult,
    Method,
    ObjectiveOptions,
    Setup,
    Training,
    Tree,
    make_key,
    unmapped,
)
from fedmate.methods import METHODS

RATE = 0.3
LABELS = [0, 0, 0, 1, 2, 2]

IN_PHASES = ("fedmate", "fedmate_plus", "fedpac", "fedrep")
"""They train the classifier first, then the extractor under it."""

BARE: dict[str, dict[str, Any]] = {
    "fedfa": {"anchor_weight": 0.0, "calibration_learning_rate": 0.0},
    "fedmate": {"ccf": False, "classifier_learning_rate": RATE},
    "fedmate_plus": {"ccf": False, "classifier_learning_rate": RATE},
    "fedpac": {"classifier_learning_rate": RATE},
    "fedrep": {"classifier_learning_rate": RATE, "tuning_epochs": 1},
    "fedavg": {"tuning_epochs": 1},
    "fedbabu": {"tuning_epochs": 1},
    "moon": {"contrastive_weight": 0.0},
}
"""Cross-entropy alone is left in round 0: what else a method minimises is switched off, or has no gradient yet."""


def make(name: str, calibration: float = 0.0, **options: Any) -> Method:
    """Return a method that takes one step of all samples, without weight decay."""
    training = Training(batch_size=len(LABELS), epochs=1, learning_rate=RATE, weight_decay=0.0)
    setup = Setup(model(), CLASSES, 3, training, objective=ObjectiveOptions(calibration=calibration))
    return METHODS[name](setup=setup, **(BARE.get(name, {}) | options))


def trained(method: Method, data: ClientData) -> tuple[LocalResult, dict[str, Tree]]:
    """Return what a client's first round leads to: its result, and models that are made for evaluation."""
    start = method.setup.model.init_params()
    server = method.init_server(start, 1, make_key(0))
    client, download = method.init_client(start, make_key(0)), method.download(server, torch.tensor(0))
    with torch.no_grad(), unmapped():
        result = method.local_update(client, download, data, make_key(1))
        views = method.extra_views(client, download, data, make_key(2))
        # The prototypes of the federation are no classifier that a client has trained.
        views.pop("nearest_prototype", None)
        views["personalised"] = method.personalise(
            method.personal_params(client, download), client, download, data, make_key(3)
        )
    return result, views


def stepped(params: Tree, data: ClientData, prior: Tensor, part: str) -> Tree:
    """Return parameters with one part moved by a step on adjusted logits, by hand: over the classes with a prior."""
    moving = {name: leaf.clone().requires_grad_() for name, leaf in params[part].items()}
    e, c = (moving if part == own else params[own] for own in ("extractor", "classifier"))
    features = torch.tanh(data.x @ e["0.weight"].T + e["0.bias"])
    logits = (features @ c["weight"].T + c["bias"])[:, : len(prior)]
    slopes = torch.autograd.grad(functional.cross_entropy(logits + prior, data.y), list(moving.values()))
    moved = {name: (moving[name] - RATE * slope).detach() for name, slope in zip(moving, slopes, strict=True)}
    return {**params, part: moved}


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", METHODS.names())
def test_one_round_by_hand(name: str, tau: float) -> None:
    """Classifier and extractor, whether they are trained together, in turn, or one of them alone."""
    method, data = make(name, calibration=tau), samples(LABELS)
    prior = tau * (torch.tensor([3, 1, 2], dtype=torch.float64) / 6).log()
    start = method.setup.model.init_params()
    classifier = start if name == "fedbabu" else stepped(start, data, prior, "classifier")
    below = classifier if name in IN_PHASES else start
    expected = {**classifier, "extractor": stepped(below, data, prior, "extractor")["extractor"]}
    tuned, both = (stepped(start, data, prior, part) for part in ("classifier", "extractor"))
    result, views = trained(method, data)
    # FedRoD adds up two classifiers that take the same first step; what it sends is one of them.
    held = result.params if name != "fedrod" else result.upload
    for part in ("extractor", "classifier"):
        assert_close(held[part], expected[part], rtol=0, atol=1e-12)
        if part in result.upload:
            assert_close(result.upload[part], expected[part], rtol=0, atol=1e-12)
    if name == "fedrod":
        step = result.client["personal_classifier"]["weight"]
        assert_close(step, expected["classifier"]["weight"] - start["classifier"]["weight"], rtol=0, atol=1e-12)
    if "classifier_tuned" in views:
        assert_close(views["classifier_tuned"]["classifier"], tuned["classifier"], rtol=0, atol=1e-12)
    if name == "fedbabu":
        assert_close(views["personalised"]["classifier"], tuned["classifier"], rtol=0, atol=1e-12)
        assert_close(views["personalised"]["extractor"], both["extractor"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METHODS.names())
def test_the_row_of_a_class_that_is_not_held_stays(name: str) -> None:
    """In whatever a client keeps, sends, holds or has evaluated, after several steps; MOON's contrast is above it."""
    contrast = {"contrastive_weight": 1.0} if name == "moon" else {}
    method = make(name, calibration=1.0, **contrast)
    start, (result, views) = method.setup.model.init_params(), trained(method, samples(LABELS * 3))
    moved = 0
    for tree in (result.client, result.client.get("personal_model", {}), result.upload, result.params, *views.values()):
        for part, before in (("classifier", start["classifier"]), ("personal_classifier", None)):
            for leaf, rows in tree.get(part, {}).items():
                old = torch.zeros_like(rows) if before is None else before[leaf]
                assert_close(rows[3], old[3], rtol=0, atol=0)
                moved += int(not torch.equal(rows[:3], old[:3]))
    assert moved


@pytest.mark.parametrize("name", METHODS.names())
def test_a_client_of_one_class_learns_nothing_from_its_labels(name: str) -> None:
    """Its shares explain them all: no phase moves anything."""
    method = make(name, calibration=1.0)
    start, (result, views) = method.setup.model.init_params(), trained(method, samples([2] * 6))
    for tree in (result.upload, result.params, *views.values()):
        for part in ("extractor", "classifier"):
            if part in tree:
                assert_close(tree[part], {leaf: start[part][leaf] for leaf in tree[part]}, rtol=0, atol=0)


@pytest.mark.parametrize("name", METHODS.names())
def test_who_says_that_clients_hold_the_global_model_tells_the_truth(name: str) -> None:
    """After the broadcast, and before and after use: a model that is nobody's in particular."""
    method, clients = make(name), (samples([0] * 5 + [1], 5), samples([1] * 3 + [2, 3], 6))
    backend = Sequential(method, Federation(clients, clients[0], CLASSES), make_key(0), workers=1)
    server = method.init_server(method.setup.model.init_params(), 2, make_key(0))
    for t in range(2):
        server = backend.run_round(server, Round(t, (0, 1), evaluate=False)).server
    everyones = method.global_params(server)
    with torch.no_grad(), unmapped():
        download = method.download(server, torch.tensor(0))
        held = method.personal_params(backend.clients[0], download)
        held = method.personalise(held, backend.clients[0], download, clients[0], make_key(3))
    same = everyones is not None and all(
        torch.equal(leaf, everyones[part][key])
        for part in ("extractor", "classifier")
        for key, leaf in held[part].items()
    )
    # Without BatchNorm FedBN is FedAvg, and warns.
    assert same == (method.is_global or name == "fedbn")
