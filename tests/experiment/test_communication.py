"""The communication cost of a round whose messages are known; `test_run` counts those of real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from fedmate.backends.base import ClientReport
from fedmate.core import Method, Wire
from fedmate.experiment.run import CommunicationCost


def wire(round_number: int) -> Wire:
    """Send the extractor in odd rounds only."""
    extractor = {"extractor"} if round_number % 2 else set()
    return Wire(down=frozenset({"prototypes", "round", *extractor}), up=frozenset({"num_samples", "class_counts"}))


def make(rounds: int) -> CommunicationCost:
    return CommunicationCost(cast(Method, SimpleNamespace(wire=wire)), rounds)


def report(client: int, down: dict[str, int], up: dict[str, int]) -> ClientReport:
    return ClientReport(client, True, 1.0, 0.5, down, up)


def test_rows_have_the_items_of_any_round_and_totals_are_their_sums() -> None:
    first, cost = report(0, {"prototypes": 40, "bookkeeping": 8}, {"bookkeeping": 24}), make(rounds=2)
    assert cost.totals() == {"up": {}, "down": {}}
    row = {"down_bookkeeping": 8, "down_extractor": 0, "down_prototypes": 40, "up_bookkeeping": 24}
    assert cost.add(first) == row
    before = cost.totals()
    other = {"down_bookkeeping": 0, "down_extractor": 5, "down_prototypes": 2, "up_bookkeeping": 0}
    assert cost.add(report(1, {"extractor": 5, "prototypes": 2}, {})) == other
    assert cost.totals() == {
        "up": {"bookkeeping": 24},
        "down": {"bookkeeping": 8, "extractor": 5, "prototypes": 42},
    }
    assert before == {"up": {"bookkeeping": 24}, "down": {"bookkeeping": 8, "prototypes": 40}}
    # The only round of this one sends no extractor.
    del row["down_extractor"]
    assert make(rounds=1).add(first) == row
