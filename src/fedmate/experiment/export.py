"""From a run's folder to one model: exported as it is, or adapted by an unseen client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import nn

from fedmate import __version__
from fedmate.backends.base import View, initial_held_out_client, one_thread, welcome
from fedmate.backends.client import adapt_client, judge
from fedmate.core import ClientData, EvaluationData, Method, Tree, fold, stack, unmapped
from fedmate.data import Samples
from fedmate.data.arrays import Pool
from fedmate.errors import UserError
from fedmate.experiment.build import Signature, build
from fedmate.experiment.checkpoint import Restored, read_steadily
from fedmate.experiment.evaluate import evaluate_view, label_distribution
from fedmate.experiment.inputs import NO_INPUTS, UserInputs, ready, split_samples
from fedmate.experiment.predict import Calibration, PortableModel, check_target
from fedmate.experiment.record import Record
from fedmate.experiment.sample_files import read_client
from fedmate.experiment.sections import Experiment


class TrainedRun(NamedTuple):
    """A run after `round` rounds, as far as its models need it."""

    experiment: Experiment
    method: Method
    signature: Signature
    round: int


def export_model(folder: Path, client: int | None, given: UserInputs = NO_INPUTS) -> PortableModel:
    """Return a client's model as it is after the next broadcast, the view `pre`, or the global one for `None`.

    `given` is what the run took from Python: its network, and its data if the method trains once more before use, or if
    a calibrated run is not finished.
    """

    def export() -> PortableModel:
        restored = Restored(folder, given.module)
        given.check(restored.experiment)
        run = _trained_run(restored)
        with torch.no_grad(), one_thread(), unmapped():
            if client is None:
                return describe(run, _global_params(restored), "global")
            params = _personal_params(restored, client, given)
            counts = _class_counts(restored, client, given) if _tau(restored.method, client) else None
            return describe(run, params, client, counts)

    # A run that goes on deletes states that its new checkpoint does not need.
    return read_steadily(folder, export)


def describe(run: TrainedRun, params: Tree, client: int | str, counts: Sequence[int] | None = None) -> PortableModel:
    """Put the parameters of a run's model together with everything their use needs.

    Its owner, `client`, is a number, `global` or `newcomer`, and has `counts` training samples per class.
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


def _trained_run(restored: Restored) -> TrainedRun:
    if restored.round:
        return TrainedRun(restored.experiment, restored.method, restored.signature, restored.round)
    folder = restored.folder
    if Record(folder).finished:
        raise UserError(f"`{folder}` diverged in its first round, so nothing is trained; lower the learning rates.")
    raise UserError(
        f"`{folder}` has no saved round, so nothing is trained yet; continue it with `fedmate run --resume {folder}`."
    )


def _global_params(restored: Restored) -> Tree:
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
    state, download = restored.client(client), restored.download(torch.tensor(client))
    params = method.personal_params(state, download)
    if type(method).personalise is Method.personalise:
        return params
    data = build(restored.experiment, given, restored.checkpoint.initial()[0]).federation.clients[client]
    key = fold(restored.key, "round", restored.round - 1, client)
    return method.personalise(params, state, download, data, fold(key, "personalise"))


def _tau(method: Method, client: int | str) -> float:
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


@final
@dataclass(frozen=True, eq=False)
class Adaptation:
    """The result of adapting.

    Attributes:
        model: the adapted model, or the one received if training diverged.
        accuracy: in percent, by model (`before` and `after` adapting, and `global`, the aggregated one, where there is
            one) and test (`balanced`, `own`); `None` if the test part has no sample that counts.
        samples: their number, by part (`train`, `test`) and the name of each class that occurs.
        diverged: whether training diverged.
        notes: warnings for the user.
    """

    model: PortableModel
    accuracy: Mapping[str, Mapping[str, float | None]]
    samples: Mapping[str, Mapping[str, int]]
    diverged: bool
    notes: tuple[str, ...]


