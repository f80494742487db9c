"""BatchNorm's statistics go where the model declares: with the extractor, nowhere, or they do not exist."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from tests.methods.small import CLIENTS, TRAINING, normed_model, run

from fedmate.core import BufferPolicy, Setup
from fedmate.methods import METHODS

SHARING = (
    "ditto",
    "fedavg",
    "fedbabu",
    "fedfa",
    "fedpac",
    "fedper",
    "fedprox",
    "fedrep",
    "moon",
    "scaffold",
)
"""Methods that share an extractor in every round."""


@pytest.mark.parametrize("buffers", get_args(BufferPolicy))
@pytest.mark.parametrize("name", SHARING)
def test_buffers_follow_the_declaration(name: str, buffers: BufferPolicy) -> None:
    model = normed_model(buffers)
    _, results = run(METHODS[name](setup=Setup(model, 3, 2, TRAINING)), CLIENTS, 1, everybody=True)
    report, (start, server) = results[0].reports[0], (model.init_params()["buffers"], results[0].server["buffers"])
    assert ("buffers" in report.up) == ("buffers" in report.down) == (buffers == "shared")
    assert bool(start) == (buffers != "dropped")
    moved = any(not torch.equal(server[buffer], start[buffer]) for buffer in start)
    assert moved == (buffers == "shared")


@pytest.mark.parametrize("buffers", ["shared", "private"])
def test_statistics_are_averaged_by_size_or_stay(buffers: BufferPolicy) -> None:
    model = normed_model(buffers)
    backend, results = run(METHODS["fedavg"](setup=Setup(model, 3, 2, TRAINING)), CLIENTS, 1, everybody=True)
    means = [client["buffers"]["1.running_mean"] for client in backend.clients]
    assert not torch.equal(means[0], means[1])
    average = sum(n / 11 * mean for n, mean in zip((5, 2, 4), means, strict=True))
    same = torch.allclose(results[0].server["buffers"]["1.running_mean"], torch.as_tensor(average), rtol=0, atol=1e-12)
    assert same == (buffers == "shared")
