"""Running cases one after the other, each where it belongs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self, final

from fedmate.bench.case import Case
from fedmate.bench.measure import Timing
from fedmate.bench.results import Row
from fedmate.bench.rivals import RIVALS
from fedmate.bench.roofline import Roofline, Work
from fedmate.bench.worker import Worker


@final
class Bench:
    """Measures cases, in workers that are ended when it is closed.

    Args:
        repeat: how many rounds of each count.
        limit: seconds after which a case is given up.
    """

    def __init__(self, repeat: int, limit: float) -> None:
        """Start nothing yet."""
        self._repeat, self._limit = repeat, limit
        self._worker: Worker | None = None

    def __enter__(self) -> Self:
        """Be ready."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker, whatever it is doing."""
        self._end()

    def roofline(self, device: str) -> Roofline | None:
        """Measure what a device can do at best; `None` if that fails."""
        answer = self._ask({"kind": "roofline", "device": device}, fresh=False)
        return Roofline(**answer["roofline"]) if "roofline" in answer else None

    def measure(self, cases: Iterable[Case]) -> Iterator[Row]:
        """Yield a row for each case, also for one that fails."""
        for case in cases:
            rival = RIVALS.get(case.runner)
            # A CPU's memory is that of the process; and what others keep on a GPU would be missing there.
            fresh = case.device == "cpu" or (rival is not None and bool(rival.packages))
            task = {"kind": "case", "case": dataclasses.asdict(case), "repeat": self._repeat}
            answer = self._ask(task, fresh)
            # After a fault on a GPU nothing else can be trusted in that process.
            if fresh or "detail" in answer:
                self._end()
            if "error" in answer:
                yield Row(case, error=answer["error"], detail=answer.get("detail"))
            else:
                yield Row(case, Timing.from_dict(answer["timing"]), Work(**answer["work"]))

    def _ask(self, task: dict[str, Any], fresh: bool) -> dict[str, Any]:
        if fresh or (self._worker is not None and not self._worker.is_alive):
            self._end()
        if self._worker is None:
            self._worker = Worker()
        return self._worker.ask(task, self._limit)

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
