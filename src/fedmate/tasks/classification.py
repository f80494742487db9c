"""Classification: one class for each sample."""

from __future__ import annotations

from typing import final

from torch import Tensor

from fedmate.core.data import class_members
from fedmate.core.task import Instances, Task, cross_entropy


@final
class Classification(Task):
    """One class for each sample, learnt by cross-entropy."""

    def loss(self, logits: Tensor, y: Tensor, mask: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(logits, y, mask, weights, self.label_smoothing)

    def instances(self, z: Tensor, y: Tensor, mask: Tensor) -> Instances:
        """Return the samples themselves."""
        return Instances(z, y, mask)

    def class_counts(self, y: Tensor, mask: Tensor, num_classes: int) -> Tensor:
        """Count the samples of each class."""
        return class_members(y, mask, num_classes).sum(0)

    def answer_shape(self, x: Tensor, num_classes: int) -> tuple[int, ...]:
        """Ask for one logit for each class."""
        return len(x), num_classes