def adapt(
    folder: str | Path, data: Pool | str | Path, *, to: str | Path | None = None, model: nn.Module | None = None
) -> Adaptation:
    """Let an unseen client adapt a run's model, as `fedmate adapt` does.

    It receives the broadcast, trains once on its own samples, and is tested before and after that. It is held-out
    client 0 after the last round: on the same samples this gives the figures of `holdout_clients`.

    Args:
        folder: the run's; it may be going on.
        data: the client's samples, before they are normalised: a `Pool`, or the path of an `.npz` file (`train_x`,
            `train_y`) or a `.csv` file (a row per sample, its class in the column `label`). Labels are the run's
            numbers or names of classes. Without a test part (`test_x`, `test_y`) a fifth of the samples is held back.
        to: a new file for the adapted model, `.safetensors` or `.pt2`.
        model: the network of a run on your own.

    Raises:
        UserError: something does not fit; nothing was written.

    Example:
        >>> import fedmate, tempfile
        >>> few = {"rounds": 1, "partition.clients": 2}
        >>> record = fedmate.run(method="fedavg", set=few, out=tempfile.mkdtemp() + "/run")
        >>> found = adapt(record.folder, Pool([[0.0] * 64, [16.0] * 64] * 5, [3, 8] * 5))
        >>> found.samples
        {'train': {'3': 4, '8': 4}, 'test': {'3': 1, '8': 1}}
        >>> found.model.origin["client"], sorted(found.accuracy["after"])
        ('newcomer', ['balanced', 'own'])
    """
    if to is not None:
        check_target(Path(to))
    data = data if isinstance(data, Pool) else Path(data)
    restored = read_steadily(Path(folder), lambda: Restored(Path(folder), model))
    run, method, key = _trained_run(restored), restored.method, restored.key
    # In the run's precision, as its clients read theirs.
    *raw, is_held_back = read_client(data, restored.signature, restored.experiment.general.seed)
    raw = [Samples(part.x.astype(np.float64), part.y) for part in raw]
    train, test = (ready(restored.experiment, restored.signature.normalisation, part) for part in raw)
    with torch.no_grad(), one_thread(), unmapped():
        round_key = fold(key, "newcomer round", restored.round - 1, 0)
        download = welcome(method, restored.server, key.device)
        client_state = initial_held_out_client(method, key, 0)
        before, after, valid = adapt_client(method, client_state, download, train, round_key)
        models = {"before": (before, method.is_global), "after": (after, False)}
        # Some methods have no global model, and private statistics belong to none.
        with suppress(UserError):
            models["global"] = (_global_params(restored), True)
        labels, accuracy = label_distribution(method.setup, [train]), dict[str, dict[str, Any]]()
        for name, (params, is_global) in models.items():
            found = judge(method, params, train, EvaluationData(test), is_global)
            figures = evaluate_view(View((0,), stack([found])), labels)
            accuracy[name] = {kind: found and found["mean"] for kind, found in figures.items()}
        held, tested = (method.setup.class_counts(part).tolist() for part in (train, test))
        adapted = describe(run, after, "newcomer", held)
    if to is not None:
        adapted.save(to)
    notes = _notes(train, test, is_held_back, accuracy, bool(valid))
    if sum(map(bool, held)) == 1:
        notes.append("the client holds one class and the model knows it, so `own` is 100 % for any model.")
    rows = [row for row in zip(restored.signature.class_names, held, tested, strict=True) if row[1] or row[2]]
    samples = {"train": {name: count for name, count, _ in rows}, "test": {name: count for name, _, count in rows}}
    return Adaptation(adapted, accuracy, samples, not valid, tuple(notes))


def _notes(
    train: ClientData,
    test: ClientData,
    is_held_back: bool,
    accuracy: Mapping[str, Mapping[str, float | None]],
    is_valid: bool,
) -> list[str]:
    notes = list[str]()
    if is_held_back:
        notes.append(
            f"there is no test part: {len(test.y)} of {len(test.y) + len(train.y)} samples are held back for it."
        )
    if not is_valid:
        notes.append("training diverged (not finite): the client keeps the model it received.")
    own = {view: figures["own"] for view, figures in accuracy.items() if figures["own"] is not None}
    best = max(own, key=lambda view: own[view], default="after")
    # By more than rounding.
    if own and own[best] > own["after"] + 1e-9:
        notes.append(
            f"the model `{best}` is better than the adapted one on the {len(test.y)} test samples: own {own[best]:.2f} "
            f"% against {own['after']:.2f} %."
        )
    return notes
