"""The round loop, once: ask who takes part, run the round, keep the record and the checkpoint."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmate.backends.base import NOT_FINITE, ClientReport, Round, RoundResult
from fedmate.core import Tree, flatten, fold, make_key, permutation
from fedmate.errors import DivergedError
from fedmate.experiment.build import Built
from fedmate.experiment.checkpoint import Checkpoint, Progress, Standing
from fedmate.experiment.communication import CommunicationCost
from fedmate.experiment.metrics_log import NO_METRICS, client_rows, metrics_row, primary_test, summarise
from fedmate.experiment.record import Record
from fedmate.experiment.recorder import Recorder


class Observer(ABC):
    """Hears what happens in a run; a progress display is one."""

    @abstractmethod
    def started(self, built: Built, done: int) -> None:
        """Called before the first round, or before the next one of a run that goes on after `done` of them."""

    @abstractmethod
    def round_done(self, done: int, primary: float | None) -> None:
        """Called after each round with the number done and the latest headline accuracy, in percent."""

    @abstractmethod
    def warned(self, sentence: str) -> None:
        """Called with a sentence the user should read."""


def sample_participants(seed: int, round_number: int, num_clients: int, participation: float) -> tuple[int, ...]:
    """Return who takes part in a round: floor(participation * clients), at least one, without replacement."""
    # The small addition undoes rounding: 0.29 * 100 is 28.999999999999996.
    wanted = max(1, math.floor(participation * num_clients + 1e-9))
    order = permutation(fold(make_key(seed), "participants", round_number), num_clients)
    return tuple(sorted(order[:wanted].tolist()))


def begin(folder: Path, built: Built) -> None:
    """Write the record of a run that has not begun: what `run` goes on from."""
    config = built.experiment.to_toml()
    Recorder.begin(folder, config, built.split.to_json())
    initial, note = (
        built.method.setup.model.init_params(),
        {**built.signature.to_dict(), "partition": built.split.sha256},
    )
    Checkpoint.create(folder, config, len(built.federation.clients), initial, note)


def run(built: Built, folder: Path, observer: Observer) -> dict[str, Any]:
    """Run what is left of the run in `folder`, and return its summary.

    `KeyboardInterrupt` saves the rounds done before it goes on its way. If every participant of a round diverges, the
    record is finished with the figures of the last evaluated round, and `DivergedError` is raised.
    """
    recorder, checkpoint = Recorder(folder), Checkpoint(folder)
    progress = _restore(built, recorder, checkpoint)
    observer.started(built, progress.standing.round)
    rounds = _Rounds(built, recorder, checkpoint, observer)
    try:
        with built.backend.at_work(folder):
            progress = rounds.run(progress)
    except KeyboardInterrupt:
        rounds.save()
        raise
    diverged = progress.standing.trouble.get("diverged_in_round")
    last = Record(folder).metrics
    metrics = last[-1] if last else NO_METRICS
    summary = summarise(built, metrics, asdict(progress.standing))
    recorder.finish(summary, client_rows(built.federation, metrics))
    if diverged is not None:
        # Momentum lengthens the server's steps as a learning rate does.
        more = " and `method.server_momentum`" if built.experiment.method.options.get("server_momentum") else ""
        raise DivergedError(
            f"every client that took part diverged in round {diverged} (a loss or an upload is not finite); lower the "
            f"learning rates{more}."
        )
    return summary


def initial_server(built: Built) -> Tree:
    """Return the server's state before round 0."""
    general, method = built.experiment.general, built.method
    key = fold(make_key(general.seed, general.device), "server")
    return method.init_server(method.setup.model.init_params(), len(built.federation.clients), key)


def _restore(built: Built, recorder: Recorder, checkpoint: Checkpoint) -> Progress:
    """Put the back end and the record where the checkpoint stands."""
    checkpoint.check_all()
    standing, initial = checkpoint.standing, built.backend.clients
    server = checkpoint.server(initial_server(built))
    built.backend.restore({i: checkpoint.client(i, initial[i]) for i in checkpoint.clients()})
    recorder.rewind(standing.round, standing.files)
    checkpoint.clean()
    return Progress(standing, server, built.backend.clients)


class _Done(NamedTuple):
    """The rounds done, and the clients that took part in those that are not saved."""

    progress: Progress
    unsaved: frozenset[int]


