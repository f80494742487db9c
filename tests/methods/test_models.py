"""BatchNorm's statistics go where the model declares; models that a method cannot use are refused."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from tests.methods.small import EVERYBODY, TRAINING, normed, run
from torch import nn

from fedmate.core import BufferPolicy, Model, Setup
from fedmate.errors import UserError
from fedmate.methods import METHODS

SHARING = ("ditto", "fedavg", "fedbabu", "fedfa", "fedpac", "fedper", "fedprox", "fedrep", "moon", "scaffold")
"""Methods that share an extractor in every round."""


@pytest.mark.parametrize("buffers", get_args(BufferPolicy))
@pytest.mark.parametrize("name", SHARING)
def test_buffers_follow_the_declaration(name: str, buffers: BufferPolicy) -> None:
    method = METHODS[name](setup=normed(buffers))
    _, results = run(method, cohorts=EVERYBODY[:1])
    report, server = results[0].reports[0], results[0].server["buffers"]
    start = method.setup.model.init_params()["buffers"]
    assert ("buffers" in report.up) == ("buffers" in report.down) == (buffers == "shared")
    assert bool(start) == (buffers != "dropped")
    assert any(not torch.equal(server[name], start[name]) for name in start) == (buffers == "shared")


DEEP = nn.Sequential(nn.Linear(8, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)))
ZEROS = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 3))
nn.init.zeros_(ZEROS.get_parameter("1.weight"))


@pytest.mark.parametrize(
    ("name", "module", "phrase"),
    [
        *((name, DEEP, "`classifier` must be a single linear layer") for name in ("fedfa", "fedpac", "fedrod")),
        ("fedbabu", ZEROS, "`model` starts with a classifier of zeros"),
    ],
)
def test_models_that_a_method_cannot_use_are_refused(name: str, module: nn.Module, phrase: str) -> None:
    model = Model(module, classifier="1")
    with pytest.raises(UserError, match=phrase):
        METHODS[name](setup=Setup(model, 3, 1, TRAINING)).prepare(model)
