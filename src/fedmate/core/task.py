"""The task of a network: what a sample's target is, how it is learnt and judged.

The model owns its task, and methods ask the model: for the loss of features, and for *instances*, the things that are
told apart one by one. So no method knows whether a sample has one class or one for each pixel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedmate.core.options import Registry
from fedmate.core.tree import Tree


class Instances(NamedTuple):
    """What is told apart one by one: samples, or the pixels of their feature maps."""

    z: Tensor  # features `[instances, width]`
    y: Tensor  # classes `[instances]`, int64, in range also where they do not count
    mask: Tensor  # which count, `[instances]`


class Adjustment(NamedTuple):
    """How a client's class shares enter its training loss. Methods pass it on to the model's loss as it is."""

    logits: Tensor | None = None  # what is added to each class's logits, `[classes]`
    weights: Tensor | None = None  # how much an instance of each class counts, `[classes]`


class Task(ABC):
    """How targets are learnt and answers judged. Everything maps under vmap, and nothing is read back to Python.

    Args:
        label_smoothing: the share of each label that is spread over all classes.
        metrics: what is computed of answers beside the primary metric.
    """

    primary_metric: ClassVar[str]

    def __init__(self, label_smoothing: float = 0.0, metrics: Sequence[str] = ()) -> None:
        self.label_smoothing = label_smoothing
        self.metrics = tuple(dict.fromkeys((self.primary_metric, *metrics)))

    @abstractmethod
    def loss(self, logits: Tensor, y: Tensor, mask: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss over what counts, a scalar.

        Args:
            logits: what the classifier answers, `[samples, classes, ...]`.
            y: targets, `[samples, ...]`.
            mask: `[samples]`, false for padding; `None` if no sample is.
            weights: how much an instance of each class counts, `[classes]`; all alike if `None`.
        """

    @abstractmethod
    def instances(self, z: Tensor, y: Tensor, mask: Tensor) -> Instances:
        """Return the instances of samples with features `z` and targets `y`."""

    @abstractmethod
    def statistics(self, logits: Tensor, y: Tensor, mask: Tensor, num_classes: int) -> Tree:
        """Return what answers are judged by: whole numbers that add up over samples, in any order."""

    @abstractmethod
    def summary(self, statistics: Tree, weights: Tensor | None, *, whole: bool = False) -> Tree:
        """Return what metrics need of statistics, float64.

        Args:
            statistics: the sums of a test.
            weights: of classes in this test, `[classes]`; `None`: as often as they come.
            whole: keep also what is too large for every client.
        """

    @abstractmethod
    def class_counts(self, y: Tensor, mask: Tensor, num_classes: int) -> Tensor:
        """Return how many instances of each class there are, `[classes]`, int64."""

    @abstractmethod
    def answer_shape(self, x: Tensor, num_classes: int) -> tuple[int, ...]:
        """Return the shape of the answers that a network must give to samples `x`."""


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the mean cross-entropy over the rows that count: all of them if `mask` is `None`."""
    if weights is not None:
        counts = torch.ones_like(labels, dtype=logits.dtype) if mask is None else mask.to(logits.dtype)
        counts = counts * weights[labels]
        # Chosen before the loss: a row that does not count must not send NaN back either.
        logits = torch.where((counts > 0)[:, None], logits, torch.zeros_like(logits))
        losses = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
        total = counts.sum()
        return (losses * counts).sum() / torch.where(total > 0, total, torch.ones_like(total))
    if mask is None:
        return functional.cross_entropy(logits, labels, label_smoothing=label_smoothing)
    # Chosen before the loss: a row that does not count must not send NaN back either.
    logits = torch.where(mask[:, None], logits, torch.zeros_like(logits))
    losses = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
    return torch.where(mask, losses, torch.zeros_like(losses)).sum() / mask.sum().clamp(min=1)


def adjusted(logits: Tensor, adjustment: Tensor | None) -> Tensor:
    """Return logits `[samples, classes, ...]` with what is added to each class's: `[classes]`, or nothing."""
    return logits if adjustment is None else logits + adjustment.reshape(-1, *[1] * (logits.dim() - 2))


TASKS: Registry[type[Task]] = Registry("tasks", {"classification": "fedmate.tasks.classification:Classification"})
"""The table of tasks. It stands here because a model without another task is given the first one."""
