"""Progress of a study: a line for each finished run, and on a terminal a bar for each that is running."""

from __future__ import annotations

from types import TracebackType
from typing import Self, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedmate.cli import one_line
from fedmate.experiment.build import Built
from fedmate.experiment.run import Observer
from fedmate.studies.run import Watcher


@final
class StudyProgress(Watcher):
    """Shows the runs of a study on a console."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._done = console, total, 0
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), TextColumn("round"), MofNCompleteColumn(), TimeRemainingColumn())
        self.bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._warned = set[str]()

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def started(self, run: str) -> Observer:
        """Show a bar."""
        self._tasks[run] = self.bars.add_task(run, total=None)
        return _Rounds(self, self._tasks[run])

    def ended(self, run: str, seconds: float) -> None:
        """Print how long it took."""
        self._finish(run, f"{seconds:.0f} s")

    def failed(self, run: str, reason: str) -> None:
        """Print why."""
        self._finish(run, f"failed: {reason}")

    def warned(self, sentence: str) -> None:
        """Print a sentence once, though all runs may have it."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._console.out(one_line(sentence), highlight=False)

    def _finish(self, run: str, text: str) -> None:
        self._done += 1
        # A run whose lock cannot be taken fails before it has a bar.
        if run in self._tasks:
            self.bars.remove_task(self._tasks.pop(run))
        self.warned(f"{self._done}/{self._total} {run}: {text}")


@final
class _Rounds(Observer):
    """Moves the bar of a run."""

    def __init__(self, progress: StudyProgress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def started(self, built: Built, done: int) -> None:
        self._progress.bars.update(self._task, completed=done, total=built.experiment.general.rounds)

    def round_done(self, done: int, primary: float | None) -> None:
        self._progress.bars.update(self._task, completed=done)

    def warned(self, sentence: str) -> None:
        self._progress.warned(sentence)
