"""Measuring a model: its features, its loss on what a client holds, its answers to a test."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedmate.core.data import ClientData
from fedmate.core.execution import current_memory, is_unmapped
from fedmate.core.layers import mask_context
from fedmate.core.model import Model
from fedmate.core.source import Source
from fedmate.core.task import Adjustment, adjusted
from fedmate.core.tree import Tree, leaves

CHUNK = 1000
"""Samples evaluated at once: enough to keep a processor busy, few enough for its memory."""
CORE_CHUNK = 100
"""The same for a single core, whose cache is small."""


def all_features(model: Model, params: Tree, data: ClientData, key: Tensor | None = None) -> Tensor:
    """Return the features of all samples, in evaluation mode, some at a time; with a `key`, of augmented samples."""
    size = chunk_size(model, data.rows.device)
    if key is not None:
        ids = torch.arange(data.rows.shape[0], device=data.rows.device)
        augmented = (data.draw(some, key) for some in torch.split(ids, size))
        return features_of(model, params, data.source, zip(augmented, torch.split(data.mask, size), strict=True))
    memory = current_memory()
    origin = (*leaves(params["extractor"]), *leaves(params["buffers"]), *data.source[:3], data.rows, data.mask)
    found = None if memory is None else memory.find(origin)
    if found is None:
        read = (data.source.take(rows) for rows in torch.split(data.rows, size))
        found = features_of(model, params, data.source, zip(read, torch.split(data.mask, size), strict=True))
        if memory is not None:
            memory.keep(origin, found)
    return found


def features_of(model: Model, params: Tree, source: Source, parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the features, in evaluation mode, of samples as a source keeps them, given in parts with their masks."""
    found = []
    for samples, mask in parts:
        with mask_context(mask):
            found.append(model.features(params, source.normalise(samples))[0])
    return found[0] if len(found) == 1 else torch.cat(found)


def chunk_size(model: Model, device: torch.device) -> int:
    """Return how many samples to look at together: no matter of speed where it changes what a layer computes."""
    one_core = is_unmapped() and device.type == "cpu" and not model.reads_batches
    return CORE_CHUNK if one_core else CHUNK


def mean_loss(model: Model, params: Tree, data: ClientData, adjustment: Adjustment | None = None) -> Tensor:
    """Return the mean loss over a client's samples, in evaluation mode, as its method sees it."""
    return model.loss(params, all_features(model, params, data), data.y, data.counted, adjustment)


def statistics(
    model: Model, params: Tree, test: ClientData, num_classes: int, *adjustments: Tensor | None
) -> list[Tree]:
    """Return the task's statistics of a model's answers to a test, once for each adjustment of its logits."""
    logits = model.classify(params, all_features(model, params, test))
    changed = (adjusted(logits, adjustment) for adjustment in adjustments)
    return [model.task.statistics(one, test.y, test.mask, num_classes) for one in changed]
