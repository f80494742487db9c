"""Class prototypes: the mean feature of each class a client holds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedmate.components.prototype_scrutiny import size_view
from fedmate.core.data import Batch, ClientData, class_means
from fedmate.core.local import Objective
from fedmate.core.metrics import all_features
from fedmate.core.model import Model
from fedmate.core.task import Adjustment, Instances
from fedmate.core.tree import Tree


def local_prototypes(
    model: Model, params: Tree, data: ClientData, num_classes: int, key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return P_ik `[classes, width]`, zeros for a class without a sample, and n_ik `[classes]`, in evaluation mode.

    With a `key` they are those of samples augmented as in training.
    """
    return class_means(*model.instances(all_features(model, params, data, key), data.y, data.mask), num_classes)


def mix_prototypes(
    previous: Tensor, known: Tensor, sent: Tensor, counts: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Average the clients' prototypes of each class over the valid clients that hold it, weighted by their counts.

    Args:
        previous: the global prototypes so far, `[classes, width]`; a class without a holder keeps its own.
        known: which of them a client has sent, `[classes]`.
        sent: P_ik, `[clients, classes, width]`; rows of a class that the client does not hold are left out.
        counts: n_ik, `[clients, classes]`.
        valid: which clients count, `[clients]`; the rows of the others may hold anything.

    Returns:
        The prototypes and which are known now.
    """
    counts = counts.masked_fill(~valid[:, None], 0)
    holders = counts > 0
    held = holders.any(0)
    # Chosen, not multiplied: 0 * NaN is NaN.
    mean = (size_view(counts, sent.dtype)[..., None] * sent.masked_fill(~holders[..., None], 0)).sum(0)
    return torch.where(held[:, None], mean, previous), known | held


class Centres(NamedTuple):
    """What features are drawn to."""

    points: Tensor  # `[classes, width]`
    known: Tensor  # which classes have one, `[classes]`; samples of the others add 0
    weight: float  # of the centre loss
    # compare directions: features and centres of length 1, their squared distance summed over the width
    normalised: bool = False


def centre_loss(instances: Instances, centres: Centres) -> Tensor:
    """Return the squared distance of each feature to its class's centre, averaged over instances and the width."""
    z, y, mask = instances
    own = centres.points[y]
    if centres.normalised:
        distances = (functional.normalize(z, dim=-1) - functional.normalize(own, dim=-1)).square().sum(-1)
    else:
        distances = (z - own).square().mean(-1)
    counted = mask & centres.known[y]
    return torch.where(counted, distances, torch.zeros_like(distances)).sum() / mask.sum().clamp(min=1)


def centred_loss(model: Model, centres: Centres, adjustment: Adjustment | None = None) -> Objective:
    """Return the objective of an extractor: the loss of `supervised_loss`, plus the centre loss."""

    def objective(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        z, buffers = model.features(params, batch.x, train=True)
        plain = model.loss(params, z, batch.y, batch.counted, adjustment)
        return plain + centres.weight * centre_loss(model.instances(z, batch.y, batch.mask), centres), buffers

    return objective
