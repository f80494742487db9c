"""FedMate+ is a preset of FedMate with a name; with its additions off it is FedMate."""

from __future__ import annotations

import torch
from tests.methods.test_fedmate import FEDERATION, make
from torch.testing import assert_close

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import Method, Tree, make_key
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.methods import METHODS
from fedmate.methods.fedmate import FedMate

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


def plus(**options: object) -> Method:
    return METHODS["fedmate_plus"](setup=make().setup, **options)


def test_with_its_additions_off_it_is_fedmate_to_the_last_bit() -> None:
    assert_close(rounds(plus(**OFF)), rounds(make()), rtol=0, atol=0)


def test_each_addition_matters() -> None:
    everything = rounds(plus(cft="all"))
    for name, value in OFF.items():
        found = rounds(plus(cft="all", **{name: value}))
        assert not torch.allclose(found["classifier"]["weight"], everything["classifier"]["weight"], rtol=0, atol=1e-6)


def test_it_differs_from_fedmate_in_the_preset_alone() -> None:
    preset = FedMate.presets["plus"]["method"]
    ours, theirs = plus(), FedMate(setup=make().setup)
    differing = {name: value for name, value in vars(ours).items() if value != getattr(theirs, name)}
    assert {name: value for name, value in differing.items() if name != "setup"} == preset
    assert preset.keys() == OFF.keys()


def test_a_name_and_a_preset_are_one_method() -> None:
    named, chosen = (
        resolve([ConfigSource("test", {"method": method})]).method
        for method in ({"name": "fedmate_plus"}, {"name": "fedmate", "preset": "plus"})
    )
    assert (named.name, chosen.name) == ("fedmate_plus", "fedmate")
    assert named.options == chosen.options
