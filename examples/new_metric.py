"""A metric from another package: how well the worst class is recognised. docs/extend.md explains it."""

from torch import Tensor, inf

from fedmate.core import Tree
from fedmate.tasks.metrics import Metric


def _worst_recall(statistics: Tree, weights: Tensor) -> Tensor:
    """The share of the worst class that is recognised."""
    hits, labels, _ = statistics["tally"].unbind(1)
    recall: Tensor = 100 * hits / labels
    return recall.masked_fill((labels == 0) | (weights == 0), inf).amin(1)


WORST_CLASS = Metric(_worst_recall)
