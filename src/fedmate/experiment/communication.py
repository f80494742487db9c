"""The cost ledger: what crossed between server and clients, in bytes, by item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import final

from fedmate.backends.base import ClientReport, item_of
from fedmate.core import Method


@final
class CommunicationCost:
    """Sums what back ends report. It counts what actually crossed; evaluation never does.

    Attributes:
        up, down: bytes so far by item, over all clients and rounds.
    """

    def __init__(
        self, method: Method, rounds: int, up: Mapping[str, int] | None = None, down: Mapping[str, int] | None = None
    ) -> None:
        """Find every item that any round may carry, so that all rows have the same columns; go on from `up`, `down`."""
        self.up: Counter[str] = Counter(up)
        self.down: Counter[str] = Counter(down)
        self._down_items, self._up_items = _columns(method, rounds)

    def enter(self, report: ClientReport) -> dict[str, int]:
        """Add one participant of one round and return its row."""
        self.down.update(report.down)
        self.up.update(report.up)
        down = {f"down_{item}": report.down.get(item, 0) for item in self._down_items}
        return down | {f"up_{item}": report.up.get(item, 0) for item in self._up_items}

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the bytes so far by direction and item."""
        return {"up": dict(self.up), "down": dict(self.down)}


def _columns(method: Method, rounds: int) -> tuple[list[str], list[str]]:
    down, up = set[str](), set[str]()
    for t in range(rounds):
        wire = method.wire(t)
        down |= wire.down
        up |= wire.up
    return _items(down), _items(up)


def _items(parts: Iterable[str]) -> list[str]:
    return sorted({item_of(part) for part in parts})
