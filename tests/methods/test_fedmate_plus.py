"""FedMate+ is FedMate with other defaults, and with its additions off it is FedMate."""

from __future__ import annotations

import torch
from tests.methods.test_fedmate import FEDERATION, make
from torch.testing import assert_close

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import Method, Tree, make_key
from fedmate.methods import METHODS
from fedmate.methods.fedmate import FedMate
from fedmate.methods.fedmate_plus import FedMatePlus

OFF = {"calibration": 0.0, "classifier_start": "own", "classifier_learning_rate": 0.1, "server_momentum": 0.0}
"""The paper's method."""


def rounds(method: Method) -> Tree:
    """Return the server after three rounds."""
    backend = Sequential(method, FEDERATION, make_key(4))
    server = method.init_server(method.setup.model.init_params(), len(FEDERATION.clients), make_key(0))
    for t in range(3):
        task = Round(t, tuple(range(len(FEDERATION.clients))), evaluate=False)
        server = backend.run_round(server, task).server
    return server


def plus(**options: object) -> FedMatePlus:
    return FedMatePlus(setup=make().setup, **options)  # type: ignore[arg-type]


def test_with_its_additions_off_it_is_fedmate_to_the_last_bit() -> None:
    assert_close(rounds(plus(**OFF)), rounds(make()), rtol=0, atol=0)


def test_each_addition_matters() -> None:
    everything = rounds(plus(cft="all"))
    for name, value in OFF.items():
        found = rounds(plus(cft="all", **{name: value}))
        assert not torch.allclose(found["classifier"]["weight"], everything["classifier"]["weight"], rtol=0, atol=1e-6)


def test_it_sends_what_fedmate_sends() -> None:
    for t in range(30):
        assert plus().wire(t) == make().wire(t)


def test_it_differs_from_fedmate_in_its_defaults_alone() -> None:
    assert METHODS["fedmate_plus"] is FedMatePlus
    assert FedMatePlus.__mro__[1] is FedMate
    differing = {name: value for name, value in vars(plus()).items() if value != getattr(make(), name)}
    assert differing.keys() - {"setup"} == OFF.keys()
