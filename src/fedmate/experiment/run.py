"""The round loop, once: ask who takes part, run the round, keep the record."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmate.backends.base import ClientReport, Round, RoundResult, View
from fedmate.core import class_counts, flatten, fold, make_key, permutation
from fedmate.errors import DivergedError
from fedmate.experiment.build import Built
from fedmate.experiment.evaluate import TESTS, evaluate_view, label_distribution, number
from fedmate.experiment.ledger import Ledger
from fedmate.experiment.record import Record

VIEWS = ("pre", "post", "global")


class Observer(ABC):
    """Hears what happens in a run; a progress display is one."""

    @abstractmethod
    def started(self, built: Built) -> None:
        """Called before the first round."""

    @abstractmethod
    def round_done(self, done: int, headline: float | None) -> None:
        """Called after each round with the number done and the latest headline accuracy, in percent."""

    @abstractmethod
    def said(self, sentence: str) -> None:
        """Called with a sentence the user should read."""


def sample_participants(seed: int, round_number: int, num_clients: int, participation: float) -> tuple[int, ...]:
    """Return who takes part in a round: floor(participation * clients), at least one, without replacement."""
    # The small addition undoes rounding: 0.29 * 100 is 28.999999999999996.
    wanted = max(1, math.floor(participation * num_clients + 1e-9))
    order = permutation(fold(make_key(seed), "participants", round_number), num_clients)
    return tuple(sorted(order[:wanted].tolist()))


def run(built: Built, folder: Path, observer: Observer) -> dict[str, Any]:
    """Run an experiment, write its record into `folder` and return the summary.

    If every participant of a round diverges, the record is finished with the figures of the last evaluated round, and
    `DivergedError` is raised.
    """
    record = Record(folder, built.experiment.to_toml())
    general, method = built.experiment.general, built.method
    num_clients = len(built.federation.clients)
    ledger = Ledger(method, general.rounds)
    labels = label_distribution(built.federation)
    server = method.init_server(
        method.setup.model.init_params(), num_clients, fold(make_key(general.seed, general.device), "server")
    )
    trouble = {"left_out": 0, "discarded_aggregates": 0, "diverged_in_round": None}
    metrics: dict[str, Any] = {"accuracy": dict.fromkeys(VIEWS), "loss": None}
    headline = None
    observer.started(built)
    start = time.perf_counter()
    for t in range(general.rounds):
        evaluate = (t + 1) % general.eval_every == 0 or t + 1 == general.rounds
        participants = sample_participants(general.seed, t, num_clients, general.participation)
        result = built.backend.run_round(server, Round(t, participants, evaluate))
        server = result.server
        record.add_round(_round_row(t, report) | ledger.enter(report) for report in result.reports)
        _note_trouble(t, result, trouble, observer)
        if trouble["diverged_in_round"] is not None:
            break
        if evaluate:
            metrics = _metrics(t, result.reports, result.views, labels)
            record.add_metrics({**metrics, "bytes": ledger.totals(), "seconds": time.perf_counter() - start})
            record.add_diagnostics(t + 1, _diagnostics(result))
            headline = metrics["accuracy"][method.headline]["balanced"]["mean"]
        observer.round_done(t + 1, headline)
    summary = _summary(built, metrics, ledger, time.perf_counter() - start) | trouble
    record.finish(summary, _client_rows(built, metrics))
    if trouble["diverged_in_round"] is not None:
        raise DivergedError(
            f"every client that took part diverged in round {trouble['diverged_in_round']} (a loss or an upload is not "
            "finite); lower the learning rates."
        )
    return summary


def _round_row(t: int, report: ClientReport) -> dict[str, Any]:
    return {
        "round": t + 1,
        "client": report.client,
        "valid": int(report.valid),
        "loss_before": report.loss_before,
        "loss_after": report.loss_after,
    }


def _note_trouble(t: int, result: RoundResult, trouble: dict[str, int | None], observer: Observer) -> None:
    """Count and name what was left out of a round; a round in which nobody is left cannot be built on."""
    diverged = [report.client for report in result.reports if not report.valid]
    trouble["left_out"] = (trouble["left_out"] or 0) + len(diverged)
    if len(diverged) == len(result.reports):
        trouble["diverged_in_round"] = t + 1
    elif diverged:
        observer.said(f"round {t + 1}: left out, not finite: client {', '.join(map(str, diverged))}")
    if not result.aggregated:
        trouble["discarded_aggregates"] = (trouble["discarded_aggregates"] or 0) + 1
        observer.said(f"round {t + 1}: the aggregate is not finite, so the server keeps its previous state")


def _metrics(t: int, reports: list[ClientReport], views: dict[str, View | None], labels: Tensor) -> dict[str, Any]:
    ordered = [*VIEWS, *sorted(set(views) - set(VIEWS))]
    figures = {name: None if (view := views[name]) is None else evaluate_view(view, labels) for name in ordered}
    valid = [report for report in reports if report.valid]
    return {
        "round": t + 1,
        "accuracy": figures,
        "loss": {
            "before": number(sum(r.loss_before for r in valid) / len(valid)),
            "after": number(sum(r.loss_after for r in valid) / len(valid)),
        },
    }


def _diagnostics(result: RoundResult) -> dict[str, Tensor]:
    """Return what was recorded by path, with the ids behind the rows of the clients' part."""
    tensors = flatten(result.diagnostics)
    if tensors:
        tensors["clients/ids"] = torch.tensor([report.client for report in result.reports])
        tensors["clients/valid"] = torch.tensor([report.valid for report in result.reports])
    return tensors


def _summary(built: Built, metrics: dict[str, Any], ledger: Ledger, seconds: float) -> dict[str, Any]:
    experiment, view = built.experiment, built.method.headline
    figures = ("mean", "std", "worst_tenth")
    accuracy = {
        name: result and {test: {key: result[test][key] for key in figures} for test in TESTS}
        for name, result in metrics["accuracy"].items()
    }
    best = accuracy[view]
    return {
        "method": experiment.method.name,
        "dataset": experiment.dataset.name,
        "partition": experiment.partition.name,
        "seed": experiment.general.seed,
        "rounds": experiment.general.rounds,
        "clients": len(built.federation.clients),
        "backend": experiment.general.backend,
        "device": experiment.general.device,
        "accuracy": accuracy,
        "headline": {"view": view, "test": "balanced", "mean": best and best["balanced"]["mean"]},
        "loss": metrics["loss"],
        "bytes_up": ledger.up.total(),
        "bytes_down": ledger.down.total(),
        "bytes_up_items": dict(ledger.up),
        "bytes_down_items": dict(ledger.down),
        "seconds": seconds,
    }


def _client_rows(built: Built, metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each client's samples by class and its figures in the last round; empty where it has none."""
    rows = []
    for i, data in enumerate(built.federation.clients):
        counts = class_counts(data, built.federation.num_classes).tolist()
        row: dict[str, Any] = {"client": i, "samples": sum(counts)}
        row |= {f"samples_{k}": count for k, count in enumerate(counts)}
        for name, result in metrics["accuracy"].items():
            row |= {f"{name}_{test}": result and result[test]["clients"][i] for test in TESTS}
        rows.append(row)
    return rows
