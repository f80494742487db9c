"""From a run's folder to one exported model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedmate import __version__
from fedmate.backends.base import one_thread
from fedmate.core import Method, Tree, fold, unmapped
from fedmate.errors import UserError
from fedmate.experiment.build import Signature, build
from fedmate.experiment.checkpoint import Restored, read_steadily
from fedmate.experiment.inputs import NO_INPUTS, UserInputs, split_samples
from fedmate.experiment.predict import PortableModel
from fedmate.experiment.priors import Calibration
from fedmate.experiment.record import Record
from fedmate.experiment.sections import Experiment


class TrainedRun(NamedTuple):
    """A run after `round` rounds, as far as its models need it."""

    experiment: Experiment
    method: Method
    signature: Signature
    round: int


def export_model(folder: Path, client: int | None, given: UserInputs = NO_INPUTS) -> PortableModel:
    """Return a client's model as it is after the next broadcast, the view `pre`, or the global one.

    Args:
        folder: of the run.
        client: its number; the global model if `None`.
        given: what the run took from Python: its network, and its data if the method trains once more before use, or
            if a calibrated run is not finished.

    Raises:
        UserError: there is no such model.
    """

    def export() -> PortableModel:
        restored = Restored(folder, given.module)
        given.check(restored.experiment)
        run = trained_run(restored)
        with torch.no_grad(), one_thread(), unmapped():
            if client is None:
                return describe(run, global_params(restored), "global")
            params = _personal_params(restored, client, given)
            counts = _class_counts(restored, client, given) if _tau(restored.method, client) else None
            return describe(run, params, client, counts)

    # A run that goes on deletes states that its new checkpoint does not need.
    return read_steadily(folder, export)


def describe(run: TrainedRun, params: Tree, client: int | str, counts: Sequence[int] | None = None) -> PortableModel:
    """Put the parameters of a run's model together with everything their use needs.

    Args:
        run: where they come from.
        params: a model of its method.
        client: the owner: a number, `global` or `newcomer`.
        counts: that client's training samples per class.
    """
    experiment, method = run.experiment, run.method
    origin = {
        "method": experiment.method.name,
        "dataset": experiment.dataset.name,
        "client": client,
        "round": run.round,
        "fedmate": __version__,
    }
    model = method.setup.model
    architecture: dict[str, Any] = {"name": experiment.model.name, "options": dict(experiment.model.options)}
    # A method that adds layers, and would again, is part of the network.
    if method.prepare(model) is not model:
        architecture["method"] = {"name": experiment.method.name, "options": dict(experiment.method.options)}
    tau = _tau(method, client)
    # A model that is not calibrated does not reveal its client's shares.
    shares = tuple(count / sum(counts) for count in counts) if counts and tau else None
    return PortableModel(model.to_module(params), run.signature, architecture, origin, Calibration(tau, shares))


def trained_run(restored: Restored) -> TrainedRun:
    """Return a run read from its folder, or raise `UserError` if it has no round behind it."""
    if restored.round:
        return TrainedRun(restored.experiment, restored.method, restored.signature, restored.round)
    folder = restored.folder
    if Record(folder).finished:
        raise UserError(f"`{folder}` diverged in its first round, so nothing is trained; lower the learning rates.")
    raise UserError(
        f"`{folder}` has no saved round, so nothing is trained yet; continue it with `fedmate run --resume {folder}`."
    )


def global_params(restored: Restored) -> Tree:
    """Return the aggregated model, or raise `UserError` if there is none."""
    model, params = restored.method.setup.model, restored.method.global_params(restored.server)
    name = restored.experiment.method.name
    if params is None:
        raise UserError(f"`{restored.folder}` ran `{name}`, which has no global model; export a client's.")
    if model.buffer_policy == "private" and model.init_params()["buffers"]:
        raise UserError(
            f"`{restored.folder}` kept BatchNorm statistics private (`model.buffers`), so that its global model has "
            "none; export a client's."
        )
    return params


def _personal_params(restored: Restored, client: int, given: UserInputs) -> Tree:
    """Return the model of the view `pre`, computed as evaluation does."""
    method, last = restored.method, restored.num_clients - 1
    if not 0 <= client <= last:
        away = restored.experiment.general.holdout_clients
        why = " (held-out clients have no model)" if away and client > last else ""
        raise UserError(f"`{restored.folder}` has clients 0 to {last}, not {client}{why}; choose one of these.")
    params = method.personal_params(restored.client(client), restored.download(torch.tensor(client)))
    if type(method).personalise is Method.personalise:
        return params
    data = build(restored.experiment, given, restored.checkpoint.initial()[0]).federation.clients[client]
    key = fold(restored.key, "round", restored.round - 1, client)
    return method.personalise(params, data, fold(key, "personalise"))


def _tau(method: Method, client: int | str) -> float:
    """Return the weight of a model's prior calibration, 0 without; `client` as in `describe`."""
    return method.setup.objective.prior_weight(client == "global" or (method.is_global and client != "newcomer"))


def _class_counts(restored: Restored, client: int, given: UserInputs) -> list[int]:
    """Return a client's training samples per class, from the record of a finished run or from its data."""
    row = next((row for row in Record(restored.folder).clients if row.get("client") == client), {})
    counts = [row.get(f"samples_{k}") for k in range(len(restored.signature.class_names))]
    found = [count for count in counts if isinstance(count, int) and count >= 0]
    if len(found) == len(counts) and any(found):
        return found
    split = split_samples(restored.experiment, given)
    if restored.checkpoint.initial()[1].get("partition", split.sha256) != split.sha256:
        raise UserError(
            f"`{restored.folder}` began with other samples than its data set holds now, so that the client's class "
            "shares are unknown; put the old files back."
        )
    return [int(count) for count in split.class_counts()[client]]
