"""The server's step: the weights, who is left out, and moves by hand."""

from __future__ import annotations

from typing import final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from fedmate.core import Aggregator, Model, Server, ServerOptimiser, Tree, stack
from fedmate.core.server import ServerSGD
from fedmate.errors import UserError


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.floats(-100, 100), st.integers(1, 10**6), st.booleans()),
        min_size=1,
        max_size=6,
    ).filter(lambda clients: any(valid for _, _, valid in clients))
)
def test_it_is_the_weighted_average_of_numpy(clients: list[tuple[float, int, bool]]) -> None:
    """Whoever is not valid may send anything."""
    values, sizes, valid = zip(*clients, strict=True)
    sent = torch.where(torch.tensor(valid), torch.tensor(values, dtype=torch.float64), torch.nan)
    message = {
        "extractor": {"w": sent[:, None]},
        "num_samples": torch.where(torch.tensor(valid), torch.tensor(sizes), -(2**62)),
    }
    server = {"extractor": {"w": torch.zeros(1, dtype=torch.float64)}}
    answer = Server().update(server, message, torch.tensor(valid))["extractor"]["w"].item()
    expected = np.average(np.array(values)[list(valid)], weights=np.array(sizes)[list(valid)])
    assert answer == pytest.approx(float(expected), rel=1e-12, abs=1e-11)


MOMENTUM = Server(optimiser=ServerSGD(momentum=0.75))
EVERYBODY = torch.tensor([True, True])


def start() -> Tree:
    """Return a network of a few numbers, some of them statistics of BatchNorm."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1), nn.Linear(1, 2)).double()
    return Model(layers, classifier="2").init_params()


def messages(params: Tree, numbers: tuple[float, ...], sizes: tuple[int, ...]) -> Tree:
    """Return what clients send whose models are these numbers throughout."""
    return stack(
        [
            {
                **{part: {name: torch.full_like(t, number) for name, t in params[part].items()} for part in params},
                "num_samples": torch.tensor(size),
            }
            for number, size in zip(numbers, sizes, strict=True)
        ]
    )


@pytest.mark.parametrize("moving", [("extractor", "classifier"), ("extractor",)])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_three_rounds_with_momentum_by_hand(moving: tuple[str, ...], rate: float) -> None:
    """v <- 0.75 v + (mean - w), w <- w + rate v, for what moves; the mean itself for all else."""
    step = Server(optimiser=ServerSGD(momentum=0.75, learning_rate=rate))
    params = start()
    server = {**params, **step.init(params, moving)}
    w, v = params["extractor"]["0.bias"].item(), 0.0
    for numbers, sizes in (((1.0, 4.0), (2, 1)), ((-1.0, 2.0), (1, 3)), ((0.0, 0.0), (1, 1))):
        server = step.update(server, messages(params, numbers, sizes), EVERYBODY, moving=moving)
        mean = (numbers[0] * sizes[0] + numbers[1] * sizes[1]) / sum(sizes)
        v = 0.75 * v + (mean - w)
        w += rate * v
        assert server["extractor"]["0.bias"].item() == pytest.approx(w, abs=1e-12)
        assert server["buffers"]["1.running_var"].item() == pytest.approx(mean, abs=1e-12)
        if "classifier" not in moving:
            assert server["classifier"]["bias"].tolist() == pytest.approx([mean, mean], abs=1e-12)


def test_a_part_that_did_not_cross_stays_and_keeps_its_velocity() -> None:
    params = start()
    first = messages(params, (1.0, 3.0), (1, 1))
    server = MOMENTUM.update({**params, **MOMENTUM.init(params)}, first, EVERYBODY)
    after = MOMENTUM.update(server, {part: first[part] for part in first if part != "extractor"}, EVERYBODY)
    for now, before in ((after, server), (after["optimiser"], server["optimiser"])):
        assert_close(now["extractor"], before["extractor"], rtol=0, atol=0)
    assert not torch.equal(after["classifier"]["bias"], server["classifier"]["bias"])


def test_without_momentum_the_server_remembers_nothing_and_takes_the_mean_to_the_bit() -> None:
    params = start()
    assert Server().init(params) == {}
    tenth = messages(params, (0.1, 0.1), (1, 2))
    mean = Server().aggregator(tenth, tenth["num_samples"])
    found = Server().update(params, tenth, EVERYBODY)
    assert_close(found, {part: mean[part] for part in params}, rtol=0, atol=0)


@final
class Wrong(ServerOptimiser):
    def step(self, model: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        return {**mean, "bias": mean["bias"].sum()} if "bias" in mean else mean, state


@final
class Remembers(ServerOptimiser):
    def step(self, model: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        return mean, {"old": model}


@final
class Forgets(Aggregator):
    def __call__(self, uploads: Tree, weights: Tensor) -> Tree:
        return uploads


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (Server(optimiser=Wrong()), r"`Wrong` returned a model whose `bias` is \[\], not \[2\]\."),
        (Server(optimiser=Remembers()), r"`Remembers` returned a state whose `old/0.bias` is \[1\], not missing\."),
        (
            Server(aggregator=Forgets()),
            r"`Forgets` returned a model whose `buffers/1.running_mean` is \[2, 1\], not \[1\]\.",
        ),
    ],
)
def test_a_step_that_returns_other_shapes_is_named_in_one_sentence(step: Server, says: str) -> None:
    params = start()
    with pytest.raises(UserError, match=f"^{says}$"):
        step.update({**params, **step.init(params)}, messages(params, (1.0, 3.0), (1, 1)), EVERYBODY)
