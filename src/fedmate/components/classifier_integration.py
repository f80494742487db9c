"""Category-wise classifier integration (CCI): a global classifier, class by class, in step with the prototypes."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedmate.core.local import SGD, gradient
from fedmate.core.model import Model
from fedmate.core.tree import Tree, tree_map

Reduction = Literal["mean", "sum"]


def integrate(classifier: Tree, uploaded: Tree, shares: Tensor) -> Tree:
    """Average each class's row of the classifiers over the clients that hold the class.

    Args:
        classifier: the previous global classifier; leaves `[classes, ...]`. A class without a holder keeps its row.
        uploaded: the clients' classifiers, leaves `[clients, classes, ...]`.
        shares: alpha_ik, `[clients, classes]`, zeros for a class without a holder.
    """
    held = shares.sum(0) > 0

    def rows(previous: Tensor, stacked: Tensor) -> Tensor:
        share = shares.reshape(*shares.shape, *[1] * (stacked.dim() - 2)).to(stacked.dtype)
        mean = torch.where(share > 0, stacked * share, torch.zeros_like(stacked)).sum(0)
        return torch.where(held.reshape(-1, *[1] * (mean.dim() - 1)), mean, previous)

    return tree_map(rows, classifier, uploaded)


def prototype_loss(logits: Tensor, counted: Tensor, reduction: Reduction) -> Tensor:
    """Return the cross-entropy of prototypes, row k of `logits` standing for class k, over the classes `counted`."""
    return reduce_classes(-logits.log_softmax(-1).diagonal(), counted, reduction)


def reduce_classes(values: Tensor, counted: Tensor, reduction: Reduction) -> Tensor:
    """Average or sum `values` over the classes that are counted; 0 if there are none."""
    total = torch.where(counted, values, torch.zeros_like(values)).sum()
    return total if reduction == "sum" else total / counted.sum().clamp(min=1)


class Targets(NamedTuple):
    """What a classifier is tuned to."""

    prototypes: Tensor  # `[voices, classes, width]`: one for each class, or that of each client
    # of these, `[voices, classes]`; they add up to 1 for a class that is known, and what has none may be
    # anything
    weights: Tensor
    # which classes have a prototype, `[classes]`. The others are no targets, but their rows stay in the softmax
    # unless `mask_unknown`
    known: Tensor


def fine_tune(
    model: Model,
    classifier: Tree,
    targets: Targets,
    *,
    steps: int,
    learning_rate: float,
    reduction: Reduction,
    mask_unknown: bool = False,
) -> Tree:
    """Return the classifier after some full-batch steps of plain SGD on prototypes (eq. 8).

    Args:
        model: what the classifier belongs to.
        classifier: where to start.
        targets: the prototypes.
        steps: how many.
        learning_rate: eta.
        reduction: over the classes.
        mask_unknown: leave classes without a prototype out of the softmax.
    """
    prototypes, weights, known = targets
    heard = weights > 0
    prototypes = prototypes.masked_fill(~heard[..., None], 0)
    # A large finite number: minus infinity would make NaN of the rows of unknown classes.
    barrier = prototypes.new_zeros(known.shape).masked_fill(~known & mask_unknown, -1e9)
    optimiser = SGD(learning_rate)

    def loss(variables: Tree) -> tuple[Tensor, Tree]:
        answers = model.classify({"classifier": variables}, prototypes.flatten(0, 1))
        logits = answers.reshape(*heard.shape, -1) + barrier
        losses = -logits.log_softmax(-1).diagonal(dim1=-2, dim2=-1)
        return reduce_classes((weights * losses).sum(0), known, reduction), {}

    for _ in range(steps):
        gradients, _ = gradient(loss, classifier)
        classifier, _ = optimiser.step(classifier, gradients, optimiser.init(classifier))
    return classifier
