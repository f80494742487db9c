"""The contract of a back end: it runs a round, and the way it does so changes nothing, for every method."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedmate.backends import BACKENDS
from fedmate.backends.base import Round
from fedmate.core import (
    Federation,
    Model,
    Setup,
    Training,
    Tree,
    all_finite,
    client_data,
    make_key,
    num_bytes,
    select,
    stack,
)
from fedmate.methods import METHODS

if TYPE_CHECKING:
    from tests.contract.conftest import Lab

# -------------------- all give the same result


def test_agrees_with_the_reference(any_lab: Lab, backend_name: str) -> None:
    expected, found = any_lab.expected, any_lab.history(backend_name)
    assert_close(found.rounds, expected.rounds, rtol=0, atol=1e-9, equal_nan=True)
    assert_close(found.clients, expected.clients, rtol=0, atol=1e-9)


def test_the_number_of_workers_changes_no_bit(buffered_lab: Lab) -> None:
    expected, found = buffered_lab.expected, buffered_lab.run(buffered_lab.reference(workers=3))
    assert_close(found.rounds, expected.rounds, rtol=0, atol=0, equal_nan=True)
    assert_close(found.clients, expected.clients, rtol=0, atol=0)


def test_the_order_in_which_clients_are_served_changes_nothing(buffered_lab: Lab, backend_name: str) -> None:
    """Against a loop written here, which serves the last client first."""
    found, (servers, clients) = buffered_lab.history(backend_name), last_first(buffered_lab)
    for t, result in enumerate(found.rounds):
        assert [report.client for report in result.reports] == sorted(buffered_lab.schedule[t])
        assert_close(result.server, servers[t], rtol=0, atol=1e-9)
    assert_close(found.clients, clients, rtol=0, atol=1e-9)


@cache
def last_first(lab: Lab) -> tuple[list[Tree], list[Tree]]:
    """Run the schedule, the last client first; return the server's states after each round, and the clients'."""
    servers, clients = [lab.server()], lab.clients()
    for t, participants in enumerate(lab.schedule):
        trained = {i: lab.train(servers[-1], clients[i], t, i) for i in reversed(participants)}
        for i, outcome in trained.items():
            clients[i] = outcome.client
        uploads = stack([trained[i].upload for i in participants])
        valid = [bool(trained[i].valid) for i in participants]
        servers.append(lab.aggregate(servers[-1], uploads, participants, valid))
    return servers[1:], clients


def test_who_stays_away_keeps_their_state(plain_lab: Lab, backend_name: str) -> None:
    backend, before = plain_lab.backend(backend_name), plain_lab.clients()
    backend.run_round(plain_lab.server(), Round(0, (0, 3), evaluate=True))
    for i in (1, 2, 4):
        assert_close(backend.clients[i], before[i], rtol=0, atol=0)


def test_the_same_key_gives_the_same_bits_and_another_key_others(plain_lab: Lab, backend_name: str) -> None:
    one, again = plain_lab.history(backend_name), plain_lab.run(plain_lab.backend(backend_name))
    other = plain_lab.with_key(12).history(backend_name)
    assert_close(again.rounds, one.rounds, rtol=0, atol=0, equal_nan=True)
    assert_close(again.state(), one.state(), rtol=0, atol=0)
    with pytest.raises(AssertionError, match="not close"):
        assert_close(other.state(), one.state(), rtol=0, atol=1e-9)


# -------------------- evaluation


def test_evaluation_changes_neither_state_nor_ledger(buffered_lab: Lab, backend_name: str) -> None:
    lab = buffered_lab
    seen = lab.history(backend_name)
    unseen = lab.run(lab.backend(backend_name), evaluate=False)
    assert all(result.views for result in seen.rounds)
    assert not any(result.views for result in unseen.rounds)
    assert_close([r.server for r in seen.rounds], [r.server for r in unseen.rounds], rtol=0, atol=0)
    assert_close([r.reports for r in seen.rounds], [r.reports for r in unseen.rounds], rtol=0, atol=0)
    assert_close(seen.clients, unseen.clients, rtol=0, atol=0)


def test_views_are_there_as_declared(any_lab: Lab, backend_name: str) -> None:
    method, model = any_lab.method, any_lab.method.setup.model
    server, clients = any_lab.server(), any_lab.clients()
    download, data = any_lab.received(server, 0, 0), any_lab.federation.clients[0]
    extra = method.extra_views(clients[0], download, data, any_lab.key)
    private = model.buffer_policy == "private" and bool(model.init_params()["buffers"])
    for result in any_lab.history(backend_name).rounds:
        assert set(result.views) == {"pre", "post", "global", *extra}
        assert result.views[method.primary_view] is not None
        assert (result.views["global"] is None) == (method.global_params(result.server) is None or private)
        participants = tuple(report.client for report in result.reports)
        for name, view in result.views.items():
            if view is not None:
                assert view.clients == (participants if name == "post" else any_lab.everyone)
                assert list(view.tests) == ["balanced", "own"]
                for statistics in view.tests.values():
                    hits, labels, answers = statistics["tally"].unbind(1)
                    assert hits.shape == (len(view.clients), method.setup.num_classes)
                    assert bool(((hits >= 0) & (hits <= labels) & (answers >= 0)).all())


# -------------------- what crosses


def test_the_ledger_is_the_size_of_the_messages(lab: Lab, backend_name: str) -> None:
    server, method = lab.server(), lab.method
    for t, result in enumerate(lab.history(backend_name).rounds):
        wire = method.wire(t)
        for report in result.reports:
            down = select(method.download(server, torch.tensor(report.client)), wire.down)
            assert sum(report.down.values()) == num_bytes(down)
            assert set(report.down) <= wire.down | {"bookkeeping"}
            assert set(report.up) <= wire.up | {"bookkeeping"}
            # The size of a message depends on the round, not on who trained before.
            assert sum(report.up.values()) == num_bytes(lab.steps[t].trained[report.client].upload)
        server = result.server


class CifarCNN(nn.Sequential):
    """Spec 3.1: three convolutions and a layer of 128 features."""

    def __init__(self) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, (into, out, kernel, padding) in enumerate(((3, 16, 5, 0), (16, 32, 5, 1), (32, 64, 3, 1))):
            layers[f"conv{number}"] = nn.Conv2d(into, out, kernel, padding=padding)
            layers[f"act{number}"] = nn.LeakyReLU()
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers["flatten"] = nn.Flatten()
        layers["fc"] = nn.Linear(576, 128)
        layers["act"] = nn.LeakyReLU()
        layers["head"] = nn.Linear(128, 10)
        super().__init__(layers)


EXTRACTOR, CLASSIFIER, PROTOTYPES = 106_400, 1_290, 1_280
MODEL = EXTRACTOR + CLASSIFIER
LEDGER = {
    "local": (0, 0),
    "ditto": (MODEL, MODEL),
    "fedavg": (MODEL, MODEL),
    "fedbabu": (EXTRACTOR, EXTRACTOR),
    "fedfa": (MODEL + PROTOTYPES, MODEL + PROTOTYPES),
    "fedmate": (MODEL + PROTOTYPES, MODEL + PROTOTYPES),
    "fedpac": (MODEL + PROTOTYPES, MODEL + 2 * PROTOTYPES + 1),
    "fedper": (EXTRACTOR, EXTRACTOR),
    "fedproto": (PROTOTYPES, PROTOTYPES),
    "fedprox": (MODEL, MODEL),
    "fedrep": (EXTRACTOR, EXTRACTOR),
    "fedrod": (MODEL, MODEL),
    "lg_fedavg": (CLASSIFIER, CLASSIFIER),
    "moon": (MODEL, MODEL),
    "scaffold": (2 * MODEL, 2 * MODEL),
}
"""Spec 1.1: float32 numbers that cross per client and round, down and up, bookkeeping apart."""


@pytest.mark.parametrize("name", LEDGER)
def test_the_ledger_equals_the_specification(name: str, backend_name: str) -> None:
    model = Model(CifarCNN(), classifier="head")
    assert model.num_parameters == MODEL
    assert sum(p.numel() for p in model.init_params()["extractor"].values()) == EXTRACTOR
    data = client_data(torch.zeros(2, 3, 32, 32), torch.tensor([3, 8]))
    federation = Federation((data, data), test=data, num_classes=10)
    method = METHODS[name](setup=Setup(model, 10, 1, Training(epochs=1)))
    key = make_key(0)
    backend = BACKENDS[backend_name](method, federation, key)
    server = method.init_server(model.init_params(), 2, key)
    for report in backend.run_round(server, Round(0, (0, 1), evaluate=False)).reports:
        for crossed, numbers in zip((report.down, report.up), LEDGER[name], strict=True):
            assert sum(size for item, size in crossed.items() if item != "bookkeeping") == 4 * numbers


# -------------------- awkward clients


def test_awkward_clients_leave_everything_finite(any_lab: Lab, backend_name: str) -> None:
    history = any_lab.history(backend_name)
    for result in history.rounds:
        assert all_finite(result.server)
        assert all_finite(result.diagnostics)
        for report in result.reports:
            assert report.valid
            assert torch.isfinite(torch.tensor([report.loss_before, report.loss_after])).all()
        assert all(all_finite(view.tests) for view in result.views.values() if view is not None)
    for client in history.clients:
        assert all_finite(client)


def test_a_round_goes_on_without_a_client_that_diverges(plain_lab: Lab, backend_name: str) -> None:
    data = plain_lab.federation.clients[0]
    broken = plain_lab.with_client(
        0, data._replace(source=data.source._replace(samples=data.source.samples * torch.nan))
    )
    backend, control = broken.backend(backend_name), broken.backend(backend_name)
    before = broken.clients()[0]
    result = backend.run_round(broken.server(), Round(0, (0, 1, 3), evaluate=True))
    expected = control.run_round(broken.server(), Round(0, (1, 3), evaluate=True))
    assert [report.valid for report in result.reports] == [False, True, True]
    assert_close(backend.clients[0], before, rtol=0, atol=0)
    assert_close(result.server, expected.server, rtol=0, atol=1e-9)
    assert_close([backend.clients[i] for i in (1, 3)], [control.clients[i] for i in (1, 3)], rtol=0, atol=1e-9)


def test_a_round_without_anybody_valid_changes_nothing(plain_lab: Lab, backend_name: str) -> None:
    data = plain_lab.federation.clients[0]
    broken = plain_lab.with_client(
        0, data._replace(source=data.source._replace(samples=data.source.samples * torch.nan))
    )
    server = broken.server()
    result = broken.backend(backend_name).run_round(server, Round(0, (0,), evaluate=True))
    assert_close(lasting(result.server), lasting(server), rtol=0, atol=0)


def lasting(server: Tree) -> Tree:
    """Leave out what a round may change although nobody took part in it."""
    return {part: value for part, value in server.items() if part not in ("round", "diagnostics")}
