"""Progress of a search: a line for each trial, and on a terminal what is being run."""

from __future__ import annotations

from contextlib import nullcontext
from types import TracebackType
from typing import Self, final

from rich.console import Console
from rich.status import Status

from fedmate.experiment.build import Built
from fedmate.experiment.run import Observer
from fedmate.report.tables import plain
from fedmate.studies.run import Watcher
from fedmate.tune.outcome import number, short
from fedmate.tune.search import Search, Trial


def describe(search: Search) -> str:
    """Say what is going to be done."""
    experiment, runs = search.experiment, [run.name for run in search.runs]
    return (
        f"{experiment.method.name} on {experiment.dataset.name}: {search.trials} trials, each of {len(runs)} run"
        f"{'' if len(runs) == 1 else 's'} ({'; '.join(runs)}) of {experiment.general.rounds} rounds. "
        f"Searched: {', '.join(short(dimension.key) for dimension in search.space)}. "
        f"Scored: balanced accuracy of `{search.view}` on training samples that no client holds, "
        f"{experiment.general.validation_per_class} of each class; the test split is not looked at."
    )


@final
class Told(Watcher):
    """Tells a console.

    Args:
        console: where.
    """

    def __init__(self, console: Console) -> None:
        """Show what is being run if somebody is looking."""
        self._console = console
        self._status = Status("", console=console) if console.is_terminal else None
        self._said: set[str] = set()

    def __enter__(self) -> Self:
        """Start to draw."""
        (self._status or nullcontext()).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the lines alone."""
        (self._status or nullcontext()).__exit__(kind, error, trace)

    def tried(self, trial: Trial, of: int) -> None:
        """Say what a trial came to."""
        settings = ", ".join(f"{short(key)} {number(value)}" for key, value in trial.settings.items())
        own = ", the experiment's own" if trial.number == 0 else ""
        score = "diverged" if trial.score is None else f"{trial.score:.2f} %"
        self._console.out(f"trial {trial.number} ({trial.number + 1}/{of}{own}): {settings}: {score}", highlight=False)

    def started(self, cell: str) -> Observer:
        """Show its rounds."""
        return _Rounds(self, cell)

    def ended(self, cell: str, seconds: float) -> None:
        """The trial says more."""

    def failed(self, cell: str, sentence: str) -> None:
        """Nothing: it ends the search, which says so."""

    def warned(self, sentence: str) -> None:
        """Print a sentence, but not once more for each run."""
        if sentence not in self._said:
            self._said.add(sentence)
            self._console.out(plain(sentence), highlight=False)

    def show(self, text: str) -> None:
        """Show what is being run."""
        if self._status is not None:
            self._status.update(text)


@final
class _Rounds(Observer):
    """Shows the rounds of a run."""

    def __init__(self, told: Told, cell: str) -> None:
        self._told, self._cell, self._rounds = told, cell, 0

    def started(self, built: Built, done: int) -> None:
        self._rounds = built.experiment.general.rounds
        self.round_done(done, None)

    def round_done(self, done: int, primary: float | None) -> None:
        self._told.show(f"{self._cell}: round {done}/{self._rounds}")

    def warned(self, sentence: str) -> None:
        self._told.warned(f"Note: {sentence}")
