"""The ledger adds up what crossed, by item and direction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmate.backends.base import ClientReport
from fedmate.core import ClientData, LocalResult, Method, Model, Setup, Training, Tree, Wire
from fedmate.experiment.communication import CommunicationCost


@dataclass(frozen=True, kw_only=True)
class Scheduled(Method):
    """Sends its extractor in odd rounds only."""

    def wire(self, round_number: int) -> Wire:
        extractor = {"extractor"} if round_number % 2 else set()
        return Wire(down=frozenset({"prototypes", "round", *extractor}), up=frozenset({"num_samples", "class_counts"}))

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        return params

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        return params

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        return server

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        return LocalResult(client, {}, client, {})

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor) -> Tree:
        return server

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        return client

    def global_params(self, server: Tree) -> Tree | None:
        return None


def make_ledger(rounds: int = 2) -> CommunicationCost:
    with torch.random.fork_rng():
        model = Model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), classifier="1")
    return CommunicationCost(Scheduled(setup=Setup(model, 2, rounds, Training())), rounds)


def report(client: int, down: dict[str, int], up: dict[str, int]) -> ClientReport:
    return ClientReport(client, True, 1.0, 0.5, down, up)


def test_a_row_has_a_column_for_every_item_of_any_round() -> None:
    row = make_ledger().add(report(0, {"prototypes": 40, "bookkeeping": 8}, {"bookkeeping": 24}))
    assert row == {"down_bookkeeping": 8, "down_extractor": 0, "down_prototypes": 40, "up_bookkeeping": 24}


def test_items_that_no_round_carries_have_no_column() -> None:
    row = make_ledger(rounds=1).add(report(0, {"prototypes": 40, "bookkeeping": 8}, {"bookkeeping": 24}))
    assert list(row) == ["down_bookkeeping", "down_prototypes", "up_bookkeeping"]


def test_a_new_ledger_is_empty() -> None:
    assert make_ledger().totals() == {"up": {}, "down": {}}


_bytes = st.integers(0, 10**12)
_down = st.fixed_dictionaries({}, optional={"prototypes": _bytes, "bookkeeping": _bytes, "extractor": _bytes})
_up = st.fixed_dictionaries({}, optional={"bookkeeping": _bytes})


@given(st.lists(st.tuples(_down, _up), max_size=8))
def test_totals_are_the_sums_of_the_rows(messages: list[tuple[dict[str, int], dict[str, int]]]) -> None:
    ledger = make_ledger()
    rows = [ledger.add(report(i, down, up)) for i, (down, up) in enumerate(messages)]
    for direction, total in ledger.totals().items():
        expected = {item: sum(row[f"{direction}_{item}"] for row in rows) for item in total}
        assert total == expected
    assert ledger.down.total() == sum(sum(down.values()) for down, _ in messages)
    assert ledger.up.total() == sum(sum(up.values()) for _, up in messages)


def test_totals_are_a_copy() -> None:
    ledger = make_ledger()
    ledger.add(report(0, {"prototypes": 40}, {}))
    before = ledger.totals()
    ledger.add(report(1, {"prototypes": 2}, {}))
    assert before == {"up": {}, "down": {"prototypes": 40}}
    assert ledger.totals()["down"] == {"prototypes": 42}
