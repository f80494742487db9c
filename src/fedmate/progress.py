"""Progress of a run: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from types import TracebackType
from typing import Self, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedmate.errors import NoteWarning
from fedmate.experiment.build import Built
from fedmate.experiment.run import Observer


@final
class Bar(Observer):
    """A bar per method that shows the round, the primary accuracy and the time left."""

    def __init__(self, progress: Progress) -> None:
        """Draw on a display that several runs share."""
        self._progress = progress
        self._task: TaskID | None = None

    def started(self, built: Built, done: int) -> None:
        """Add a bar."""
        name, rounds = built.experiment.method.name, built.experiment.general.rounds
        self._task = self._progress.add_task(name, total=rounds, completed=done, accuracy="")

    def round_done(self, done: int, primary: float | None) -> None:
        """Move the bar on."""
        accuracy = "" if primary is None else f"{primary:.2f} %"
        if self._task is not None:
            self._progress.update(self._task, completed=done, accuracy=accuracy)

    def warned(self, sentence: str) -> None:
        """Print above the bars."""
        self._progress.console.out(sentence, highlight=False)


@final
class Lines(Observer):
    """A line whenever accuracy was measured, and at least every tenth of the run."""

    def __init__(self, console: Console) -> None:
        """Print to a console."""
        self._console = console
        self._name, self._rounds, self._every, self._before, self._start = "", 0, 1, 0, 0.0

    def started(self, built: Built, done: int) -> None:
        """Remember how long the run is."""
        general = built.experiment.general
        self._name, self._rounds, self._every = built.experiment.method.name, general.rounds, general.eval_every
        self._start, self._before = time.perf_counter(), done
        if done:
            self.warned(f"{self._name}: continuing after round {done}/{self._rounds}")

    def round_done(self, done: int, primary: float | None) -> None:
        """Print a line when there is something to tell."""
        is_measured = done % self._every == 0 or done == self._rounds
        if not is_measured and done % max(1, self._rounds // 10):
            return
        left = (time.perf_counter() - self._start) / (done - self._before) * (self._rounds - done)
        # The primary of another round is that of the last look.
        accuracy = f"  accuracy {primary:.2f} %" if is_measured and primary is not None else ""
        self.warned(f"{self._name}: round {done}/{self._rounds}{accuracy}  {left:.0f} s left")

    def warned(self, sentence: str) -> None:
        """Print one line, however long."""
        self._console.out(sentence, highlight=False)


@final
class Display:
    """Shows several runs, one after the other, while it is open.

    Args:
        console: where; nowhere if `None`, and what should be read is a warning.
    """

    def __init__(self, console: Console | None) -> None:
        """Choose bars or lines."""
        self._console = console
        self._bars = bars(console) if console is not None and console.is_terminal else None

    def __enter__(self) -> Self:
        """Start to draw."""
        (self._bars or nullcontext()).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last picture."""
        (self._bars or nullcontext()).__exit__(kind, error, trace)

    def observer(self) -> Observer:
        """Return what shows the next run."""
        if self._console is None:
            return Silence()
        return Lines(self._console) if self._bars is None else Bar(self._bars)

    def notes(self, notes: Iterable[str]) -> None:
        """Print what should be read first, each sentence once."""
        for note in dict.fromkeys(notes):
            if self._console is None:
                # Of the line that called `fedmate.run` or `fedmate.compare`.
                warnings.warn(note, NoteWarning, stacklevel=4)
            else:
                self._console.out(f"Note: {note}", highlight=False)


@final
class Silence(Observer):
    """Shows nothing; what should be read is a warning."""

    def started(self, built: Built, done: int) -> None:
        """Say nothing."""

    def round_done(self, done: int, primary: float | None) -> None:
        """Say nothing."""

    def warned(self, sentence: str) -> None:
        """Warn."""
        warnings.warn(sentence, NoteWarning, stacklevel=2)


def bars(console: Console) -> Progress:
    """Return the display that `Bar` draws on."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round"),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )
