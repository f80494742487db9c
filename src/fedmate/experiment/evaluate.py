"""From accuracies by client and class to the figures of a record. All accuracies are in percent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedmate.backends.base import View
from fedmate.core import ClientData, class_counts

TESTS = ("balanced", "own")
"""`balanced` averages the accuracies over classes, `own` weighs them by the client's label distribution.

They are the two rows of a view's accuracies: `own` asks a model that its method adjusts to that distribution.
"""


def label_distribution(clients: Sequence[ClientData], num_classes: int) -> Tensor:
    """Return p_ik, the share of each class in each client's samples, `[clients, classes]`, float64."""
    counts = torch.stack([class_counts(data, num_classes) for data in clients])
    return counts.to(torch.float64).cpu() / counts.sum(1, keepdim=True).cpu()


def evaluate_view(view: View, labels: Tensor) -> dict[str, Any]:
    """Return the figures of one view on both tests.

    Args:
        view: accuracies of the clients in it.
        labels: of all clients, as `label_distribution` gives them.
    """
    accuracies = 100 * view.accuracies.cpu()
    own = labels[list(view.clients)]
    weights = (torch.ones_like(own), own)
    return {test: _figures(view, accuracies[:, i], weights[i], len(labels)) for i, test in enumerate(TESTS)}


def reported_view(view: View, num_clients: int) -> dict[str, Any]:
    """Return the figures of one view of which each client reports one accuracy, the second of each pair: `own`."""
    balanced, own = (100 * view.accuracies[:, :, 0].cpu()).unbind(1)
    classes = view.accuracies.shape[2]
    return {
        test: {**spread(values), "per_class": [None] * classes, "clients": _by_client(view, values, num_clients)}
        for test, values in zip(TESTS, (balanced, own), strict=True)
    }


def _figures(view: View, accuracies: Tensor, weights: Tensor, num_clients: int) -> dict[str, Any]:
    """Weigh classes for each client; a class without test samples does not count."""
    known = ~accuracies.isnan()
    weights = torch.where(known, weights, 0.0)
    filled = torch.where(known, accuracies, 0.0)
    by_client = (filled * weights).sum(1) / weights.sum(1)
    by_class = (filled * weights).sum(0) / weights.sum(0)
    everyone = _by_client(view, by_client, num_clients)
    return {**spread(by_client), "per_class": [number(v) for v in by_class.tolist()], "clients": everyone}


def _by_client(view: View, values: Tensor, num_clients: int) -> list[float | None]:
    everyone: list[float | None] = [None] * num_clients
    for client, value in zip(view.clients, values.tolist(), strict=True):
        everyone[client] = number(value)
    return everyone


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
