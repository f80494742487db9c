"""Server momentum: moves by hand, what stays where it is, and who has it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedmate.components.server_momentum import ServerMomentum
from fedmate.core import Model, Setup, Training, Tree, stack
from fedmate.methods import METHODS

MOVING = [name for name in METHODS.names() if issubclass(METHODS[name], ServerMomentum)]
EVERYBODY = torch.tensor([True, True])


def method(name: str, beta: float) -> ServerMomentum:
    """Return a method on a network of a few numbers, two of them statistics of BatchNorm."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1), nn.Linear(1, 2)).double()
    found = METHODS[name](setup=Setup(Model(layers, classifier="2"), 2, 3, Training()), server_momentum=beta)  # type: ignore[call-arg]
    assert isinstance(found, ServerMomentum)
    return found


def message(params: Tree, number: float, size: int) -> Tree:
    """Return what a client sends whose model is this number throughout."""
    parts = {part: {name: torch.full_like(leaf, number) for name, leaf in params[part].items()} for part in params}
    return {**parts, "num_samples": torch.tensor(size)}


def start(name: str, beta: float) -> tuple[ServerMomentum, Tree, Tree]:
    """Return a method, the model everybody begins with, and the part of the server's state that it is about."""
    found = method(name, beta)
    params = found.setup.model.init_params()
    return found, params, {**params, **found.at_rest(params)}


@pytest.mark.parametrize("name", MOVING)
def test_three_rounds_by_hand(name: str) -> None:
    """v <- 0.75 v + (mean - w), w <- w + v, for what moves; the mean itself for all else."""
    found, params, server = start(name, 0.75)
    w, v = params["extractor"]["0.bias"].item(), 0.0
    for numbers, sizes in (((1.0, 4.0), (2, 1)), ((-1.0, 2.0), (1, 3)), ((0.0, 0.0), (1, 1))):
        sent = stack([message(params, *one) for one in zip(numbers, sizes, strict=True)])
        server = found.mix(server, sent, EVERYBODY)
        mean = (numbers[0] * sizes[0] + numbers[1] * sizes[1]) / sum(sizes)
        v = 0.75 * v + (mean - w)
        w += v
        assert server["extractor"]["0.bias"].item() == pytest.approx(w, abs=1e-12)
        assert server["buffers"]["1.running_var"].item() == pytest.approx(mean, abs=1e-12)
        if name != "fedavg":
            assert server["classifier"]["bias"].tolist() == pytest.approx([mean, mean], abs=1e-12)


def test_a_part_that_did_not_cross_stays_and_keeps_its_velocity() -> None:
    found, params, server = start("fedavg", 0.5)
    first = stack([message(params, 1.0, 1), message(params, 3.0, 1)])
    server = found.mix(server, first, EVERYBODY)
    without = {part: content for part, content in first.items() if part != "extractor"}
    after = found.mix(server, without, EVERYBODY)
    for now, before in ((after, server), (after["velocity"], server["velocity"])):
        assert_close(now["extractor"], before["extractor"], rtol=0, atol=0)
        assert not torch.equal(now["classifier"]["bias"], before["classifier"]["bias"])
