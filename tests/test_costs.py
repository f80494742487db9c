"""What a method shares, keeps and costs is what it does."""

from __future__ import annotations

from collections import Counter
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
    option,
)
from fedmate.costs import CLASSES, INPUT, ROUNDS, costs_of
from fedmate.methods import METHODS
from fedmate.models import MODELS

LINES = {
    "local": "shares nothing; keeps extractor, classifier; 0 numbers down, 0 up",
    "fedavg": "shares extractor, classifier; keeps nothing; 107,690 numbers down, 107,690 up",
    "fedper": "shares extractor; keeps classifier; 106,400 numbers down, 106,400 up",
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


# -------------------- methods made to be told apart


@dataclass(frozen=True, kw_only=True)
class Toy(Method):
    """Shares a vector; a client keeps what its subclasses say."""

    parts: int = option(10, "length of the vector")

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        return {"vector": torch.zeros(self.parts), "round": torch.zeros((), dtype=torch.int64)}

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        return {"vector": torch.zeros(self.parts)}

    def wire(self, round_number: int) -> Wire:
        return Wire(down=frozenset({"vector", "round"}), up=frozenset({"vector", "num_samples"}))

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        return server

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        size = torch.zeros((), dtype=torch.int64)
        return LocalResult({"vector": download["vector"]}, {**download, "num_samples": size}, {}, diagnostics={})

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor) -> Tree:
        return server

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        return {"classifier": download.get("vector", client["vector"])}

    def global_params(self, server: Tree) -> Tree | None:
        return None


def test_what_a_download_replaces_is_not_kept_and_bookkeeping_is_not_counted() -> None:
    assert costs_of(Toy).describe() == "shares vector; keeps nothing; 10 numbers down, 10 up"


class Guarding(Toy):
    """Receives a vector, and uses its own."""

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        return {"classifier": client["vector"]}


class Remembering(Toy):
    """Has a use for its own vector, although its model is the received one."""

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        result = super().local_update(client, download, data, key)
        return result._replace(upload={**result.upload, "vector": download["vector"] - client["vector"]})


class Collecting(Toy):
    """Keeps things of its own: numbers, a counter, a flag and nothing at all."""

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        flags = {"count": torch.zeros((), dtype=torch.int64), "has_memory": torch.zeros(3, dtype=torch.bool)}
        return {"memory": {"deep": torch.zeros(4)}, "empty": {}, **flags}

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        return {}


@pytest.mark.parametrize(("cls", "keeps"), [(Guarding, "vector"), (Remembering, "vector"), (Collecting, "memory")])
def test_what_matters_although_a_download_comes_is_kept(cls: type[Method], keeps: str) -> None:
    assert costs_of(cls).describe() == f"shares vector; keeps {keeps}; 10 numbers down, 10 up"


class OneWay(Toy):
    """Sends one thing down, another up, and an empty part."""

    def wire(self, round_number: int) -> Wire:
        return Wire(down=frozenset({"vector"}), up=frozenset({"answer", "buffers"}))

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        upload = {"answer": torch.zeros(5, dtype=torch.bool), "secret": torch.zeros(99), "buffers": {}}
        return super().local_update(client, download, data, key)._replace(upload=upload)


def test_a_part_that_crosses_one_way_says_which_and_smaller_types_count_as_less() -> None:
    assert costs_of(OneWay).describe() == "shares vector (down), answer (up); keeps nothing; 10 numbers down, 2 up"


class Sparing(Toy):
    """Sends the vector down except in every fourth round."""

    def wire(self, round_number: int) -> Wire:
        return super().wire(round_number)._replace(down=frozenset({"vector"} if (round_number + 1) % 4 else ()))

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        return LocalResult({**client, **download}, {"vector": torch.zeros(10)}, {}, diagnostics={})


class Wavering(Sparing):
    """Sends more and more things up, in turn."""

    def wire(self, round_number: int) -> Wire:
        up = frozenset(("vector", "more", "most")[: round_number % 4])
        return Wire(down=frozenset({"vector"}), up=up)

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        upload = {"vector": torch.zeros(10), "more": torch.zeros(100), "most": torch.zeros(1000)}
        return LocalResult(download, upload, {}, diagnostics={})


def test_rounds_that_differ_are_told() -> None:
    assert costs_of(Sparing).describe() == (
        "shares vector; keeps vector (in 50 of 200 rounds); 10 numbers down, 10 up (down 0 in 50 of 200 rounds)"
    )
    wavering = costs_of(Wavering)
    assert wavering.up == Counter({0: 50, 10: 50, 110: 50, 1110: 50})
    assert wavering.describe().endswith("10 numbers down, 0 up (up 308 on average)")
