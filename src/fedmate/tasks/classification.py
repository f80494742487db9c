"""Classification: one class for each sample."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor

from fedmate.core.data import class_members
from fedmate.core.task import Instances, Task, cross_entropy
from fedmate.core.tree import Tree
from fedmate.tasks.metrics import METRICS

SCORE_BINS, ODDS = 1000, 20.0
"""How many bins scores are counted in, and the largest logarithm of odds that they tell apart."""
CONFIDENCE_BINS, PARTS = 15, 2**24
"""How many bins probabilities are counted in; sums of whole numbers, such parts of one, are the same in any order."""


@final
class Classification(Task):
    """One class for each sample, learnt by cross-entropy."""

    primary_metric: ClassVar[str] = "accuracy"

    @cached_property
    def needed(self) -> set[str]:
        """The statistics that the metrics need."""
        return {METRICS[name].needs for name in self.metrics}

    def loss(self, logits: Tensor, y: Tensor, mask: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(logits, y, mask, weights, self.label_smoothing)

    def instances(self, z: Tensor, y: Tensor, mask: Tensor) -> Instances:
        """Return the samples themselves."""
        return Instances(z, y, mask)

    def statistics(self, logits: Tensor, y: Tensor, mask: Tensor, num_classes: int) -> Tree:
        """Count the answers to samples of each class: rows are classes, columns answers.

        `scores` count samples of other classes and of each class by the odds that the model gives the class.
        `confidence` counts samples, hits and probabilities by the probability of the answer.
        """
        answers = logits.argmax(-1)
        confusion = _count(y * num_classes + answers, mask, num_classes**2).reshape(num_classes, num_classes)
        found = {"confusion": confusion}
        if "scores" in self.needed:
            chances = logits.log_softmax(-1)
            odds = (chances - (-chances.exp()).log1p()).clamp(-ODDS, ODDS)
            bins = ((odds + ODDS) * (SCORE_BINS / (2 * ODDS))).long().clamp(max=SCORE_BINS - 1)
            classes = torch.arange(num_classes, device=y.device)
            cells = ((y[:, None] == classes) * num_classes + classes) * SCORE_BINS + bins
            counted = mask[:, None].expand(cells.shape).flatten()
            scores = _count(cells.flatten(), counted, 2 * num_classes * SCORE_BINS)
            found["scores"] = scores.reshape(2, num_classes, SCORE_BINS)
        if "confidence" in self.needed:
            best = logits.softmax(-1).amax(-1).to(torch.float64)
            bins = (best * CONFIDENCE_BINS).long().clamp(max=CONFIDENCE_BINS - 1)
            whole = (best * PARTS).round().long()
            rows = [_count(bins, mask * worth, CONFIDENCE_BINS) for worth in (torch.ones_like(y), answers == y, whole)]
            found["confidence"] = torch.stack(rows)
        return found

    def summary(self, statistics: Tree, weights: Tensor | None, *, whole: bool = False) -> Tree:
        """Return a `tally` of each class's hits, labels and answers, `[3, classes]`, and what else metrics ask for.

        Hits and labels are counts. Answers are weighted as the test weighs the classes of the samples answered to.
        """
        confusion = statistics["confusion"].to(torch.float64)
        labels = confusion.sum(1)
        share = torch.ones_like(labels) if weights is None else (weights / labels).masked_fill(labels == 0, 0)
        answers = (share[:, None] * confusion).sum(0)
        found = {"tally": torch.stack([confusion.diagonal(), labels, answers])}
        if "scores" in statistics:
            found["scores"] = statistics["scores"].to(torch.float64)
        if "confidence" in statistics:
            counts, hits, chances = statistics["confidence"].to(torch.float64)
            found["confidence"] = torch.stack([counts, hits, chances / PARTS])
        return {**found, "confusion": confusion} if whole and "confusion" in self.needed else found

    def class_counts(self, y: Tensor, mask: Tensor, num_classes: int) -> Tensor:
        """Count the samples of each class."""
        return class_members(y, mask, num_classes).sum(0)

    def answer_shape(self, x: Tensor, num_classes: int) -> tuple[int, ...]:
        """Ask for one logit for each class."""
        return len(x), num_classes


def _count(cells: Tensor, worth: Tensor, size: int) -> Tensor:
    """Add up whole numbers by cell: exact in any order, and it can be captured on a GPU and mapped."""
    return torch.zeros(size, dtype=torch.int64, device=cells.device).scatter_add(0, cells, worth.long())
