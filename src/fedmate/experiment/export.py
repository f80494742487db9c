"""From a run's folder to one model that leaves it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch

import fedmate
from fedmate.backends.base import one_thread
from fedmate.components.prior_calibration import Calibrated
from fedmate.core import Method, Tree, fold, unmapped
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.config import Experiment
from fedmate.experiment.partitioning import split_samples
from fedmate.experiment.predict import PortableModel
from fedmate.experiment.priors import Calibration
from fedmate.experiment.record import Record
from fedmate.experiment.restore import Restored, read_steadily
from fedmate.experiment.signature import Signature
from fedmate.experiment.user_inputs import NO_INPUTS, UserInputs


def export_model(folder: Path, client: int | None, given: UserInputs = NO_INPUTS) -> PortableModel:
    """Return a client's model as it is after the next broadcast, the view `pre`, or the global one.

    Args:
        folder: the run's.
        client: its number; the global model if `None`.
        given: what the run took from Python: its network, and its data if the method trains once more before use, or
            if a calibrated run is not finished.

    Raises:
        UserError: there is no such model.
    """
    # A run that is going on takes away what its new checkpoint does not need.
    return read_steadily(folder, lambda: _export(Restored(folder, given.module), client, given))


class Lineage(Protocol):
    """What has to be known about a run to make sense of its parameters."""

    @property
    def experiment(self) -> Experiment:
        """As it was declared."""

    @property
    def method(self) -> Method:
        """With its setup."""

    @property
    def signature(self) -> Signature:
        """What its networks read and answer."""

    @property
    def round(self) -> int:
        """How many rounds are done."""


def describe(run: Lineage, params: Tree, client: int | str, counts: Iterable[int] | None = None) -> PortableModel:
    """Put parameters that came out of a run together with what is known about them.

    Args:
        run: where they come from.
        params: a model of its method.
        client: whose they are: a number, `global` or `newcomer`.
        counts: how many training samples of each class that client holds.
    """
    experiment = run.experiment
    origin = {
        "method": experiment.method.name,
        "dataset": experiment.dataset.name,
        "client": client,
        "round": run.round,
        "fedmate": fedmate.__version__,
    }
    method, model = run.method, run.method.setup.model
    architecture: dict[str, Any] = {"name": experiment.model.name, "options": dict(experiment.model.options)}
    # A method that adds layers, and would again, is part of what the network is.
    if method.prepare(model) is not model:
        architecture["method"] = {"name": experiment.method.name, "options": dict(experiment.method.options)}
    tau = _tau(method, client)
    calibration = Calibration(tau) if counts is None else Calibration.of_client(tau, counts)
    return PortableModel(model.to_module(params), run.signature, architecture, origin, calibration)


def _export(restored: Restored, client: int | None, given: UserInputs) -> PortableModel:
    given.check(restored.experiment)
    if not restored.round:
        raise untrained(restored.folder)
    with torch.no_grad(), one_thread(), unmapped():
        if client is None:
            return describe(restored, global_params(restored), "global")
        params = _personal_params(restored, client, given)
        counts = _class_counts(restored, client, given) if _tau(restored.method, client) else None
        return describe(restored, params, int(client), counts)


def untrained(folder: Path) -> UserError:
    """Return what to say about a run that has no round behind it."""
    if Record(folder).finished:
        return UserError(f"`{folder}` diverged in its first round, so nothing is trained; lower the learning rates.")
    return UserError(
        f"`{folder}` has no saved round, so nothing is trained yet; continue it with `fedmate run --resume {folder}`."
    )


def _personal_params(restored: Restored, client: int, given: UserInputs) -> Tree:
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


def _tau(method: Method, client: int | str) -> float:
    """Return the weight of a model's prior calibration, 0 if it has none; `client` as in `describe`."""
    if not isinstance(method, Calibrated):
        return 0.0
    return method.prior_weight(client == "global" or (method.is_common and client != "newcomer"))


def _class_counts(restored: Restored, client: int, given: UserInputs) -> list[int]:
    """Return how many training samples of each class a client holds: the record says it once the run is finished."""
    rows, classes = Record(restored.folder).clients, range(len(restored.signature.class_names))
    if not rows:
        return _dealt_counts(restored, client, given)
    try:
        (row,) = (row for row in rows if row["client"] == client)
        counts = [int(row[f"samples_{k}"]) for k in classes]
        if min(counts) < 0 or not sum(counts):
            raise ValueError("no client holds this")
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"`{restored.folder / 'clients.csv'}` does not say how many samples of each class client {client} holds; "
            "put it back from a copy."
        ) from None
    return counts


def _dealt_counts(restored: Restored, client: int, given: UserInputs) -> list[int]:
    """Return the same of a run that is not finished, whose data have to be dealt again for that."""
    dealt = split_samples(restored.experiment, given)
    if restored.checkpoint.initial()[1].get("partition", dealt.sha256) != dealt.sha256:
        raise UserError(
            f"`{restored.folder}` was begun with other samples than its data set holds now, so that its client's class "
            "shares are not known; put the old files back."
        )
    counts: list[int] = dealt.class_counts()[client].tolist()
    return counts


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
