"""The figures of a record: an evaluated round, each client, and the summary. All accuracies are in percent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedmate.backends.base import RoundResult, View
from fedmate.core import ClientData, Setup, tree_map
from fedmate.experiment.build import Built
from fedmate.experiment.checkpoint import RunState
from fedmate.experiment.inputs import held_out
from fedmate.experiment.record import TESTS, VIEWS
from fedmate.tasks.metrics import ACCURACY, Metric

NO_METRICS: dict[str, Any] = {"accuracy": dict.fromkeys(VIEWS), "loss": None}
"""The metrics of a run that ended before its first evaluation."""


def metrics_row(t: int, result: RoundResult, built: Built) -> dict[str, Any]:
    """Return the figures of an evaluated round."""
    federation, setup = built.federation, built.method.setup
    clients, held_out_clients = federation.clients, federation.held_out_clients
    # Labels that lie with sites are not known here.
    labels = None if federation.at_sites else label_distribution(setup, clients)
    accuracy = {
        name: (view := result.views[name])
        and (_reported_view(view, setup, len(clients)) if labels is None else evaluate_view(view, labels))
        for name in (*VIEWS, *sorted(set(result.views) - set(VIEWS)))
    }
    valid = [report for report in result.reports if report.valid]
    loss = {
        "before": number(sum(report.loss_before for report in valid) / len(valid)),
        "after": number(sum(report.loss_after for report in valid) / len(valid)),
    }
    row: dict[str, Any] = {"round": t + 1, "accuracy": accuracy, "loss": loss}
    if result.held_out_clients:
        labels = label_distribution(setup, held_out_clients)
        views = {name: result.held_out_clients[name] for name in ("before", "after")}
        row["newcomers"] = {name: evaluate_view(view, labels) for name, view in views.items()}
    return row


def primary_accuracy(built: Built, metrics: Mapping[str, Any]) -> float | None:
    """Return the mean of the primary view on the primary test in an evaluated round, in percent."""
    figures = metrics["accuracy"][built.method.primary_view]
    accuracy: float | None = figures and figures[_primary_test(built)]["mean"]
    return accuracy


def summarise(built: Built, metrics: Mapping[str, Any], state: RunState) -> dict[str, Any]:
    """Return the summary of a run: its last metrics and the totals."""
    experiment, view, test = built.experiment, built.method.primary_view, _primary_test(built)
    summary = {
        "method": experiment.method.name,
        "dataset": experiment.dataset.name,
        "partition": experiment.partition.name,
        "partition_sha256": built.split.sha256,
        "evaluated_on": experiment.general.evaluate_on,
        "seed": experiment.general.seed,
        "rounds": experiment.general.rounds,
        "clients": len(built.federation.clients),
        "backend": experiment.general.backend,
        "device": experiment.general.device,
        "accuracy": {name: _short(result) for name, result in metrics["accuracy"].items()},
        "headline": {"view": view, "test": test, "mean": primary_accuracy(built, metrics)},
        "loss": metrics["loss"],
        "bytes_up": sum(state.up.values()),
        "bytes_down": sum(state.down.values()),
        "bytes_up_items": state.up,
        "bytes_down_items": state.down,
        "seconds": state.seconds,
        **state.failures,
    }
    away = built.federation.held_out_clients
    if away:
        figures = metrics.get("newcomers", {})
        summary["newcomers"] = {
            "clients": len(away),
            "dealt_as": sorted(held_out(experiment, len(built.federation.clients) + len(away))),
            "accuracy": {name: _short(figures.get(name)) for name in ("before", "after")},
        }
    return summary


def client_rows(built: Built, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each client's samples by class and its figures in the last round; empty where it has none."""
    federation, rows = built.federation, list[dict[str, Any]]()
    away = federation.held_out_clients
    newcomers = metrics.get("newcomers") or dict.fromkeys(("before", "after"))
    for clients, accuracy, marked in (
        (federation.clients, metrics["accuracy"], {"newcomer": 0} if away else {}),
        (away, newcomers, {"newcomer": 1}),
    ):
        for i, data in enumerate(clients):
            rows.append({**marked, "client": len(rows)})
            # What lies with sites is not counted here.
            if not federation.at_sites:
                counts = built.method.setup.class_counts(data).tolist()
                rows[-1] |= {"samples": sum(counts), **{f"samples_{k}": count for k, count in enumerate(counts)}}
            for name, result in accuracy.items():
                rows[-1] |= {f"{name}_{test}": result and result[test]["clients"][i] for test in TESTS}
    columns = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in columns} for row in rows]


def label_distribution(setup: Setup, clients: Sequence[ClientData]) -> Tensor:
    """Return p_ik, the share of each class in each client's samples, `[clients, classes]`, float64."""
    counts = torch.stack([setup.class_counts(data) for data in clients])
    return counts.to(torch.float64).cpu() / counts.sum(1, keepdim=True).cpu()


def evaluate_view(view: View, labels: Tensor, metric: Metric = ACCURACY) -> dict[str, Any]:
    """Return the figures of one view on every test; `labels` are all clients', as `label_distribution` gives them.

    Classes are weighed for each client; a class without test samples does not count.
    """
    figures, own = {}, labels[list(view.clients)]
    for test, statistics in tree_map(Tensor.cpu, view.tests).items():
        weights = {"balanced": torch.ones_like(own), "own": own}[test]
        values = metric.values(statistics, weights)
        weights = torch.where(values.isnan(), 0.0, weights if metric.as_tested else (weights > 0).to(own))
        filled = values.nan_to_num(0) * weights
        by_class = (filled.sum(0) / weights.sum(0)).tolist()
        figures[test] = _figures(view, filled.sum(1) / weights.sum(1), by_class, len(labels))
    return figures


def _reported_view(view: View, setup: Setup, num_clients: int) -> dict[str, Any]:
    """Return the figures of one view of which each client reports one accuracy."""
    own, by_class = 100 * view.tests["local"]["accuracy"].cpu(), [math.nan] * setup.num_classes
    values = {"balanced": torch.full_like(own, math.nan), "own": own}
    return {test: _figures(view, found, by_class, num_clients) for test, found in values.items()}


def _figures(view: View, by_client: Tensor, by_class: Sequence[float], num_clients: int) -> dict[str, Any]:
    everyone: list[float | None] = [None] * num_clients
    for client, value in zip(view.clients, by_client.tolist(), strict=True):
        everyone[client] = number(value)
    return {**spread(by_client), "per_class": [number(value) for value in by_class], "clients": everyone}


def spread(values: Tensor) -> dict[str, float | None]:
    """Return mean, standard deviation (of this population) and the mean of the worst tenth, at least one client."""
    present = values[~values.isnan()]
    if not len(present):
        return {"mean": None, "std": None, "worst_tenth": None}
    worst = present.sort().values[: math.ceil(len(present) / 10)]
    return {
        "mean": number(present.mean().item()),
        "std": number(present.std(correction=0).item()),
        "worst_tenth": number(worst.mean().item()),
    }


def number(value: float) -> float | None:
    """Return a number as JSON can hold it: NaN and infinity become `null`."""
    return value if math.isfinite(value) else None


def _primary_test(built: Built) -> str:
    """Return the test whose figure stands for a run: sites have no balanced one."""
    return "own" if built.federation.at_sites else "balanced"


def _short(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    keys = ("mean", "std", "worst_tenth")
    return result and {test: {key: result[test][key] for key in keys} for test in TESTS}  # type: ignore[return-value]
