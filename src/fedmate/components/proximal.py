"""The proximal term: what keeps a client's model near another one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmate.core.data import Batch
from fedmate.core.local import Objective
from fedmate.core.tree import Tree, leaves, select, tree_map


def proximal(params: Tree, reference: Tree, parts: tuple[str, ...]) -> Tensor:
    """Return half the squared distance between two models, summed over the leaves of `parts`."""
    # By name: a tree merged from two may have its leaves in another order.
    squares = tree_map(lambda a, b: (a - b).square().sum(), select(params, parts), select(reference, parts))
    return torch.stack(list(leaves(squares))).sum() / 2


def proximal_loss(plain: Objective, reference: Tree, weight: float) -> Objective:
    """Return an objective plus `weight` times the proximal term of extractor and classifier."""
    if weight == 0:
        # Left out and not added as 0, so that a method without it is the plain one to the last bit.
        return plain

    def objective(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        loss, buffers = plain(params, batch)
        return loss + weight * proximal(params, reference, ("extractor", "classifier")), buffers

    return objective
