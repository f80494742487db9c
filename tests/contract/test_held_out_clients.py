"""The contract about clients that were not in training: every method welcomes them, every back end alike."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from fedmate.backends import BACKENDS, Backend
from fedmate.backends import client as client_module
from fedmate.backends.base import Round, initial_held_out_client, welcome
from fedmate.backends.client import adapt_client, judge
from fedmate.core import (
    Augmentation,
    ClientData,
    EvaluationData,
    Method,
    Source,
    Training,
    Tree,
    adjusted,
    fold,
    make_key,
    random_bits,
    rows_of,
    select,
    statistics,
    tree_map,
    unmapped,
)
from fedmate.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from tests.contract.conftest import Lab, MakeLab

LABELS = ((0, 1, 2, 2, 0), (1,), (2, 3, 2))
"""By newcomer: unequal, one sample, a class that nobody in training holds."""


def newcomer(i: int) -> ClientData:
    y = torch.tensor(LABELS[i])
    images = random_bits(fold(make_key(23), i), (len(y), 1, 2, 4)).to(torch.uint8)
    mean, std = torch.full((2, 1, 1, 1), 110.0, dtype=torch.float64)
    return rows_of(Source(images, mean, std, Augmentation(crop=1, flip=True)), torch.arange(len(y)), y)


def joined(lab: Lab, *newcomers: ClientData) -> Lab:
    """Return the same with newcomers."""
    people = newcomers or tuple(newcomer(i) for i in range(len(LABELS)))
    more = replace(lab, federation=lab.federation._replace(held_out_clients=people))
    # Training is the same, so it is done once for all tests of a method: with accuracies, also if this test is `fine`.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "judge", judge)
        vars(more)["started"] = lab.started
    return more


@pytest.fixture
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report logits instead of counts, which are too coarse to tell two models apart."""

    def logits(method: Method, params: Tree, data: ClientData, tests: EvaluationData, is_global: bool) -> Tensor:
        assert tests.common is not None
        answers = method.setup.model.logits(params, tests.common.x)
        own = method.setup.objective.for_own(method.counts(data), is_global)
        return torch.stack([adjusted(answers, one).flatten() for one in (None, own)])

    monkeypatch.setattr(client_module, "judge", logits)


def adapted(lab: Lab, backend: Backend) -> Tree:
    """Return what a back end says about the newcomers after round 1; FedMate's next message has no extractor."""
    with torch.no_grad():
        return backend.adapt(lab.started[0], Round(1, lab.everyone, evaluate=True))


@cache
def by_hand(lab: Lab, i: int) -> tuple[Tree, Tree]:
    """Return the models of newcomer `i` after round 1, in plain Python: before and after it adapts."""
    method, key = lab.method, fold(lab.key, "newcomer round", 1, i)
    client = method.init_client(method.setup.model.init_params(), fold(lab.key, "newcomer", i))
    download = select(method.download(lab.started[0], torch.tensor(-1)), method.wire(0).down)
    with torch.no_grad(), unmapped():
        trained = method.local_update(client, download, newcomer(i), fold(key, "update"))
        own_key = fold(key, "personalise")
        after = method.personalise(trained.params, trained.client, download, newcomer(i), own_key)
    return method.personal_params(client, download), after


# -------------------- all back ends, all methods


@pytest.mark.usefixtures("fine")
def test_back_ends_agree_on_newcomers(any_lab: Lab, backend_name: str) -> None:
    """And with a loop written here: the first message, one local update from the initial state, `personalise`."""
    lab = joined(any_lab)
    model, test, found = lab.method.setup.model, lab.federation.test, adapted(lab, lab.backend(backend_name))
    assert set(found) == {"before", "after"}
    for i in range(len(LABELS)):
        own = lab.method.setup.objective.for_own(lab.method.counts(newcomer(i)), is_global=False)
        before, after = (
            torch.stack([adjusted(model.logits(params, test.x), one).flatten() for one in (None, own)])
            for params in by_hand(any_lab, i)
        )
        assert_close(found["before"][i], before, rtol=0, atol=1e-9)
        assert_close(found["after"][i], after, rtol=0, atol=1e-9)
        assert not torch.equal(before, after)


