"""Every method on a network of which parts are frozen: on every back end, and never sent, stored or stacked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from tests.contract.conftest import IN_PROCESS, METHOD_NAMES
from torch import nn
from torch.testing import assert_close

from fedmate.core import Model, flatten

if TYPE_CHECKING:
    from tests.contract.conftest import Lab, MakeLab


def network(layers: int) -> Model:
    """Return a network whose first layers are frozen, the first of which a processor fuses with the next two."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        block = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(2), nn.Flatten()]
        module = nn.Sequential(*block, nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4)).double()
    module[:layers].requires_grad_(False)
    return Model(module, classifier="7")


@pytest.fixture(params=[(name, (1, 4, 7)[i % 3]) for i, name in enumerate(METHOD_NAMES)], ids=lambda pair: str(pair[0]))
def frozen_lab(request: pytest.FixtureRequest, make_lab: MakeLab) -> Lab:
    """A method on such a network; its whole extractor is frozen for some."""
    name, layers = request.param
    lab = make_lab(name, "plain")
    setup = replace(lab.method.setup, model=network(layers))
    method = replace(lab.method, setup=setup)
    return replace(lab, method=replace(method, setup=replace(setup, model=method.prepare(setup.model))))


def test_back_ends_agree_and_what_is_frozen_is_in_no_state(frozen_lab: Lab) -> None:
    model = frozen_lab.method.setup.model
    before = {name: tensor.clone() for name, tensor in model.frozen["frozen"].items()}
    expected, *others = (frozen_lab.run(frozen_lab.backend(name)) for name in IN_PROCESS)
    for other in others:
        assert_close(other.state(), expected.state(), rtol=0, atol=1e-9)
    assert_close(model.frozen["frozen"], before, rtol=0, atol=0)
    names = {path.rpartition("/")[2] for path in flatten(expected.state())}
    assert not names & set(before)
