"""What a method shares, keeps and costs is what it does."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    ClientData,
    Federation,
    LocalResult,
    Method,
    Model,
    Setup,
    Training,
    Tree,
    Wire,
    client_data,
    make_key,
)
from fedmate.costs import CLASSES, INPUT, ROUNDS, costs_of
from fedmate.methods import METHODS
from fedmate.models import MODELS

LINES = {
    "local": "shares nothing; keeps extractor, classifier; 0 numbers down, 0 up",
    "fedrep": "shares extractor; keeps classifier; 106,400 numbers down, 106,400 up",
    "fedmate": (
        "shares extractor, classifier, prototypes; keeps classifier, discriminators, extractor (in 2 of 200 rounds); "
        "108,970 numbers down, 108,970 up (each 2,570 in 2 of 200 rounds)"
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_method_is_described_in_a_line(name: str) -> None:
    assert costs_of(METHODS[name]).describe() == LINES[name]


@pytest.mark.parametrize("name", METHODS.names())
def test_the_numbers_are_those_of_a_round_that_is_run(name: str) -> None:
    architecture = MODELS["cifar_cnn"]()
    with torch.random.fork_rng():
        model = Model(architecture.build(INPUT, CLASSES), classifier=architecture.classifier)
    method = METHODS[name](setup=Setup(model, CLASSES, ROUNDS, Training(epochs=1)))
    data = client_data(torch.zeros(2, *INPUT), torch.tensor([3, 8]))
    backend = Sequential(method, Federation((data,), test=data, num_classes=CLASSES), make_key(0))
    server = method.init_server(method.setup.model.init_params(), 1, make_key(0))
    (report,) = backend.run_round(server, Round(0, (0,), evaluate=False)).reports
    told, ran = costs_of(METHODS[name]), (report.down, report.up)
    for counts, crossed, way in zip((told.down, told.up), ran, ("down", "up"), strict=True):
        numbers = {item: size / 4 for item, size in crossed.items() if item != "bookkeeping"}
        assert counts[int(sum(numbers.values()))] > 0
        assert {part for part, ways in told.shares.items() if way in ways} >= set(numbers)


@dataclass(frozen=True, kw_only=True)
class Toy(Method):
    """Receives a vector in three rounds of four, keeps its own, and sends a smaller thing up."""

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        return {"vector": torch.zeros(10), "round": torch.zeros((), dtype=torch.int64)}

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        return {"vector": torch.zeros(10), "memory": torch.zeros(4), "count": torch.zeros((), dtype=torch.int64)}

    def wire(self, round_number: int) -> Wire:
        down = frozenset({"vector", "round"} if (round_number + 1) % 4 else ())
        return Wire(down=down, up=frozenset({"answer", "buffers", "num_samples"}))

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        return server

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        upload = {"answer": torch.zeros(5, dtype=torch.bool), "secret": torch.zeros(99), "buffers": {}}
        return LocalResult(client, {**upload, "num_samples": torch.zeros((), dtype=torch.int64)}, {}, diagnostics={})

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor) -> Tree:
        return server

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        return {"classifier": download.get("vector", client["vector"])}

    def global_params(self, server: Tree) -> Tree | None:
        return None


def test_directions_private_parts_and_odd_rounds_are_described() -> None:
    assert costs_of(Toy).describe() == (
        "shares vector (down), answer (up); keeps vector, memory; 10 numbers down, 2 up (down 0 in 50 of 200 rounds)"
    )
