"""Training a classifier on top of an extractor that stays as it is."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedmate.core.data import Batch, ClientData, batches, split, windows
from fedmate.core.layers import mask_context
from fedmate.core.local import Objective
from fedmate.core.metrics import all_features, chunk_size, features_of
from fedmate.core.model import Model
from fedmate.core.source import plain_source
from fedmate.core.task import Adjustment
from fedmate.core.tree import Tree


def frozen_batches(
    model: Model, params: Tree, data: ClientData, batch_size: int, epochs: int, key: Tensor
) -> Iterator[Batch]:
    """Yield what `batches` yields, with features in place of inputs: those of an extractor that is not trained.

    It runs in evaluation mode, on many samples at once, and only once in all if samples are not augmented.
    """
    if model.reads_batches:
        for batch in batches(data, batch_size, epochs, key):
            with mask_context(batch.mask):
                z, _ = model.features(params, batch.x)
            yield batch._replace(x=z)
        return
    if not data.is_augmented and epochs:
        z = all_features(model, params, data)
        data = data._replace(source=plain_source(z), rows=torch.arange(z.shape[0], device=z.device))
        for window in windows(data, batch_size, epochs, key):
            yield from split(window, batch_size)
        return
    for window in windows(data, batch_size, epochs, key):
        size = chunk_size(model, window.x.device)
        parts = zip(torch.split(window.x, size), torch.split(window.mask, size), strict=True)
        z = features_of(model, params, data.source, parts)
        yield from split(window._replace(x=z), batch_size)


def classifier_loss(model: Model, adjustment: Adjustment | None = None) -> Objective:
    """Return the mean loss of a batch from `frozen_batches`; `adjustment` as in `supervised_loss`."""

    def objective(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        return model.loss(params, batch.x, batch.y, batch.counted, adjustment), params["buffers"]

    return objective
