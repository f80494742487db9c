"""Every method's rounds, recorded and replayed, give what they give operation by operation."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from tests.backends.tape import OperationTape
from torch.testing import assert_close

from fedmate.backends import vectorised
from fedmate.backends.base import Round, RoundResult
from fedmate.backends.vectorised import Vectorised
from fedmate.core import Training, Tree

if TYPE_CHECKING:
    from tests.contract.conftest import Lab, MakeLab

COHORTS = ((0, 1, 3), (1, 2, 4), (0, 2, 3), (0, 1, 4), (2, 3), (0, 1, 2), (2, 4), (1, 3, 4), (0, 4))
"""Who takes part, by round; three or two of them, so that structures come back in turn."""

EVALUATED = (False, True, False, True, True, False, True, True, False)


def run(lab: Lab) -> tuple[list[RoundResult], list[Tree]]:
    backend, server = Vectorised(lab.method, lab.federation, lab.key), lab.server()
    results = []
    for t, participants in enumerate(COHORTS):
        results.append(backend.run_round(server, Round(t, participants, evaluate=EVALUATED[t])))
        server = results[-1].server
    assert not backend.warnings
    return results, list(backend.clients)


def test_replayed_rounds_change_nothing(buffered_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = buffered_lab.with_few_steps()
    expected = run(lab)
    played = []
    monkeypatch.setattr(vectorised, "tape_for", lambda device: OperationTape)
    monkeypatch.setattr(OperationTape, "play", lambda tape, play=OperationTape.play: played.append(play(tape)))
    found = run(lab)
    assert played, "no structure came back"
    assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_a_replayed_round_has_the_learning_rate_of_its_number(
    make_lab: MakeLab, method_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(batch_size=4, steps=1, learning_rate=0.1, schedule="cosine")
    lab = make_lab(method_name, "plain", training)
    lab = dataclasses.replace(
        lab, method=dataclasses.replace(lab.method, setup=dataclasses.replace(lab.method.setup, rounds=8))
    )
    ends = []
    for tape in (None, OperationTape):
        monkeypatch.setattr(vectorised, "tape_for", lambda device, tape=tape: tape)
        backend, server = Vectorised(lab.method, lab.federation, lab.key), lab.server()
        for t in range(6):
            server = backend.run_round(server, Round(t, (0, 1, 3), evaluate=False)).server
        ends.append([server, *backend.clients])
    assert_close(ends[1], ends[0], rtol=0, atol=0, equal_nan=True)


def test_newcomers_of_replayed_rounds_draw_anew(telling_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = telling_lab.with_few_steps()
    clients = lab.federation.clients
    lab = dataclasses.replace(lab, federation=lab.federation._replace(held_out_clients=clients[3:5]))
    ends = []
    for tape in (None, OperationTape):
        monkeypatch.setattr(vectorised, "tape_for", lambda device, tape=tape: tape)
        backend, server, met = Vectorised(lab.method, lab.federation, lab.key), lab.server(), []
        for t in (1, 3, 5):
            result = backend.run_round(server, Round(t, lab.everyone, evaluate=True))
            server = result.server
            met.append(result.held_out_clients)
        ends.append(met)
    assert_close(ends[1], ends[0], rtol=0, atol=0, equal_nan=True)


def test_what_a_round_returned_outlives_later_rounds(telling_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorised, "tape_for", lambda device: OperationTape)
    lab = telling_lab.with_few_steps()
    backend, server = Vectorised(lab.method, lab.federation, lab.key), lab.server()
    kept: list[tuple[Tree, object]] = []
    for t in range(5):
        server = backend.run_round(server, Round(t, lab.everyone, evaluate=False)).server
        states = {"server": server, "clients": dict(enumerate(backend.clients))}
        kept.append((states, str(states)))
    assert all(str(states) == text for states, text in kept)


def test_a_round_that_breaks_off_leaves_nothing_behind(telling_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = telling_lab.with_few_steps()
    backend = Vectorised(lab.method, lab.federation, lab.key)
    before = str(list(backend.clients))

    def stop(*args: object) -> Tree:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(lab.method), "aggregate", stop)
    with pytest.raises(KeyboardInterrupt):
        backend.run_round(lab.server(), Round(0, lab.everyone, evaluate=False))
    assert str(list(backend.clients)) == before
