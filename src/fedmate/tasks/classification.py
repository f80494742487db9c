"""Classification: one class for each sample."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from fedmate.core.data import class_members
from fedmate.core.task import Instances, Task, cross_entropy
from fedmate.core.tree import Tree


@final
class Classification(Task):
    """One class for each sample, learnt by cross-entropy."""

    def loss(self, logits: Tensor, y: Tensor, mask: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(logits, y, mask, weights, self.label_smoothing)

    def instances(self, z: Tensor, y: Tensor, mask: Tensor) -> Instances:
        """Return the samples themselves."""
        return Instances(z, y, mask)

    def statistics(self, logits: Tensor, y: Tensor, mask: Tensor, num_classes: int) -> Tree:
        """Count the answers to samples of each class: rows are classes, columns answers."""
        cells = y * num_classes + logits.argmax(-1)
        # Adding integers is exact in any order, and on a GPU nothing else of the kind can be captured.
        confusion = torch.zeros(num_classes**2, dtype=torch.int64, device=y.device).scatter_add(0, cells, mask.long())
        return {"confusion": confusion.reshape(num_classes, num_classes)}

    def summary(self, statistics: Tree, weights: Tensor | None, *, whole: bool = False) -> Tree:
        """Return a `tally` of each class's hits, labels and answers, `[3, classes]`.

        Hits and labels are counts. Answers are weighted as the test weighs the classes of the samples answered to.
        """
        confusion = statistics["confusion"].to(torch.float64)
        labels = confusion.sum(1)
        share = torch.ones_like(labels) if weights is None else (weights / labels).masked_fill(labels == 0, 0)
        answers = (share[:, None] * confusion).sum(0)
        tally = torch.stack([confusion.diagonal(), labels, answers])
        return {"tally": tally, "confusion": confusion} if whole else {"tally": tally}

    def class_counts(self, y: Tensor, mask: Tensor, num_classes: int) -> Tensor:
        """Count the samples of each class."""
        return class_members(y, mask, num_classes).sum(0)

    def answer_shape(self, x: Tensor, num_classes: int) -> tuple[int, ...]:
        """Ask for one logit for each class."""
        return len(x), num_classes
