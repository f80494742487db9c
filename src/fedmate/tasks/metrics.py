"""Metrics: from what a test counts of a model's answers to numbers in percent.

A metric is a function of a task's statistics, stacked over clients, and of the weights of classes in the test,
`[clients, classes]`. It returns percent for each class, `[clients, classes]` with NaN where there is none, or for each
client, `[clients]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.core.options import Registry
from fedmate.core.tree import Tree, tree_map


class Metric(NamedTuple):
    """How statistics become figures."""

    values: Callable[[Tree, Tensor], Tensor]
    as_tested: bool = False  # whether classes weigh in the mean as they do in the test, or all that it has alike
    needs: str = "tally"  # the statistic that it is computed from
    tests: tuple[str, ...] = ("balanced", "own", "local")  # those on which it is known


def by_client(metric: Metric, statistics: Tree, weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a metric of each client, `[clients]`, and of each class, `[classes]`, if it is of classes.

    A class without test samples does not count.
    """
    values = metric.values(statistics, weights)
    if not isinstance(values, Tensor) or values.shape not in (weights.shape, weights.shape[:1]):
        found = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"it returned {found}, not a tensor [clients] or [clients, classes]")
    if values.dim() == 1:
        return values, None
    weights = torch.where(values.isnan(), 0.0, weights if metric.as_tested else (weights > 0).to(weights))
    filled = values.nan_to_num(0) * weights
    return filled.sum(1) / weights.sum(1), filled.sum(0) / weights.sum(0)


def site_figure(metric: Metric, statistics: Tree) -> Tensor:
    """Return a metric of a single model on samples of its own, as a share; NaN if one client cannot tell."""
    if metric.needs not in statistics:
        return torch.tensor(torch.nan, dtype=torch.float64)
    stacked = tree_map(lambda leaf: leaf[None], statistics)
    return by_client(metric, stacked, stacked["tally"][:, 1])[0][0] / 100


def _recall(statistics: Tree, weights: Tensor) -> Tensor:
    """The share of each class that is recognised, averaged over classes."""
    hits, labels, _ = _tally(statistics)
    return 100 * (hits / labels)


def _accuracy(statistics: Tree, weights: Tensor) -> Tensor:
    """The share of answers that are right."""
    return _recall(statistics, weights)


def _precision(statistics: Tree, weights: Tensor) -> Tensor:
    """The share of right answers among those that name a class, averaged over classes."""
    hits, labels, answers = _tally(statistics)
    # A class that is never answered has no right answers.
    return 100 * weights * hits / labels / torch.where(answers > 0, answers, 1)


def _f1(statistics: Tree, weights: Tensor) -> Tensor:
    """The harmonic mean of precision and recall, averaged over classes."""
    hits, labels, answers = _tally(statistics)
    return 200 * weights * hits / labels / (weights + answers)


def _auroc(statistics: Tree, weights: Tensor) -> Tensor:
    """The area under the ROC curve of each class against the rest, averaged over classes; not on `own`."""
    others, own = statistics["scores"].unbind(1)
    # Of all pairs of a sample of the class and another, those in the right order; in one bin they count half.
    below = others.cumsum(-1) - others / 2
    pairs = own.sum(-1) * others.sum(-1)
    area: Tensor = 100 * (own * below).sum(-1) / pairs
    return area


def _calibration_error(statistics: Tree, weights: Tensor) -> Tensor:
    """How far the probability of answers is from the share that is right, in 15 bins; not on `own`."""
    counts, hits, confidence = statistics["confidence"].unbind(1)
    error: Tensor = 100 * (hits - confidence).abs().sum(-1) / counts.sum(-1)
    return error


def _confusion(statistics: Tree, weights: Tensor) -> Tensor:
    """Samples by class (rows) and answer (columns), of the view `global` on `balanced`."""
    matrix: Tensor = statistics["confusion"]
    return matrix


def _tally(statistics: Tree) -> tuple[Tensor, ...]:
    """Return hits, labels and answers, `[clients, classes]` each."""
    tally: Tensor = statistics["tally"]
    return tally.unbind(1)


ACCURACY = Metric(_accuracy, as_tested=True)
RECALL = Metric(_recall)
PRECISION = Metric(_precision)
MACRO_F1 = Metric(_f1)
# Scores are counted as they come, so that no test can weigh them anew.
AUROC = Metric(_auroc, needs="scores", tests=("balanced", "local"))
CALIBRATION_ERROR = Metric(_calibration_error, needs="confidence", tests=("balanced", "local"))
CONFUSION = Metric(_confusion, needs="confusion", tests=("balanced",))

METRICS: Registry[Metric] = Registry(
    "metrics",
    {
        "accuracy": "fedmate.tasks.metrics:ACCURACY",
        "balanced_accuracy": "fedmate.tasks.metrics:RECALL",
        "recall": "fedmate.tasks.metrics:RECALL",
        "precision": "fedmate.tasks.metrics:PRECISION",
        "macro_f1": "fedmate.tasks.metrics:MACRO_F1",
        "auroc": "fedmate.tasks.metrics:AUROC",
        "calibration_error": "fedmate.tasks.metrics:CALIBRATION_ERROR",
        "confusion": "fedmate.tasks.metrics:CONFUSION",
    },
)
