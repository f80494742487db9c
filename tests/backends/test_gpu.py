"""What only a GPU shows: captured rounds, fused networks, the way out of both."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise

import pytest
import torch
from torch.testing import assert_close

from fedmate.backends import vectorised
from fedmate.backends.base import Round, RoundResult
from fedmate.backends.capture import GraphTape
from fedmate.backends.vectorised import Vectorised
from fedmate.core import (
    Augmentation,
    ClientData,
    Federation,
    LocalResult,
    Method,
    Model,
    Server,
    Setup,
    Source,
    Training,
    Tree,
    make_key,
    rows_of,
)
from fedmate.methods import METHODS
from fedmate.methods.fedavg import FedAvg
from fedmate.models import MODELS
from fedmate.server import AGGREGATORS, SERVER_OPTIMISERS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CLIENTS, CLASSES = 4, 10


@pytest.fixture
def federation() -> Federation:
    """A few images of bytes for each of some unequal clients."""
    torch.manual_seed(0)
    images = torch.randint(256, (300, 3, 32, 32), dtype=torch.uint8, device="cuda")
    mean, std = (torch.full((3, 1, 1), value, device="cuda") for value in (120.0, 60.0))
    source = Source(images, mean, std, Augmentation(crop=4, flip=True))
    labels = torch.randint(CLASSES, (300,), device="cuda")
    starts = (0, 60, 100, 170, 230)
    rows = [torch.arange(a, b, device="cuda") for a, b in pairwise(starts)]
    test = torch.arange(230, 300, device="cuda")
    return Federation(tuple(rows_of(source, r, labels[r]) for r in rows), rows_of(source, test, labels[test]), CLASSES)


PLAIN = Training(batch_size=25, epochs=1)


def make(cls: type[Method], frozen: int = 0, server: Server | None = None, training: Training = PLAIN) -> Method:
    """Return a method on a network whose first parameters are frozen."""
    torch.manual_seed(0)
    module = MODELS["cifar_cnn"]().build((3, 32, 32), CLASSES).cuda()
    for parameter in islice(module.parameters(), frozen):
        parameter.requires_grad_(False)
    model = Model(module, classifier="classifier")
    return cls(setup=Setup(model, CLASSES, 10, training, server=server or Server()))


def run(backend: Vectorised) -> list[RoundResult]:
    method = backend.method
    server = method.init_server(method.setup.model.init_params(), CLIENTS, make_key(0, "cuda"))
    results = []
    for t in range(6):
        results.append(backend.run_round(server, Round(t, (0, 1, 3), evaluate=t % 2 == 1)))
        server = results[-1].server
    return results


VARIED = [("fedavg", 2, "median", "adam"), ("fedmate", 4, "median", "yogi"), ("scaffold", 6, "mean", "nesterov")]


@pytest.mark.parametrize(
    ("name", "frozen", "aggregator", "optimiser"), [*((name, 0, "mean", "sgd") for name in METHODS.names()), *VARIED]
)
def test_captured_rounds_give_what_rounds_give(
    name: str, frozen: int, aggregator: str, optimiser: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Server(AGGREGATORS[aggregator](), SERVER_OPTIMISERS[optimiser]())
    check_captured(make(METHODS[name], frozen, step), federation, monkeypatch)


ADAM = Training(batch_size=25, steps=4, optimiser="adam", learning_rate=1e-3, epsilon=1e-3, schedule="cosine")
LOCAL = {
    "fedavg": ADAM,
    "fedfa": replace(ADAM, steps=0, epochs=0.5, optimiser="adamw", schedule="poly"),
    "fedmate": replace(ADAM, gradient_clip=0.1),
    "scaffold": Training(batch_size=25, steps=5, schedule="step", schedule_step=1, gradient_clip=0.1),
}


@pytest.mark.parametrize("name", LOCAL)
def test_captured_rounds_follow_the_schedule(
    name: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_captured(make(METHODS[name], training=LOCAL[name]), federation, monkeypatch)


def check_captured(method: Method, federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Vectorised(method, federation, make_key(0, "cuda"), precision="tf32")
    monkeypatch.setattr(vectorised, "tape_for", lambda device: None)
    eager = Vectorised(method, federation, make_key(0, "cuda"), precision="tf32")
    replays: list[None] = []
    play = GraphTape.play
    monkeypatch.setattr(GraphTape, "play", lambda tape: replays.append(play(tape)))
    assert_close(run(captured), run(eager), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert len(replays) == 4
    assert captured.warnings == []


def test_what_cannot_be_captured_runs_and_is_said(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(Vectorised(make(FedAvg), federation, make_key(0, "cuda"), precision="tf32"))
    update = FedAvg.local_update

    def read_back(self: FedAvg, client: Tree, download: Tree, data: ClientData, key: torch.Tensor) -> LocalResult:
        torch.zeros((), device="cuda").item()
        return update(self, client, download, data, key)

    monkeypatch.setattr(FedAvg, "local_update", read_back)
    reading = Vectorised(make(FedAvg), federation, make_key(0, "cuda"), precision="tf32")
    assert_close(run(reading)[-1].server, expected[-1].server, rtol=1e-5, atol=1e-6)
    assert len(reading.warnings) == 1
    assert "cannot be captured" in reading.warnings[0]


@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 2e-2), ("bf16", 5e-2)])
def test_roundings_and_fused_kernels_stay_close_to_strict(
    precision: str, tolerance: float, federation: Federation
) -> None:
    ends = [
        run(Vectorised(make(FedAvg), federation, make_key(0, "cuda"), precision=p))[1].server["extractor"]  # type: ignore[arg-type]
        for p in ("strict", precision)
    ]
    for name, exact in ends[0].items():
        assert (ends[1][name] - exact).norm() / exact.norm() < tolerance