@pytest.mark.usefixtures("fine")
def test_the_message_is_for_a_stranger(make_lab: MakeLab, backend_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method may send each client something else: the one that was not there at the start has the id -1."""

    def download(self: Method, server: Tree, client_id: Tensor) -> Tree:
        return {**server, "classifier": tree_map(lambda leaf: leaf + client_id, server["classifier"])}

    lab = joined(make_lab("fedavg", "plain"))
    monkeypatch.setattr(FedAvg, "download", download)
    found, model = adapted(lab, lab.backend(backend_name)), lab.method.setup.model
    assert_close(found["before"][0, 0], model.logits(by_hand(lab, 0)[0], lab.federation.test.x).flatten())


def test_what_is_reported_counts_answers(plain_lab: Lab, backend_name: str) -> None:
    lab = joined(plain_lab)
    model, test, classes = lab.method.setup.model, lab.federation.test, lab.federation.num_classes
    found = adapted(lab, lab.backend(backend_name))
    for i in range(len(LABELS)):
        before, after = by_hand(plain_lab, i)
        counts = lab.method.counts(lab.federation.held_out_clients[i])
        own = lab.method.setup.objective.for_own(counts, is_global=False)
        for name, params in (("before", before), ("after", after)):
            for kind, adjustment in (("balanced", None), ("own", own)):
                confusion = statistics(model, params, test, classes, adjustment)[0]["confusion"].double()
                tally = found[name][kind]["tally"][i]
                assert_close(tally[:2], torch.stack([confusion.diagonal(), confusion.sum(1)]), rtol=0, atol=0)


def test_newcomers_do_not_touch_training(plain_lab: Lab, backend_name: str) -> None:
    task = Round(0, (0, 2, 3), evaluate=True)
    backends = [one.backend(backend_name) for one in (plain_lab, joined(plain_lab))]
    without, with_them = (backend.run_round(plain_lab.server(), task) for backend in backends)
    assert not without.held_out_clients
    assert with_them.held_out_clients
    assert_close(with_them._replace(held_out_clients={}), without, rtol=0, atol=0, equal_nan=True)
    assert_close(list(backends[1].clients), list(backends[0].clients), rtol=0, atol=0)


@pytest.mark.usefixtures("fine")
def test_newcomers_do_not_touch_each_other(plain_lab: Lab, backend_name: str) -> None:
    """A newcomer is who it is by its number; who comes after it, and how large they are, changes nothing."""
    one, other = (
        adapted(lab, lab.backend(backend_name)) for lab in (joined(plain_lab, newcomer(0)), joined(plain_lab))
    )
    for name in ("before", "after"):
        assert_close(one[name][0], other[name][0], rtol=0, atol=1e-12)


def test_they_meet_the_model_that_the_round_has_made(plain_lab: Lab, backend_name: str) -> None:
    lab = joined(plain_lab)
    backend = lab.backend(backend_name)
    result = backend.run_round(lab.server(), Round(0, lab.everyone, evaluate=True))
    with torch.no_grad():
        later = backend.adapt(result.server, Round(0, lab.everyone, evaluate=True))
    assert_close({name: view.tests for name, view in result.held_out_clients.items()}, later, rtol=0, atol=0)


def test_they_are_met_when_a_round_is_evaluated(plain_lab: Lab, backend_name: str) -> None:
    lab = joined(plain_lab)
    result = lab.backend(backend_name).run_round(lab.server(), Round(0, (1,), evaluate=False))
    assert result.held_out_clients == {}


@pytest.mark.usefixtures("fine")
@pytest.mark.parametrize("chunk_size", [2])
def test_chunks_change_nothing(plain_lab: Lab, backend_name: str, chunk_size: int) -> None:
    lab = joined(plain_lab)
    backend = BACKENDS[backend_name](lab.method, lab.federation, lab.key, chunk_size=chunk_size)
    assert_close(adapted(lab, backend), adapted(lab, lab.backend(backend_name)), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("fine")
def test_workers_change_no_bit(plain_lab: Lab) -> None:
    lab = joined(plain_lab)
    assert_close(adapted(lab, lab.reference(1)), adapted(lab, lab.reference(3)), rtol=0, atol=0)


# -------------------- divergence


@pytest.mark.usefixtures("fine")
def test_a_newcomer_that_diverges_keeps_what_it_received(plain_lab: Lab, backend_name: str) -> None:
    healthy = joined(plain_lab)
    source = newcomer(0).source
    broken = newcomer(0)._replace(source=source._replace(samples=source.samples * torch.nan))
    sick = joined(plain_lab, broken, newcomer(1), newcomer(2))
    good, bad = (adapted(lab, lab.backend(backend_name)) for lab in (healthy, sick))
    assert_close(bad["after"][0], bad["before"][0], rtol=0, atol=1e-12)
    assert not torch.equal(good["after"][0], good["before"][0])
    assert_close(bad["after"][1:], good["after"][1:], rtol=0, atol=1e-9)
    assert_close(bad["before"], good["before"], rtol=0, atol=1e-9)


@pytest.mark.usefixtures("fine")
def test_numbers_so_large_that_the_loss_is_not_finite_are_divergence(
    make_lab: MakeLab, backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(self: Method, params: Tree, *others: object) -> Tree:
        return {**params, "classifier": tree_map(lambda leaf: torch.full_like(leaf, 1.7e308), params["classifier"])}

    monkeypatch.setattr(FedAvg, "personalise", explode)
    lab = joined(make_lab("fedavg", "plain"))
    found = adapted(lab, lab.backend(backend_name))
    assert_close(found["after"], found["before"], rtol=0, atol=1e-12)


# -------------------- by hand


@pytest.mark.parametrize("i", range(len(LABELS)))
def test_adapting_fedavg_is_a_step_of_gradient_descent_from_the_global_model(make_lab: MakeLab, i: int) -> None:
    training = Training(batch_size=10, epochs=1, learning_rate=0.3, momentum=0.5, weight_decay=0.02)
    lab = make_lab("fedavg", "plain", training=training)
    server, data, model = lab.started[0], newcomer(i), lab.method.setup.model
    data = data._replace(source=data.source._replace(augmentation=Augmentation()))
    module = model.to_module(select(server, ("extractor", "classifier", "buffers")))
    functional.cross_entropy(module(data.x), data.y).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        received = module(lab.federation.test.x)
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.3 * (parameter.grad + 0.02 * parameter))
        trained = module(lab.federation.test.x)

    download = welcome(lab.method, server, lab.key.device)
    with torch.no_grad():
        client = initial_held_out_client(lab.method, lab.key, i)
        before, after, valid = adapt_client(lab.method, client, download, data, make_key(5))
    assert bool(valid)
    assert_close(model.logits(before, lab.federation.test.x), received, rtol=0, atol=1e-12)
    assert_close(model.logits(after, lab.federation.test.x), trained, rtol=0, atol=1e-12)


def test_a_newcomer_of_fedrep_brings_the_classifier_everybody_started_with(make_lab: MakeLab) -> None:
    lab = make_lab("fedrep", "plain")
    server, model = lab.started[0], lab.method.setup.model
    client = initial_held_out_client(lab.method, lab.key, 0)
    before = lab.method.personal_params(client, welcome(lab.method, server, lab.key.device))
    assert_close(before["classifier"], model.init_params()["classifier"], rtol=0, atol=0)
    assert_close(before["extractor"], server["extractor"], rtol=0, atol=0)


def test_a_newcomer_of_fedmate_has_discriminators_of_its_own(make_lab: MakeLab) -> None:
    lab = make_lab("fedmate", "plain")
    one, other = (initial_held_out_client(lab.method, lab.key, i)["discriminators"] for i in (0, 1))
    clients = [client["discriminators"] for client in lab.clients()]
    for trees in ((one, other), *((one, client) for client in clients)):
        with pytest.raises(AssertionError, match="not close"):
            assert_close(*trees, rtol=0, atol=1e-6)
