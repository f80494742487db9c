"""The rows of a record: an evaluated round, each client, and the summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedmate.backends.base import ClientReport, RoundResult, View
from fedmate.core import ClientData, Federation, class_counts
from fedmate.experiment.build import Built
from fedmate.experiment.checkpoint import RunState
from fedmate.experiment.evaluate import TESTS, evaluate_view, label_distribution, number, reported_view
from fedmate.experiment.partitioning import held_out

VIEWS = ("pre", "post", "global")

NO_METRICS: dict[str, Any] = {"accuracy": dict.fromkeys(VIEWS), "loss": None}
"""What a run says that ended before its first evaluation."""

FIGURES = ("mean", "std", "worst_tenth")


def metrics_row(t: int, result: RoundResult, federation: Federation) -> dict[str, Any]:
    """Return the figures of an evaluated round."""
    evaluate = _evaluation(federation)
    ordered = [*VIEWS, *sorted(set(result.views) - set(VIEWS))]
    views = {name: result.views[name] for name in ordered}
    row: dict[str, Any] = {
        "round": t + 1,
        "accuracy": {name: view and evaluate(view) for name, view in views.items()},
        "loss": _losses([report for report in result.reports if report.valid]),
    }
    if result.held_out_clients:
        row["newcomers"] = _newcomers(result.held_out_clients, federation)
    return row


def primary_test(federation: Federation) -> str:
    """Return the test whose figure stands for a run: sites have no balanced one."""
    return "own" if federation.at_sites else "balanced"


def primary_accuracy(built: Built, metrics: Mapping[str, Any]) -> float | None:
    """Return the mean of the primary view on the primary test in an evaluated round, in percent."""
    figures = metrics["accuracy"][built.method.primary_view]
    accuracy: float | None = figures and figures[primary_test(built.federation)]["mean"]
    return accuracy


def summarise(built: Built, metrics: Mapping[str, Any], state: RunState) -> dict[str, Any]:
    """Return the summary of a run: its last metrics and the totals."""
    experiment, view, test = built.experiment, built.method.primary_view, primary_test(built.federation)
    accuracy = {name: _short(result) for name, result in metrics["accuracy"].items()}
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
        "accuracy": accuracy,
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


def client_rows(federation: Federation, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each client's samples by class and its figures in the last round; empty where it has none.

    What lies with sites is not counted here.
    """
    if federation.at_sites:
        return [{"client": i, **_cells(metrics["accuracy"], i)} for i in range(len(federation.clients))]
    rows = _rows(federation.clients, federation.num_classes, metrics["accuracy"])
    if not federation.held_out_clients:
        return rows
    newcomers = metrics.get("newcomers") or dict.fromkeys(("before", "after"))
    more = _rows(federation.held_out_clients, federation.num_classes, newcomers)
    everything = [{"newcomer": 0, **row} for row in rows]
    everything += [{"newcomer": 1, **row, "client": len(rows) + row["client"]} for row in more]
    columns = dict.fromkeys(key for row in everything for key in row)
    return [{key: row.get(key) for key in columns} for row in everything]


def _evaluation(federation: Federation) -> Callable[[View], dict[str, Any]]:
    """Return what makes figures of a view."""
    if federation.at_sites:
        return lambda view: reported_view(view, len(federation.clients))
    labels = label_distribution(federation.clients, federation.num_classes)
    return lambda view: evaluate_view(view, labels)


def _newcomers(accuracies: Mapping[str, Tensor], federation: Federation) -> dict[str, Any]:
    everyone = tuple(range(len(federation.held_out_clients)))
    labels = label_distribution(federation.held_out_clients, federation.num_classes)
    return {name: evaluate_view(View(everyone, accuracies[name]), labels) for name in ("before", "after")}


def _losses(valid: Sequence[ClientReport]) -> dict[str, float | None]:
    return {
        "before": number(sum(report.loss_before for report in valid) / len(valid)),
        "after": number(sum(report.loss_after for report in valid) / len(valid)),
    }


def _short(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return result and {test: {key: result[test][key] for key in FIGURES} for test in TESTS}  # type: ignore[return-value]


def _rows(
    clients: Sequence[ClientData], num_classes: int, accuracy: Mapping[str, Mapping[str, Any] | None]
) -> list[dict[str, Any]]:
    rows = []
    for i, data in enumerate(clients):
        counts = class_counts(data, num_classes).tolist()
        row: dict[str, Any] = {"client": i, "samples": sum(counts)}
        row |= {f"samples_{k}": count for k, count in enumerate(counts)}
        rows.append(row | _cells(accuracy, i))
    return rows


def _cells(accuracy: Mapping[str, Mapping[str, Any] | None], client: int) -> dict[str, Any]:
    return {
        f"{name}_{test}": result and result[test]["clients"][client]
        for name, result in accuracy.items()
        for test in TESTS
    }
