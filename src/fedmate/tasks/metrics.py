"""Metrics: from what a test counts of a model's answers to numbers in percent."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from fedmate.core.options import Registry
from fedmate.core.tree import Tree


class Metric(NamedTuple):
    """How a task's statistics become a number for each client.

    Attributes:
        values: of the statistics of a test, stacked over clients, and how much classes weigh in it, `[clients,
            classes]`: percent for each class, `[clients, classes]` with NaN where there is none, or `[clients]`.
        as_tested: whether the mean over classes weighs them as the test does; otherwise those in the test weigh alike.
    """

    values: Callable[[Tree, Tensor], Tensor]
    as_tested: bool = False


def _recall(statistics: Tree, weights: Tensor) -> Tensor:
    hits, labels, _ = _tally(statistics)
    return 100 * (hits / labels)


def _tally(statistics: Tree) -> tuple[Tensor, ...]:
    """Return hits, labels and answers, `[clients, classes]` each."""
    tally: Tensor = statistics["tally"]
    return tally.unbind(1)


ACCURACY = Metric(_recall, as_tested=True)
"""The share of answers that are right."""

METRICS: Registry[Metric] = Registry("metrics", {"accuracy": "fedmate.tasks.metrics:ACCURACY"})
