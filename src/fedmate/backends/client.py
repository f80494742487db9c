"""What one client does in a round, as every back end runs it: in a loop, under vmap, or at a site of its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.core import (
    ClientData,
    Method,
    Tree,
    all_finite,
    class_accuracies,
    fold,
    mean_loss,
    select,
    where,
)


class Trained(NamedTuple):
    """What local training leaves behind.

    Attributes:
        client: the client's next state, its previous one if it is not valid.
        upload: the parts that cross.
        valid: false if the client diverged: its loss or its upload is not finite.
        loss: mean cross-entropy on its own samples before and after local training, `[2]`.
        views: accuracies of the `post` view for each class, `[classes]`; empty in a round that is not evaluated.
        diagnostics: what the method wants recorded.
    """

    client: Tree
    upload: Tree
    valid: Tensor
    loss: Tensor
    views: Tree
    diagnostics: Tree


def train_client(
    method: Method,
    round_number: int,
    client: Tree,
    download: Tree,
    data: ClientData,
    key: Tensor,
    test: ClientData | None,
) -> Trained:
    """Run one client's part of a round; `download` holds the parts that crossed. Evaluate `post` if `test` is given."""
    model = method.setup.model
    received = method.personal_params(client, download)
    before = mean_loss(model, received, data)
    result = method.local_update(client, download, data, fold(key, "update"))
    after = mean_loss(model, result.params, data)
    upload = select(result.upload, method.wire(round_number).up)
    valid = all_finite(upload) & torch.isfinite(after)
    # What diverged is thrown away: the client holds on to what it had.
    held = where(valid, result.params, received)
    return Trained(
        client=where(valid, result.client, client),
        upload=upload,
        valid=valid,
        loss=torch.stack([before, after]),
        views={} if test is None else {"post": class_accuracies(model, held, test, method.setup.num_classes)},
        diagnostics=result.diagnostics,
    )


def view_client(method: Method, client: Tree, download: Tree, data: ClientData, key: Tensor, test: ClientData) -> Tree:
    """Return the accuracies for each class of the `pre` view and the method's extra views after a broadcast."""
    personal = method.personalise(method.personal_params(client, download), data, fold(key, "personalise"))
    views = {"pre": personal, **method.extra_views(client, download, data, fold(key, "views"))}
    classes = method.setup.num_classes
    return {name: class_accuracies(method.setup.model, params, test, classes) for name, params in views.items()}
