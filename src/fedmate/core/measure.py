"""Measuring a model: its loss on what a client holds, its accuracy for each class."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmate.core.data import ClientData, count_classes
from fedmate.core.layers import mask_context
from fedmate.core.local import cross_entropy
from fedmate.core.model import Model
from fedmate.core.tree import Tree

CHUNK = 1000
"""Samples evaluated at once: enough to keep a processor busy, few enough for its memory."""


def all_features(model: Model, params: Tree, data: ClientData, key: Tensor | None = None) -> Tensor:
    """Return the features of all samples, in evaluation mode, some at a time; with a `key`, of varied samples."""
    found = []
    for ids in torch.split(torch.arange(data.rows.shape[0], device=data.rows.device), CHUNK):
        x = data.source.read(data.rows[ids]) if key is None else data.vary(ids, key)
        with mask_context(data.mask[ids]):
            found.append(model.features(params, x)[0])
    return torch.cat(found)


def _logits(model: Model, params: Tree, data: ClientData) -> Tensor:
    return model.classify(params, all_features(model, params, data))


def mean_loss(model: Model, params: Tree, data: ClientData) -> Tensor:
    """Return the mean cross-entropy over a client's samples, in evaluation mode."""
    return cross_entropy(_logits(model, params, data), data.y, data.mask)


def class_accuracies(model: Model, params: Tree, test: ClientData, num_classes: int) -> Tensor:
    """Return the share of each class that is recognised, `[classes]`, float64; NaN where a class has no sample."""
    right = (_logits(model, params, test).argmax(-1) == test.y) & test.mask
    hits = count_classes(test.y, right, num_classes)
    return hits.to(torch.float64) / count_classes(test.y, test.mask, num_classes)
