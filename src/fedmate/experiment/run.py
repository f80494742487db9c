"""The round loop: sample participants, run the round, evaluate, call back."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedmate.backends.base import NOT_FINITE, Round, RoundResult, item_of
from fedmate.core import Tree, flatten, fold, make_key, permutation
from fedmate.errors import DivergedError
from fedmate.experiment.build import Built
from fedmate.experiment.callback import Callback, Callbacks, RoundSummary, Run
from fedmate.experiment.checkpoint import Checkpoint, RunState
from fedmate.experiment.evaluate import (
    NO_METRICS,
    client_rows,
    metrics_row,
    primary_accuracy,
    primary_test,
    summarise,
)
from fedmate.experiment.record import Record, Recorder


def sample_participants(seed: int, round_number: int, num_clients: int, participation: float) -> tuple[int, ...]:
    """Return who takes part in a round: floor(participation * clients), at least one, without replacement."""
    # The small addition undoes rounding: 0.29 * 100 is 28.999999999999996.
    wanted = max(1, math.floor(participation * num_clients + 1e-9))
    order = permutation(fold(make_key(seed), "participants", round_number), num_clients)
    return tuple(sorted(order[:wanted].tolist()))


def run(built: Built, folder: Path, callbacks: Iterable[Callback] = ()) -> dict[str, Any]:
    """Run the rest of the run in `folder`, and return its summary.

    `KeyboardInterrupt` saves the rounds done before it goes on its way. If every participant of a round diverges, the
    record is finished with the metrics of the last evaluated round, and `DivergedError` is raised.
    """
    keeper, general, others = Keeper(built, folder), built.experiment.general, Callbacks(callbacks)
    tally, first = keeper.tally, keeper.done.state.round
    summary: dict[str, Any] | None = None
    try:
        stops = others.call("run_started", Run(folder, first, (built.method.primary_view, primary_test(built))))
        with built.backend.at_work(folder):
            for t in range(first, general.rounds):
                if stops or tally.has_diverged:
                    break
                evaluate = (t + 1) % general.eval_every == 0 or t + 1 == general.rounds
                chosen = sample_participants(general.seed, t, len(built.federation.clients), general.participation)
                result = built.backend.run_round(keeper.done.server, Round(t, chosen, evaluate))
                ended, warnings = tally.add(t, result, evaluate)
                keeper.round_ended(ended)
                for message in warnings:
                    others.call("warned", message)
                stops = others.call("round_ended", ended)
        summary = summarise(built, tally.metrics, tally.state)
        if "stopped_after_round" in summary:
            others.call("warned", f"a callback ended the run after round {tally.state.round} of {general.rounds}.")
        keeper.run_ended(summary)
    except KeyboardInterrupt:
        keeper.save()
        raise
    finally:
        others.call("run_ended", summary)
    if tally.has_diverged:
        # Momentum lengthens the server's steps as a learning rate does.
        raise DivergedError(
            f"every client that took part diverged in round {summary['diverged_in_round']} (a loss or an upload is "
            "not finite); lower the learning rates, and the server's momentum if there is any."
        )
    return summary


def initial_server(built: Built) -> Tree:
    """Return the server's state before round 0."""
    general, method = built.experiment.general, built.method
    key = fold(make_key(general.seed, general.device), "server")
    return method.init_server(method.setup.model.init_params(), len(built.federation.clients), key)


