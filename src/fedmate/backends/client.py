"""What one client does in a round, as every back end runs it: in a loop, under vmap, or at a site of its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.backends.validation import is_sound
from fedmate.core import (
    ClientData,
    EvaluationData,
    Method,
    Tree,
    all_finite,
    fold,
    mean_loss,
    remembered_features,
    select,
    statistics,
    where,
)
from fedmate.core.method import NUM_BYTES


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
    """What `judge` says of the `post` view; empty in a round that is not evaluated."""
    diagnostics: Tree
    declared: Tree
    """What its messages `down` and `up` say about their bytes, by part; empty where the tensors tell."""


def train_client(
    method: Method,
    round_number: int,
    client: Tree,
    download: Tree,
    data: ClientData,
    key: Tensor,
    tests: EvaluationData | None,
    rate: Tensor | None = None,
) -> ClientResult:
    """Run one client's part of a round; `download` holds the parts that crossed. Evaluate `post` if given `tests`.

    `rate` is the factor of the schedule in this round, where the number of the round is not to be used.
    """
    model = method.setup.model
    received = method.personal_params(client, download)
    with remembered_features():
        adjustment = method.adjustment(data)
        before = mean_loss(model, received, data, adjustment)
        factor = method.setup.training.rate_factor(round_number, method.setup.rounds) if rate is None else rate
        result = method.scaled(factor).local_update(client, download, data, fold(key, "update"))
        after = mean_loss(model, result.params, data, adjustment)
    upload = select(result.upload, method.wire(round_number).up)
    valid = is_sound(upload, after)
    # What diverged is thrown away: the client holds on to what it had.
    held = where(valid, result.params, received)
    with remembered_features():
        views = {} if tests is None else {"post": judge(method, held, data, tests, is_global=False)}
    return ClientResult(
        client=where(valid, result.client, client),
        upload=upload,
        valid=valid,
        loss=torch.stack([before, after]),
        views=views,
        diagnostics=result.diagnostics,
        declared=declared(download, upload),
    )


def declared(download: Tree, upload: Tree) -> Tree:
    """Return what the messages say about their bytes."""
    return {"down": download.get(NUM_BYTES, {}), "up": upload.get(NUM_BYTES, {})}


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
        trained = method.local_update(client, download, data, fold(key, "update"))
        adapted = method.personalise(trained.params, trained.client, download, data, fold(key, "personalise"))
        loss = mean_loss(method.setup.model, adapted, data, method.adjustment(data))
        valid = all_finite({**adapted, "loss": loss})
    return received, where(valid, adapted, received), valid


def view_client(
    method: Method, client: Tree, download: Tree, data: ClientData, key: Tensor, tests: EvaluationData
) -> tuple[Tree, Tree]:
    """Return the model that a client holds after a broadcast, and what `judge` says of that and of its extra views."""
    with remembered_features():
        received = method.personal_params(client, download)
        personal = method.personalise(received, client, download, data, fold(key, "personalise"))
        pre = judge(method, personal, data, tests, method.is_global)
        extra = method.extra_views(client, download, data, fold(key, "views"))
        others = {name: judge(method, params, data, tests, is_global=False) for name, params in extra.items()}
        return personal, {"pre": pre, **others}


def view_held_out_client(
    method: Method, client: Tree, download: Tree, data: ClientData, key: Tensor, tests: EvaluationData
) -> Tree:
    """Return what `judge` says of a held-out client's model, `before` and `after` it adapts."""
    before, after, _ = adapt_client(method, client, download, data, key)
    with remembered_features():
        return {
            "before": judge(method, before, data, tests, method.is_global),
            "after": judge(method, after, data, tests, is_global=False),
        }


def judge(
    method: Method, params: Tree, data: ClientData, tests: EvaluationData, is_global: bool, *, whole: bool = False
) -> Tree:
    """Return what metrics need of a model's answers, by test.

    In `balanced` all classes weigh alike. The model answers as one of the client's in the other two: `own` weighs the
    same samples by the client's distribution, `local` are samples of its own.

    `is_global` tells the global model from one that a client has trained for itself; `whole` keeps also what is too
    large for every client.
    """
    setup, found, counts = method.setup, Tree(), method.counts(data)
    model, classes, own = setup.model, setup.num_classes, setup.objective.for_own(counts, is_global)
    if tests.common is not None:
        plain = setup.objective.for_balanced(counts, is_global)
        balanced, owned = statistics(model, params, tests.common, classes, plain, own)
        shares = setup.class_shares(data)
        found["balanced"] = model.task.summary(balanced, torch.ones_like(shares), whole=whole)
        found["own"] = model.task.summary(owned, shares)
    if tests.local is not None:
        (local,) = statistics(model, params, tests.local, classes, own)
        found["local"] = model.task.summary(local, None)
    return found