class _Rounds:
    """The rounds of one process: what is done, and what of it is saved."""

    def __init__(self, built: Built, recorder: Recorder, checkpoint: Checkpoint, observer: Observer) -> None:
        self.built, self.recorder, self.checkpoint, self.observer = built, recorder, checkpoint, observer
        self._done: _Done | None = None

    def run(self, progress: Progress) -> Progress:
        """Run what is left and save the end."""
        general, self._done = self.built.experiment.general, _Done(progress, frozenset())
        start = time.perf_counter() - progress.standing.seconds
        headline = _headline(self.built, self.recorder.folder)
        ledger = CommunicationCost(self.built.method, general.rounds, progress.standing.up, progress.standing.down)
        for t in range(progress.standing.round, general.rounds):
            evaluate = (t + 1) % general.eval_every == 0 or t + 1 == general.rounds
            num_clients = len(self.built.federation.clients)
            task = Round(t, sample_participants(general.seed, t, num_clients, general.participation), evaluate)
            result = self.built.backend.run_round(progress.server, task)
            self._tell()
            seconds = time.perf_counter() - start
            self.recorder.add_round(_round_row(t, report) | ledger.enter(report) for report in result.reports)
            trouble = self._note_trouble(t, result, progress.standing.trouble)
            if trouble["diverged_in_round"] is not None:
                # What the clients held before is what is saved; the record tells of this round, too.
                self.save()
                up, down = ledger.totals()["up"], ledger.totals()["down"]
                standing = replace(progress.standing, trouble=trouble, seconds=seconds, up=up, down=down)
                return progress._replace(standing=standing)
            if evaluate:
                metrics = metrics_row(t, result, self.built.federation)
                self.recorder.add_metrics({**metrics, "bytes": ledger.totals(), "seconds": seconds})
                self.recorder.add_diagnostics(t + 1, _diagnostics(result))
                headline = _figure(self.built, metrics)
            standing = Standing(t + 1, seconds, **ledger.totals(), trouble=trouble, files=self.recorder.files())
            progress = Progress(standing, result.server, self.built.backend.clients)
            # One assignment: an interruption finds the state before this round or the one after it.
            remote = self.built.backend.is_remote
            self._done = _Done(progress, frozenset() if remote else self._done.unsaved | set(task.participants))
            # A site can go back one round, and no further.
            if remote or (t + 1) % general.checkpoint_every == 0 or t + 1 == general.rounds:
                self.save()
            self.observer.round_done(t + 1, headline)
        return progress

    def _tell(self) -> None:
        """Pass on what the back end noticed."""
        notes = self.built.backend.notes
        while notes:
            self.observer.warned(notes.pop(0))

    def _note_trouble(self, t: int, result: RoundResult, before: dict[str, int | None]) -> dict[str, int | None]:
        """Count and name what was left out of a round; a round in which nobody is left cannot be built on."""
        observer, reasons, left_out = self.observer, self.built.backend.reasons, dict[str, list[int]]()
        for report in result.reports:
            if not report.valid:
                left_out.setdefault(reasons.get(report.client, NOT_FINITE), []).append(report.client)
        diverged = [client for clients in left_out.values() for client in clients]
        everyone = len(diverged) == len(result.reports)
        for reason, clients in left_out.items() if not everyone else ():
            observer.warned(f"round {t + 1}: left out, {reason}: client {', '.join(map(str, clients))}")
        if not result.aggregated:
            observer.warned(f"round {t + 1}: the aggregate is not finite, so the server keeps its previous state")
        return {
            "left_out": (before.get("left_out") or 0) + len(diverged),
            "discarded_aggregates": (before.get("discarded_aggregates") or 0) + (not result.aggregated),
            "diverged_in_round": t + 1 if everyone else None,
        }

    def save(self) -> None:
        """Make a checkpoint of the rounds done, unless it exists."""
        if self._done is not None:
            self.recorder.flush()
            self.checkpoint.save(self._done.progress, sorted(self._done.unsaved))
            self._done = _Done(self._done.progress, frozenset())


def _headline(built: Built, folder: Path) -> float | None:
    rows = Record(folder).metrics
    return _figure(built, rows[-1]) if rows else None


def _figure(built: Built, metrics: Mapping[str, Any]) -> float | None:
    figure: float | None = metrics["accuracy"][built.method.primary_view][primary_test(built.federation)]["mean"]
    return figure


def _round_row(t: int, report: ClientReport) -> dict[str, Any]:
    return {
        "round": t + 1,
        "client": report.client,
        "valid": int(report.valid),
        "loss_before": report.loss_before,
        "loss_after": report.loss_after,
    }


def _diagnostics(result: RoundResult) -> dict[str, Tensor]:
    """Return what was recorded by path, with the ids behind the rows of the clients' part."""
    tensors = flatten(result.diagnostics)
    if tensors:
        tensors["clients/ids"] = torch.tensor([report.client for report in result.reports])
        tensors["clients/valid"] = torch.tensor([report.valid for report in result.reports])
    return tensors