class Tally:
    """Adds up rounds: bytes, seconds, failures and the latest metrics."""

    def __init__(self, built: Built, state: RunState, metrics: Mapping[str, Any]) -> None:
        self.built, self.state, self.metrics = built, state, metrics
        # Evaluation sends nothing, so it costs nothing. Rows of all rounds have the columns of every item.
        self.bytes = {"up": Counter(state.up), "down": Counter(state.down)}
        wires = [built.method.wire(t) for t in range(built.experiment.general.rounds)]
        self.items = {
            way: sorted({item_of(part) for wire in wires for part in getattr(wire, way)}) for way in ("down", "up")
        }
        self.start = time.perf_counter() - state.seconds

    @property
    def has_diverged(self) -> bool:
        """Whether the last round dropped everybody, so that nothing can be built on it."""
        return self.state.failures.get("diverged_in_round") is not None

    def add(self, t: int, result: RoundResult, evaluated: bool) -> tuple[RoundSummary, list[str]]:
        """Enter a round; return it with sentences that the user should read."""
        seconds, rows, metrics = time.perf_counter() - self.start, list[dict[str, Any]](), None
        for report in result.reports:
            rows.append({"round": t + 1, "client": report.client, "valid": int(report.valid)})
            rows[-1] |= {"loss_before": report.loss_before, "loss_after": report.loss_after}
            for way, items in self.items.items():
                sent = getattr(report, way)
                self.bytes[way].update(sent)
                rows[-1] |= {f"{way}_{item}": sent.get(item, 0) for item in items}
        totals = {way: dict(counts) for way, counts in self.bytes.items()}
        failures, warnings = self._failures(t, result)
        up, down = totals["up"], totals["down"]
        self.state = replace(self.state, up=up, down=down, seconds=seconds, failures=failures)
        if not self.has_diverged:
            self.state = replace(self.state, round=t + 1)
            if evaluated:
                self.metrics = metrics_row(t, result, self.built)
                metrics = {**self.metrics, "bytes": totals, "seconds": seconds}
        sums = {way: sum(counts.values()) for way, counts in totals.items()}
        return RoundSummary(t + 1, rows, metrics, primary_accuracy(self.built, self.metrics), sums, result), warnings

    def _failures(self, t: int, result: RoundResult) -> tuple[dict[str, int | None], list[str]]:
        """Count and name the clients dropped from a round; a round that drops all of them cannot be built on."""
        backend, before, dropped = self.built.backend, self.state.failures, dict[str, list[int]]()
        warnings = [*backend.warnings]
        backend.warnings.clear()
        for report in result.reports:
            if not report.valid:
                dropped.setdefault(backend.reasons.get(report.client, NOT_FINITE), []).append(report.client)
        count = sum(map(len, dropped.values()))
        all_dropped = count == len(result.reports)
        if not all_dropped:
            warnings += [
                f"round {t + 1}: dropped, {reason}: client {', '.join(map(str, clients))}"
                for reason, clients in dropped.items()
            ]
        if not result.aggregated:
            warnings.append(f"round {t + 1}: the aggregate is not finite, so the server keeps its previous state")
        failures = {
            "left_out": (before.get("left_out") or 0) + count,
            "discarded_aggregates": (before.get("discarded_aggregates") or 0) + (not result.aggregated),
            "diverged_in_round": t + 1 if all_dropped else None,
        }
        return failures, warnings


class _Done(NamedTuple):
    """The rounds done."""

    state: RunState
    server: Tree
    clients: Sequence[Tree]
    unsaved: Mapping[int, int]  # the clients that took part since the last checkpoint, each with its last round


class Keeper(Callback):
    """Keeps the record and the checkpoint, from where the checkpoint stands; an error of its own stops the run."""

    def __init__(self, built: Built, folder: Path) -> None:
        self.built, self.recorder, self.checkpoint = built, Recorder(folder), Checkpoint(folder)
        self.checkpoint.check_all(len(built.federation.clients))
        state, initial = self.checkpoint.state, built.backend.clients
        server = self.checkpoint.server(initial_server(built))
        built.backend.restore({i: self.checkpoint.client(i, initial[i]) for i in self.checkpoint.clients()})
        self.recorder.rewind(state.round, state.files)
        self.checkpoint.clean()
        self.done = _Done(state, server, built.backend.clients, {})
        self.tally = Tally(built, state, (Record(folder).metrics or [NO_METRICS])[-1])

    def round_ended(self, summary: RoundSummary) -> None:
        """Enter a round, and make a checkpoint if one is due."""
        t, result, general, backend = summary.round, summary.result, self.built.experiment.general, self.built.backend
        assert result is not None
        self.recorder.add_round(summary.clients)
        if self.tally.has_diverged:
            # What the clients held before is what is saved; the record holds this round, too.
            self.save()
            return
        if summary.metrics is not None:
            self.recorder.add_metrics(summary.metrics)
            tensors = flatten(result.diagnostics)
            if tensors:
                # The ids behind the rows of the clients' part.
                tensors["clients/ids"] = torch.tensor([report.client for report in result.reports])
                tensors["clients/valid"] = torch.tensor([report.valid for report in result.reports])
            self.recorder.add_diagnostics(t, tensors)
        state = replace(self.tally.state, files=self.recorder.files())
        participants = {} if backend.is_remote else dict.fromkeys((row["client"] for row in summary.clients), t)
        # One assignment: an interruption finds the state before this round or the one after it.
        self.done = _Done(state, result.server, backend.clients, {**self.done.unsaved, **participants})
        # A site can go back one round, and no further.
        if backend.is_remote or t % general.checkpoint_every == 0 or t == general.rounds:
            self.save()

    def save(self) -> None:
        """Make a checkpoint of the rounds done, unless it exists."""
        done = self.done
        self.recorder.flush()
        clients = {client: (version, done.clients[client]) for client, version in sorted(done.unsaved.items())}
        self.checkpoint.save(done.state, done.server, clients)
        self.done = done._replace(unsaved={})

    def run_ended(self, summary: Mapping[str, Any] | None) -> None:
        """Write the end of the record."""
        assert summary is not None
        # A callback may have ended the run after a round without a checkpoint.
        self.save()
        # No power cut shall bring superseded states back into a finished record.
        self.checkpoint.flush()
        self.recorder.finish(summary, client_rows(self.built, self.tally.metrics))
