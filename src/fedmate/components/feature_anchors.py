"""Feature anchors: a point for each class that features are drawn to and that the classifier must recognise."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmate.core.data import class_members
from fedmate.core.model import Model
from fedmate.core.random import normal, permutation
from fedmate.core.task import Instances, cross_entropy
from fedmate.core.tree import Tree


def initial_anchors(num_classes: int, width: int, key: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `[classes, width]`: different unit vectors of the axes, or random directions if there are too few axes."""
    if num_classes <= width:
        return torch.eye(width, dtype=dtype, device=key.device)[permutation(key, width)[:num_classes]]
    return torch.nn.functional.normalize(normal(key, (num_classes, width), dtype))


def anchor_loss(instances: Instances, anchors: Tensor) -> Tensor:
    """Return the squared distance of features to their class's anchor, averaged in each class, then over all classes.

    Anchors are `[classes, width]`; a class without a sample adds 0.
    """
    z, y, mask = instances
    num_classes = anchors.shape[0]
    gaps = z - anchors[y]
    distances = torch.where(mask[:, None], gaps, torch.zeros_like(gaps)).square().sum(-1)
    counts = class_members(y, mask, num_classes).sum(0).clamp(min=1)
    return (distances / counts[y]).sum() / num_classes


def calibration_loss(model: Model, classifier: Tree, anchors: Tensor) -> Tensor:
    """Return the mean cross-entropy of a classifier on the anchors, that of class k standing for class k."""
    labels = torch.arange(anchors.shape[0], device=anchors.device)
    return cross_entropy(model.classify({"classifier": classifier}, anchors), labels, None)
