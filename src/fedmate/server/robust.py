"""Aggregators that a few clients cannot lead astray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedmate.core import Tree, tree_map
from fedmate.core.server import Aggregator


@final
@dataclass(frozen=True, kw_only=True)
class Median(Aggregator):
    """The median of each number over clients, all of whom weigh alike; of two in the middle their mean.

    Yin, Chen, Kannan and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML
    2018.
    """

    citation: ClassVar[str] = "median2018"

    def __call__(self, uploads: Tree, weights: Tensor) -> Tree:
        """Sort each number with rows of weight 0 last, and take the middle of the others."""
        valid = weights > 0
        count = valid.sum()
        middle = torch.stack([count - 1, count]).clamp(min=0).div(2, rounding_mode="floor")

        def median(leaf: Tensor) -> Tensor:
            kind = torch.finfo(leaf.dtype) if leaf.is_floating_point() else torch.iinfo(leaf.dtype)
            absent = ~valid.reshape(-1, *[1] * (leaf.dim() - 1))
            pair = leaf.masked_fill(absent, kind.max).sort(0).values.index_select(0, middle)
            # Half of each, for the sum of two large numbers is infinite.
            return pair.mul(0.5).sum(0) if leaf.is_floating_point() else pair.double().mean(0).round().to(leaf.dtype)

        return tree_map(median, uploads)
