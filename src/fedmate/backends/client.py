"""What one client does in a round, as every back end runs it: in a loop, under vmap, or at a site of its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.backends.validation import is_sound
from fedmate.core import (
    ClientData,
    Method,
    Tree,
    all_finite,
    class_accuracies,
    fold,
    mean_loss,
    remembered_features,
    select,
    where,
)


class ClientResult(NamedTuple):
    """What a round gives for one client; a back end returns that of all participants as stacks, by their ids."""

    client: Tree
    """Its next state, the previous one if it is not valid."""
    upload: Tree
    """The parts that cross."""
    valid: Tensor
    """False if it diverged: its loss or its upload is not finite."""
    loss: Tensor
    """Mean cross-entropy on its own samples before and after local training, `[2]`."""
    views: Tree
    """The `accuracies` of the `post` view; empty in a round that is not evaluated."""
    diagnostics: Tree


def train_client(
    method: Method,
    round_number: int,
    client: Tree,
    download: Tree,
    data: ClientData,
    key: Tensor,
    test: ClientData | None,
) -> ClientResult:
    """Run one client's part of a round; `download` holds the parts that crossed. Evaluate `post` if `test` is given."""
    model = method.setup.model
    received = method.personal_params(client, download)
    with remembered_features():
        adjustment = method.adjustment(data)
        before = mean_loss(model, received, data, adjustment)
        result = method.local_update(client, download, data, fold(key, "update"))
        after = mean_loss(model, result.params, data, adjustment)
    upload = select(result.upload, method.wire(round_number).up)
    valid = is_sound(upload, after)
    # What diverged is thrown away: the client holds on to what it had.
    held = where(valid, result.params, received)
    with remembered_features():
        views = {} if test is None else {"post": accuracies(method, held, data, test, is_global=False)}
    return ClientResult(
        client=where(valid, result.client, client),
        upload=upload,
        valid=valid,
        loss=torch.stack([before, after]),
        views=views,
        diagnostics=result.diagnostics,
    )


def adapt_client(
    method: Method, client: Tree, download: Tree, data: ClientData, key: Tensor
) -> tuple[Tree, Tree, Tensor]:
    """Let a client that was not in training make a model its own.

    Returns:
        The model after its first broadcast; the model after a round of local training and `personalise`; and whether
        the latter and its loss are finite, or it is the first model again.
    """
    received = method.personal_params(client, download)
    with remembered_features():
        trained = method.local_update(client, download, data, fold(key, "update")).params
        adapted = method.personalise(trained, data, fold(key, "personalise"))
        loss = mean_loss(method.setup.model, adapted, data, method.adjustment(data))
        valid = all_finite({**adapted, "loss": loss})
    return received, where(valid, adapted, received), valid


def view_client(
    method: Method, client: Tree, download: Tree, data: ClientData, key: Tensor, test: ClientData
) -> tuple[Tree, Tree]:
    """Return the model that a client holds after a broadcast, and the `accuracies` of that and of its extra views."""
    with remembered_features():
        personal = method.personalise(method.personal_params(client, download), data, fold(key, "personalise"))
        pre = accuracies(method, personal, data, test, method.is_global)
        extra = method.extra_views(client, download, data, fold(key, "views"))
        others = {name: accuracies(method, params, data, test, is_global=False) for name, params in extra.items()}
        return personal, {"pre": pre, **others}


def view_held_out_client(
    method: Method, client: Tree, download: Tree, data: ClientData, key: Tensor, test: ClientData
) -> Tree:
    """Return a held-out client's `accuracies`, `before` and `after` it adapts."""
    before, after, _ = adapt_client(method, client, download, data, key)
    with remembered_features():
        return {
            "before": accuracies(method, before, data, test, method.is_global),
            "after": accuracies(method, after, data, test, is_global=False),
        }


def accuracies(method: Method, params: Tree, data: ClientData, test: ClientData, is_global: bool) -> Tensor:
    """Return the accuracies of a model, `[tests, classes]`: as it is, and adjusted to what a client holds.

    The first are for a test of which the client's distribution says nothing, the second for one that has it.
    `is_global` tells the global model from one that a client has trained for itself.
    """
    model, classes, objective = method.setup.model, method.setup.num_classes, method.setup.objective
    counts = method.counts(data)
    adjustments = objective.for_balanced(counts, is_global), objective.for_own(counts, is_global)
    return torch.stack([class_accuracies(model, params, test, classes, one) for one in adjustments])
