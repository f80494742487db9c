"""Progress of runs: live bars on a terminal, plain lines elsewhere, and nothing but warnings in Python."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from typing import Self, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedmate.errors import NoteWarning
from fedmate.experiment.callback import Callback, RoundSummary, Run


@final
class RunProgress(Callback):
    """Shows runs, one after the other: a line whenever accuracy was measured and at least every tenth of a run.

    Entered as a context, it shows a bar for each run instead if the console is a terminal.

    Args:
        console: where; nowhere if `None`, and sentences for the user are Python warnings.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._bars: Progress | None = None

    def __enter__(self) -> Self:
        if self._console is not None and self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("round"),
                MofNCompleteColumn(),
                TextColumn("{task.fields[accuracy]}"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=self._console,
            )
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def warn(self, sentences: Iterable[str]) -> None:
        """Show what should be read first, each sentence once."""
        for sentence in dict.fromkeys(sentences):
            if self._console is None:
                # Of the line that called `fedmate.run` or `fedmate.compare`.
                warnings.warn(sentence, NoteWarning, stacklevel=4)
            self._print(f"Note: {sentence}")

    def run_started(self, run: Run) -> None:
        """Add a bar, or remember how long the run is."""
        self._name, self._rounds, done = run.config["method"]["name"], run.config["rounds"], run.done
        self._start, self._before = time.perf_counter(), done
        if self._bars is not None:
            self._task = self._bars.add_task(self._name, total=self._rounds, completed=done, accuracy="")
        elif done:
            self._print(f"{self._name}: continuing after round {done}/{self._rounds}")

    def round_ended(self, summary: RoundSummary) -> None:
        """Move the bar, or print a line when there is something new."""
        done = summary.round
        accuracy = "" if summary.primary is None else f"{summary.primary:.2f} %"
        if self._bars is not None:
            self._bars.update(self._task, completed=done, accuracy=accuracy)
            return
        is_measured = summary.metrics is not None
        if is_measured or done % max(1, self._rounds // 10) == 0:
            left = (time.perf_counter() - self._start) / (done - self._before) * (self._rounds - done)
            # The accuracy of another round is an old one.
            shown = f"  accuracy {accuracy}" * (is_measured and bool(accuracy))
            self._print(f"{self._name}: round {done}/{self._rounds}{shown}  {left:.0f} s left")

    def warned(self, message: str) -> None:
        """Print a sentence, however long, or warn."""
        if self._console is None:
            warnings.warn(message, NoteWarning, stacklevel=2)
        self._print(message)

    def _print(self, line: str) -> None:
        if self._console is not None:
            self._console.out(line, highlight=False)
