"""Callbacks: what follows a run. The base of a user's own, and the table of those that an experiment can name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, cast

from fedmate.backends.base import RoundResult
from fedmate.core.options import Registry
from fedmate.errors import UserError, first_line, nearest
from fedmate.experiment.record import Record


class RoundSummary(NamedTuple):
    """A round that is done, as the record has it."""

    round: int
    """Its number, from 1."""
    clients: Sequence[Mapping[str, Any]]
    """Its participants, as in `rounds.csv`: losses, bytes by item, and whether the upload was valid."""
    metrics: Mapping[str, Any] | None
    """Its figures, as in `metrics.jsonl`, if it was evaluated."""
    primary: float | None
    """The primary accuracy after the latest evaluated round, in percent."""
    bytes: Mapping[str, int]
    """Bytes that crossed since the run began: `up` and `down`."""
    result: RoundResult | None = None
    """The states and diagnostics; `None` if the round is read from a record."""

    @property
    def dropped(self) -> list[int]:
        """The participants whose upload was not valid."""
        return [row["client"] for row in self.clients if not row["valid"]]

    def scalars(self) -> dict[str, float]:
        """Return all single numbers by name, such as `accuracy/post/balanced/mean`: what a tracker stores."""
        valid = [row for row in self.clients if row["valid"]]
        found: dict[str, float] = {"clients/dropped": len(self.clients) - len(valid)}
        for when in ("before", "after") if valid else ():
            found[f"loss/{when}"] = sum(row[f"loss_{when}"] for row in valid) / len(valid)
        figures = {key: value for key, value in (self.metrics or {}).items() if key not in ("round", "bytes")}
        return {**found, **dict(_numbers("", figures)), **{f"bytes/{way}": n for way, n in self.bytes.items()}}


def _numbers(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{prefix}{key}/", value)
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", value


@dataclass(frozen=True)
class Run:
    """A run that begins, or goes on after `done` rounds."""

    folder: Path
    done: int
    primary: tuple[str, str]
    """The view and the test whose accuracy stands for the run."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The experiment, section by section."""
        return Record(self.folder).config

    @property
    def name(self) -> str:
        """The name of its folder; in a comparison with the folder's above."""
        shared = (self.folder.parent / "comparison.json").exists()
        return f"{self.folder.parent.name}-{self.folder.name}" if shared else self.folder.resolve().name

    def history(self) -> Iterator[RoundSummary]:
        """Yield the rounds done before, from the record."""
        record, sent, primary = Record(self.folder), Counter(up=0, down=0), None
        evaluated = {row["round"]: row for row in record.metrics}
        for number, rows in groupby(record.rounds, key=lambda row: row["round"]):
            if number > self.done:
                return
            clients, metrics = list(rows), evaluated.get(number)
            for way in sent:
                sent[way] += sum(row[key] for row in clients for key in row if key.startswith(f"{way}_"))
            if metrics is not None:
                primary = figure(metrics, "accuracy", *self.primary)
            yield RoundSummary(number, clients, metrics, primary, dict(sent))


def figure(metrics: Mapping[str, Any], name: str, view: str, test: str) -> float | None:
    """Return the mean over clients of a metric in a row of `metrics.jsonl`, or the loss after training."""
    if name == "loss":
        return cast(float | None, metrics["loss"]["after"])
    views = metrics[name]
    if not views.get(view):
        known = [other for other, tests in views.items() if tests]
        raise UserError(f"`{view}` is not a view with figures in this run; {nearest(view, known)}")
    if test not in views[view]:
        raise UserError(f"`{test}` is not a test in this run; {nearest(test, views[view])}")
    return cast(float | None, views[view][test]["mean"])


@dataclass(eq=False)
class Callback:
    """Follows runs, one after the other; every function does nothing unless a subclass has its own.

    A subclass that an experiment names in `[callbacks]` is a dataclass with its options as fields made by
    `fedmate.core.option`.
    """

    def run_started(self, run: Run) -> bool | None:
        """Called before the first round, or the next one of a run that goes on; `True` ends the run."""

    def round_ended(self, summary: RoundSummary) -> bool | None:
        """Called after each round; `True` ends the run."""

    def run_ended(self, summary: Mapping[str, Any] | None) -> None:
        """Called at the end with the content of `summary.json`; `None` for a run that is interrupted."""

    def warned(self, message: str) -> None:
        """Called with a sentence that the user should read."""


CALLBACKS: Registry[type[Callback]] = Registry(
    "callbacks",
    {
        "early_stopping": "fedmate.callbacks.early_stopping:EarlyStopping",
        "mlflow": "fedmate.callbacks.trackers:MLflow",
        "tensorboard": "fedmate.callbacks.trackers:TensorBoard",
        "trackio": "fedmate.callbacks.trackers:Trackio",
        "wandb": "fedmate.callbacks.trackers:WandB",
    },
)


class Callbacks:
    """Calls callbacks in turn; one that fails is a warning, and is left out for the rest of the run."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._left = list(callbacks)

    def call(self, event: str, content: object) -> bool:
        """Call the function `event` of each with `content`; tell whether one of them ends the run."""
        ends = False
        for callback in [*self._left]:
            try:
                ends |= bool(getattr(callback, event)(content))
            except Exception as error:
                # Before the first round a mistake in what was asked for can still be mended.
                if event == "run_started" and isinstance(error, UserError):
                    raise
                self._left = [other for other in self._left if other is not callback]
                reason = f"{type(error).__name__}: {first_line(error)}"
                name = type(callback).__name__
                self.call("warned", f"the callback `{name}` failed and is left out from here ({reason}).")
        return ends


def replay(record: Record, callback: Callback) -> None:
    """Show a finished run to a callback, as if it ran now."""
    summary = record.summary
    primary = summary["headline"]["view"], summary["headline"]["test"]
    callback.run_started(Run(record.folder, 0, primary))
    for one in Run(record.folder, summary["rounds"], primary).history():
        callback.round_ended(one)
    callback.run_ended(summary)
