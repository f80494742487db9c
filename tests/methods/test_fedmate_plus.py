"""FedMate+ is a preset of FedMate with a name; with its additions off it is FedMate."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.methods.small import normed, run
from torch.testing import assert_close

from fedmate.core import ObjectiveOptions, Server, Tree
from fedmate.core.server import ServerSGD
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.methods import METHODS
from fedmate.methods.fedmate import FedMate

OFF = {"classifier_start": "own", "classifier_learning_rate": 0.1}
"""The paper's method."""


def end(calibration: float = 1.0, momentum: float = 0.5, **options: object) -> Tree:
    """Return the server after three rounds."""
    objective, server = ObjectiveOptions(calibration=calibration), Server(optimiser=ServerSGD(momentum=momentum))
    setup = replace(normed(), objective=objective, server=server)
    method = METHODS["fedmate_plus"](setup=setup, **{"cft": "all", **options})
    return run(method, evaluate=False)[1][-1].server


def test_with_its_additions_off_it_is_fedmate_to_the_last_bit() -> None:
    _, plain = run(FedMate(setup=normed(), cft="all"), evaluate=False)
    assert_close(end(calibration=0.0, momentum=0.0, **OFF), plain[-1].server, rtol=0, atol=0)


def test_each_addition_matters() -> None:
    everything = end()["classifier"]["weight"]
    for name, value in {"calibration": 0.0, "momentum": 0.0, **OFF}.items():
        changed = end(**{name: value})["classifier"]["weight"]  # type: ignore[arg-type]
        assert not torch.allclose(changed, everything, rtol=0, atol=1e-6)


def test_a_name_and_a_preset_are_one_method() -> None:
    named, chosen = (
        resolve([ConfigSource("test", {"method": method})])
        for method in ({"name": "fedmate_plus"}, {"name": "fedmate", "preset": "plus"})
    )
    assert (named.method.name, chosen.method.name) == ("fedmate_plus", "fedmate")
    assert named.method.options == chosen.method.options
    assert named.server == chosen.server
    assert named.server.optimiser.options["momentum"] == 0.5
    assert named.objective == chosen.objective == ObjectiveOptions(calibration=1.0)
