"""From a run's folder to one model that leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import fedmate
from fedmate.backends.base import one_thread
from fedmate.core import Method, Tree, fold, unmapped
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.given import NOTHING, Given
from fedmate.experiment.portable import PortableModel
from fedmate.experiment.record import Record
from fedmate.experiment.restore import Restored, read_steadily


def export_model(folder: Path, client: int | None, given: Given = NOTHING) -> PortableModel:
    """Return a client's model as it is after the next broadcast, the view `pre`, or the global one.

    Args:
        folder: the run's.
        client: its number; the global model if `None`.
        given: what the run took from Python: its network, and its data if the method trains once more before use.

    Raises:
        UserError: there is no such model.
    """
    # A run that is going on takes away what its new checkpoint does not need.
    return read_steadily(folder, lambda: _export(Restored(folder, given.module), client, given))


def describe(restored: Restored, params: Tree, client: int | str) -> PortableModel:
    """Put parameters that came out of a run together with what is known about them.

    Args:
        restored: the run.
        params: a model of its method.
        client: whose they are: a number, `global` or `newcomer`.
    """
    experiment = restored.experiment
    origin = {
        "method": experiment.method.name,
        "dataset": experiment.dataset.name,
        "client": client,
        "round": restored.round,
        "fedmate": fedmate.__version__,
    }
    method, model = restored.method, restored.method.setup.model
    architecture: dict[str, Any] = {"name": experiment.model.name, "options": dict(experiment.model.options)}
    # A method that adds layers, and would again, is part of what the network is.
    if method.prepare(model) is not model:
        architecture["method"] = {"name": experiment.method.name, "options": dict(experiment.method.options)}
    return PortableModel(model.to_module(params), restored.card, architecture, origin)


def _export(restored: Restored, client: int | None, given: Given) -> PortableModel:
    given.check(restored.experiment)
    if not restored.round:
        raise untrained(restored.folder)
    with torch.no_grad(), one_thread(), unmapped():
        if client is None:
            return describe(restored, global_params(restored), "global")
        return describe(restored, _personal_params(restored, client, given), int(client))


def untrained(folder: Path) -> UserError:
    """Return what to say about a run that has no round behind it."""
    if Record(folder).finished:
        return UserError(f"`{folder}` diverged in its first round, so nothing is trained; lower the learning rates.")
    return UserError(
        f"`{folder}` has no saved round, so nothing is trained yet; continue it with `fedmate run --resume {folder}`."
    )


def _personal_params(restored: Restored, client: int, given: Given) -> Tree:
    """Return what evaluation calls `pre`, computed as it is there."""
    method, last = restored.method, restored.num_clients - 1
    if not 0 <= client <= last:
        away = restored.experiment.general.holdout_clients
        why = " (newcomers were kept out of training, so they have no model)" if away and client > last else ""
        raise UserError(f"`{restored.folder}` has clients 0 to {last}, not {client}{why}; choose one of these.")
    params = method.personal_params(restored.client(client), restored.download(torch.tensor(client)))
    if type(method).personalise is Method.personalise:
        return params
    data = build(restored.experiment, given, restored.checkpoint.initial()[0]).federation.clients[client]
    key = fold(restored.key, "round", restored.round - 1, client)
    return method.personalise(params, data, fold(key, "personalise"))


def global_params(restored: Restored) -> Tree:
    """Return the aggregated model, or raise `UserError` if there is none."""
    model, params = restored.method.setup.model, restored.method.global_params(restored.server)
    name = restored.experiment.method.name
    if params is None:
        raise UserError(f"`{restored.folder}` ran `{name}`, which has no global model; export a client's.")
    if model.buffer_policy == "private" and model.init_params()["buffers"]:
        raise UserError(
            f"`{restored.folder}` kept BatchNorm statistics private (`model.buffers`), so that no statistics belong to "
            "the global model; export a client's."
        )
    return params
