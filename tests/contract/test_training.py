"""Every method with another local training than its own: back ends agree, and replayed rounds follow the schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.backends.tape import OperationTape
from tests.contract.conftest import METHOD_NAMES
from torch.testing import assert_close

from fedmate.backends import vectorised
from fedmate.backends.base import Round, RoundResult
from fedmate.backends.vectorised import Vectorised
from fedmate.core import Training

if TYPE_CHECKING:
    from tests.contract.conftest import Lab, MakeLab

TRAININGS = (
    Training(batch_size=3, steps=4, optimiser="adam", learning_rate=0.01, gradient_clip=0.5, schedule="cosine"),
    Training(batch_size=3, epochs=1.4, optimiser="adamw", learning_rate=0.01, schedule="step", schedule_step=1),
    Training(batch_size=4, steps=3, learning_rate=0.1, gradient_clip=0.5, schedule="poly", schedule_end=0.1),
)
"""Between them they have every optimiser, every schedule, and every length of a round."""


@pytest.fixture(params=METHOD_NAMES)
def trained_lab(request: pytest.FixtureRequest, make_lab: MakeLab) -> Lab:
    """A method with one of them, in a run of some rounds."""
    lab = make_lab(request.param, "shared", TRAININGS[METHOD_NAMES.index(request.param) % len(TRAININGS)])
    return replace(lab, method=replace(lab.method, setup=replace(lab.method.setup, rounds=8)))


def test_back_ends_agree(trained_lab: Lab) -> None:
    expected, found = trained_lab.expected, trained_lab.history("vectorised")
    assert_close(found.rounds, expected.rounds, rtol=0, atol=1e-9, equal_nan=True)
    assert_close(found.clients, expected.clients, rtol=0, atol=1e-9)


def test_a_replayed_round_has_the_rate_of_its_own(trained_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = trained_lab

    def run(times: int) -> list[RoundResult]:
        backend, server, results = Vectorised(lab.method, lab.federation, lab.key), lab.server(), []
        for t in range(times):
            results.append(backend.run_round(server, Round(t, (0, 1, 3), evaluate=False)))
            server = results[-1].server
        assert not backend.warnings
        return results

    expected = run(6)
    monkeypatch.setattr(vectorised, "tape_for", lambda device: OperationTape)
    assert_close(run(6), expected, rtol=0, atol=0, equal_nan=True)
