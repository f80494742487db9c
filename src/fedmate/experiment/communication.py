"""The communication cost: bytes that crossed between server and clients, by item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import final

from fedmate.backends.base import ClientReport, item_of
from fedmate.core import Method


@final
class CommunicationCost:
    """Sums the bytes that back ends report. Evaluation sends nothing, so it costs nothing.

    Args:
        method: its `wire` names the items of each round.
        rounds: how many there are: rows of all rounds have the columns of every item.
        up, down: bytes before the next round, by item.
    """

    def __init__(
        self, method: Method, rounds: int, up: Mapping[str, int] | None = None, down: Mapping[str, int] | None = None
    ) -> None:
        self.up, self.down = Counter(up), Counter(down)
        wires = [method.wire(t) for t in range(rounds)]
        self._down_items = _items(part for wire in wires for part in wire.down)
        self._up_items = _items(part for wire in wires for part in wire.up)

    def add(self, report: ClientReport) -> dict[str, int]:
        """Add one participant of one round and return its row."""
        self.down.update(report.down)
        self.up.update(report.up)
        down = {f"down_{item}": report.down.get(item, 0) for item in self._down_items}
        return down | {f"up_{item}": report.up.get(item, 0) for item in self._up_items}

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the bytes so far by direction and item."""
        return {"up": dict(self.up), "down": dict(self.down)}


def _items(parts: Iterable[str]) -> list[str]:
    return sorted({item_of(part) for part in parts})
