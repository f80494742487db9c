"""Progress of a sweep: a line for each finished cell, and on a terminal a bar for those at work."""

from __future__ import annotations

from contextlib import nullcontext
from types import TracebackType
from typing import Self, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedmate.experiment.build import Built
from fedmate.experiment.run import Observer
from fedmate.report.sheets import plain
from fedmate.studies.sweep import Watcher


@final
class Teller(Watcher):
    """Tells a console; while it is open, a terminal shows the cells at work.

    Args:
        console: where.
        total: how many cells are left to run.
    """

    def __init__(self, console: Console, total: int) -> None:
        """Choose bars or lines."""
        self._console, self._total, self._done = console, total, 0
        self._bars = _bars(console) if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._said = set[str]()

    def __enter__(self) -> Self:
        """Start to draw."""
        (self._bars or nullcontext()).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the lines alone."""
        (self._bars or nullcontext()).__exit__(kind, error, trace)

    def began(self, cell: str) -> Observer:
        """Show a bar."""
        if self._bars is None:
            return _Rounds(self, None, None)
        self._tasks[cell] = self._bars.add_task(cell, total=None)
        return _Rounds(self, self._bars, self._tasks[cell])

    def ended(self, cell: str, seconds: float) -> None:
        """Say how long it took."""
        self._over(cell)
        self.warned(f"{self._done}/{self._total} {cell}: {seconds:.0f} s")

    def failed(self, cell: str, sentence: str) -> None:
        """Say why."""
        self._over(cell)
        self.warned(f"{self._done}/{self._total} {cell}: failed: {sentence}")

    def warned(self, sentence: str) -> None:
        """Print one line, however long; what all cells say is said once."""
        if sentence in self._said:
            return
        self._said.add(sentence)
        self._console.out(plain(sentence), highlight=False)

    def _over(self, cell: str) -> None:
        self._done += 1
        if self._bars is not None and cell in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell))


@final
class _Rounds(Observer):
    """Moves a cell's bar on, if there is one."""

    def __init__(self, teller: Teller, bars: Progress | None, task: TaskID | None) -> None:
        self._teller, self._bars, self._task = teller, bars, task

    def started(self, built: Built, done: int) -> None:
        self._update(done, built.experiment.general.rounds)

    def round_done(self, done: int, primary: float | None) -> None:
        self._update(done, None)

    def warned(self, sentence: str) -> None:
        self._teller.warned(sentence)

    def _update(self, done: int, total: int | None) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=done, total=total)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("round"),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
