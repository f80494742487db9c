"""The figures of a record: an evaluated round, each client, and the summary. All accuracies are in percent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedmate.backends.base import RoundResult, View
from fedmate.core import ClientData, Federation, Setup, tree_map
from fedmate.errors import UserError
from fedmate.experiment.build import Built
from fedmate.experiment.checkpoint import RunState
from fedmate.experiment.inputs import held_out
from fedmate.experiment.record import VIEWS
from fedmate.tasks.metrics import METRICS, by_client

NO_METRICS: dict[str, Any] = {"accuracy": dict.fromkeys(VIEWS), "loss": None}
"""The metrics of a run that ended before its first evaluation."""


def metrics_row(t: int, result: RoundResult, built: Built) -> dict[str, Any]:
    """Return the figures of an evaluated round."""
    federation, setup = built.federation, built.method.setup
    clients, held_out_clients = federation.clients, federation.held_out_clients
    labels, names = label_distribution(setup, clients), (*VIEWS, *sorted(set(result.views) - set(VIEWS)))
    accuracy, *further = [
        {name: (view := result.views[name]) and evaluate_view(view, labels, metric) for name in names}
        for metric in setup.model.task.metrics
    ]
    valid = [report for report in result.reports if report.valid]
    loss = {
        "before": number(sum(report.loss_before for report in valid) / len(valid)),
        "after": number(sum(report.loss_after for report in valid) / len(valid)),
    }
    row: dict[str, Any] = {"round": t + 1, "accuracy": accuracy, "loss": loss}
    row |= dict(zip(setup.model.task.metrics[1:], further, strict=True))
    if result.held_out_clients:
        views = {name: result.held_out_clients[name] for name in ("before", "after")}
        labels = label_distribution(setup, held_out_clients)
        row["newcomers"] = {name: evaluate_view(view, labels) for name, view in views.items()}
    return row


def primary_accuracy(built: Built, metrics: Mapping[str, Any]) -> float | None:
    """Return the mean of the primary view on the primary test in an evaluated round, in percent."""
    figures = metrics["accuracy"][built.method.primary_view]
    accuracy: float | None = figures and figures[primary_test(built)]["mean"]
    return accuracy


def summarise(built: Built, metrics: Mapping[str, Any], state: RunState) -> dict[str, Any]:
    """Return the summary of a run: its last metrics and the totals."""
    experiment, view, test = built.experiment, built.method.primary_view, primary_test(built)
    further = built.method.setup.model.task.metrics[1:]
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
        **{name: {v: _short(found) for v, found in metrics.get(name, {}).items()} for name in further},
        "bytes_up": sum(state.up.values()),
        "bytes_down": sum(state.down.values()),
        "bytes_up_items": state.up,
        "bytes_down_items": state.down,
        "seconds": state.seconds,
        **state.failures,
    }
    if state.round < experiment.general.rounds and state.failures.get("diverged_in_round") is None:
        summary["stopped_after_round"] = state.round
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
    federation, rows, tests = built.federation, list[dict[str, Any]](), tests_of(built.federation)
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
                rows[-1] |= {f"{name}_{test}": result and result[test]["clients"][i] for test in tests}
    columns = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in columns} for row in rows]


def label_distribution(setup: Setup, clients: Sequence[ClientData]) -> Tensor:
    """Return p_ik, the share of each class in each client's samples, `[clients, classes]`, float64."""
    counts = torch.stack([setup.class_counts(data) for data in clients])
    return counts.to(torch.float64).cpu() / counts.sum(1, keepdim=True).cpu()


def tests_of(federation: Federation) -> list[str]:
    """Return what models are tested on; the first test ranks them."""
    common = [] if federation.at_sites else ["balanced", "own"]
    return [*common, *["local"] * bool(federation.local_tests or federation.at_sites)]


def evaluate_view(view: View, labels: Tensor, name: str = "accuracy") -> dict[str, Any]:
    """Return the figures of a metric of one view on every test, `None` on a test for which it is not known.

    `labels` are all clients', as `label_distribution` gives them.
    """
    metric, figures, own = METRICS[name], dict[str, Any](), labels[list(view.clients)]
    for test, statistics in tree_map(Tensor.cpu, view.tests).items():
        if "tally" not in statistics:
            # Sites report figures.
            figures[test] = _figures(view, 100 * statistics[name], len(labels))
        elif test not in metric.tests or metric.needs not in statistics:
            figures[test] = None
        elif name == "confusion":
            figures[test] = {"matrix": statistics["confusion"][0].long().tolist()}
        else:
            weights = {"balanced": torch.ones_like(own), "own": own, "local": statistics["tally"][:, 1]}[test]
            try:
                found, by_class = by_client(metric, statistics, weights)
            except Exception as error:
                # Another package's fault: whatever it raises, say whose it is.
                raise UserError(f"The metric `{name}` cannot be computed ({error!r}).") from error
            of_classes = {} if by_class is None else {"per_class": [number(value) for value in by_class.tolist()]}
            figures[test] = {**_figures(view, found, len(labels)), **of_classes}
    return figures


def _figures(view: View, by_client: Tensor, num_clients: int) -> dict[str, Any]:
    everyone: list[float | None] = [None] * num_clients
    for client, value in zip(view.clients, by_client.tolist(), strict=True):
        everyone[client] = number(value)
    return {**spread(by_client), "clients": everyone}


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


def primary_test(built: Built) -> str:
    """Return the test whose figure stands for a run: sites have no balanced one."""
    return tests_of(built.federation)[0]


def _short(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    keys = ("mean", "std", "worst_tenth")
    if result is None:
        return None
    return {test: found and {key: found[key] for key in keys if key in found} for test, found in result.items()}
