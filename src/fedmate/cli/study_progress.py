"""Progress of a study: a line for each finished run, and on a terminal a bar for each that is running."""

from __future__ import annotations

import time
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedmate.cli import one_line
from fedmate.experiment.callback import RoundSummary, Run
from fedmate.studies.run import Watcher


@final
class StudyProgress(Watcher):
    """Shows the runs of a study on a console; `bars` is open meanwhile."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._done = console, total, 0
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), TextColumn("round"), MofNCompleteColumn(), TimeRemainingColumn())
        self.bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks, self._warned = dict[str, tuple[TaskID, float]](), set[str]()

    def begun(self, run: str) -> None:
        """Show a bar."""
        self._bar = self.bars.add_task(run, total=None)
        self._tasks[run] = self._bar, time.perf_counter()

    def run_started(self, run: Run) -> None:
        """Say how many rounds there are."""
        self.bars.update(self._bar, completed=run.done, total=run.config["rounds"])

    def round_ended(self, summary: RoundSummary) -> None:
        """Move the bar."""
        self.bars.update(self._bar, completed=summary.round)

    def ended(self, run: str, problem: str) -> None:
        """Print how long it took, or why it failed; a run whose lock cannot be taken has not begun."""
        bar, start = self._tasks.pop(run, (None, 0.0))
        if bar is not None:
            self.bars.remove_task(bar)
        self._done += 1
        outcome = f"failed: {problem}" if problem else f"{time.perf_counter() - start:.0f} s"
        self.warned(f"{self._done}/{self._total} {run}: {outcome}")

    def warned(self, message: str) -> None:
        """Print a sentence once, though all runs may have it."""
        if message not in self._warned:
            self._warned.add(message)
            self._console.out(one_line(message), highlight=False)
