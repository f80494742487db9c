"""A client that was not in training makes a run's model its own: the broadcast, one local update, a test."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import nn

from fedmate.backends.base import View, initial_newcomer, one_thread, welcome
from fedmate.backends.client import Adapted, accuracies, adapt_client
from fedmate.core import ClientData, Tree, class_counts, fold, unmapped
from fedmate.data import Samples
from fedmate.data.arrays import Pool
from fedmate.errors import UserError
from fedmate.experiment.evaluate import TESTS, evaluate_view, label_distribution
from fedmate.experiment.export import describe, global_params, untrained
from fedmate.experiment.newcomer import Newcomer, read_newcomer
from fedmate.experiment.partitioning import ready
from fedmate.experiment.predict import PortableModel, check_target
from fedmate.experiment.restore import Restored, read_steadily

FEW = 100
"""Below that many test samples an accuracy is uncertain by five points and more (one standard error)."""

_NAMES = {"before": "the model it received (`before`)", "global": "the aggregated model (`global`)"}


@final
@dataclass(frozen=True, eq=False, repr=False)
class Adaptation:
    """What a newcomer gets out of a run.

    Attributes:
        model: its own model now, the one it received if training diverged.
        accuracy: in percent, by model (`before` and `after` it adapts, and `global`, the aggregated one, where there is
            one) and test (`balanced`, `own`); `None` if the test part has no sample that counts.
        samples: how many there were, by part (`train`, `test`) and the name of each class that occurs in one of them.
        diverged: whether training went to infinity.
        notes: sentences the user should read.
    """

    model: PortableModel
    accuracy: Mapping[str, Mapping[str, float | None]]
    samples: Mapping[str, Mapping[str, int]]
    diverged: bool
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        """Say what came of it."""
        figures = [self.accuracy[view]["own"] for view in ("before", "after")]
        before, after = ("-" if figure is None else f"{figure:.2f} %" for figure in figures)
        origin = self.model.origin
        return f"Adaptation({origin['method']} on {origin['dataset']}: own {before} before, {after} after)"


def adapt(folder: Path, data: Pool | Path, to: Path | None = None, module: nn.Module | None = None) -> Adaptation:
    """Let a newcomer adapt to a run, test it, and save its model if asked to.

    It is newcomer 0 after the run's last round: on that newcomer's samples this gives what `holdout_clients` gives.

    Args:
        folder: the run's.
        data: the newcomer's samples, before they are normalised.
        to: where to save its model.
        module: the network, if the run took it from Python.

    Raises:
        UserError: something does not fit; nothing was written.
    """
    if to is not None:
        check_target(to)
    restored = read_steadily(folder, lambda: Restored(folder, module))
    if not restored.round:
        raise untrained(folder)
    newcomer = read_newcomer(data, restored.signature, restored.experiment.general.seed)
    parts = {"train": _ready("train", newcomer.train, restored), "test": _ready("test", newcomer.test, restored)}
    with torch.no_grad(), one_thread(), unmapped():
        adapted = _train(restored, parts["train"])
        accuracy = {view: _accuracy(restored, one, parts) for view, one in _models(restored, adapted).items()}
        counts = class_counts(parts["train"], restored.method.setup.num_classes).tolist()
        model = describe(restored, adapted.after, "newcomer", counts)
    if to is not None:
        model.save(to)
    notes = _notes(newcomer, adapted, accuracy)
    if restored.method.own_adjustment(parts["train"], is_common=True) is not None and sum(map(bool, counts)) == 1:
        told = "the model" if restored.method.adjustment(parts["train"]) is not None else "a global model"
        notes = (*notes, f"the newcomer holds one class, and {told} is told so: its `own` is 100 % whatever it is.")
    return Adaptation(model, accuracy, _samples(restored, parts), not adapted.valid, notes)


def _ready(part: str, samples: Samples, restored: Restored) -> ClientData:
    """Put samples into the run's precision, to be read as its clients read theirs."""
    signature = restored.signature
    ready_ = ready(restored.experiment, signature.normalisation, Samples(samples.x.astype(np.float64), samples.y))
    if not torch.isfinite(ready_.x).all():
        raise UserError(
            f"`data` holds {part} samples that are too large for {signature.dtype}, the run's precision; check the "
            "scale of its numbers."
        )
    return ready_


def _train(restored: Restored, data: ClientData) -> Adapted:
    method, key = restored.method, restored.key
    download = welcome(method, restored.server, key.device)
    moment = fold(key, "newcomer round", restored.round - 1, 0)
    return adapt_client(method, initial_newcomer(method, key, 0), download, data, moment)


class _Tested(NamedTuple):
    """A model, and whether it is the global one: not one that somebody has trained for himself."""

    params: Tree
    is_common: bool


def _models(restored: Restored, adapted: Adapted) -> dict[str, _Tested]:
    models = {"before": _Tested(adapted.before, restored.method.is_common), "after": _Tested(adapted.after, False)}
    # Some methods have no global model, and private statistics belong to none.
    with suppress(UserError):
        models["global"] = _Tested(global_params(restored), True)
    return models


def _accuracy(restored: Restored, tested: _Tested, parts: Mapping[str, ClientData]) -> dict[str, float | None]:
    setup = restored.method.setup
    found = accuracies(restored.method, tested.params, parts["train"], parts["test"], tested.is_common)
    figures = evaluate_view(View((0,), found[None]), label_distribution([parts["train"]], setup.num_classes))
    return {test: figures[test]["mean"] for test in TESTS}


def _samples(restored: Restored, parts: Mapping[str, ClientData]) -> dict[str, dict[str, int]]:
    names = restored.signature.class_names
    counts = {part: class_counts(data, len(names)).tolist() for part, data in parts.items()}
    present = [k for k in range(len(names)) if any(count[k] for count in counts.values())]
    return {part: {names[k]: count[k] for k in present} for part, count in counts.items()}


def _notes(newcomer: Newcomer, adapted: Adapted, accuracy: Mapping[str, Mapping[str, float | None]]) -> tuple[str, ...]:
    notes = []
    if newcomer.held_back:
        held, total = len(newcomer.test.y), len(newcomer.test.y) + len(newcomer.train.y)
        notes.append(f"there is no test part: {held} of {total} samples are held back for it.")
    if not adapted.valid:
        notes.append("training diverged (not finite): the newcomer keeps the model it received.")
    own = {view: figures["own"] for view, figures in accuracy.items() if figures["own"] is not None}
    best = max(own, key=lambda view: own[view], default="after")
    # Beyond rounding, which would print one figure as better than itself.
    if own and own[best] > own["after"] + 1e-9:
        kind, count = "held-back" if newcomer.held_back else "test", len(newcomer.test.y)
        notes.append(
            f"{_NAMES[best]} is better than the adapted one on the {count} {kind} sample{'s' * (count > 1)}: own "
            f"{own[best]:.2f} % against {own['after']:.2f} %{', but so few decide little' * (count < FEW)}."
        )
    return tuple(notes)
