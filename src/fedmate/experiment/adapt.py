"""An unseen client adapts a run's model: it receives the broadcast, runs one local update, and is tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedmate.backends.base import View, initial_held_out_client, one_thread, welcome
from fedmate.backends.client import Adapted, accuracies, adapt_client
from fedmate.core import ClientData, Tree, class_counts, fold, unmapped
from fedmate.data import Samples, hold_back
from fedmate.data.arrays import Pool, as_numbers
from fedmate.data.npz import read_npz
from fedmate.errors import UserError, nearest
from fedmate.experiment.evaluate import TESTS, evaluate_view, label_distribution
from fedmate.experiment.export import describe, global_params, trained_run
from fedmate.experiment.partitioning import ready
from fedmate.experiment.predict import PortableModel, check_target
from fedmate.experiment.restore import Restored, read_steadily
from fedmate.experiment.sample_files import as_samples, excerpt, read_csv
from fedmate.experiment.signature import Signature


@final
@dataclass(frozen=True, eq=False, repr=False)
class Adaptation:
    """The result of adapting.

    Attributes:
        model: the adapted model, or the one received if training diverged.
        accuracy: in percent, by model (`before` and `after` adapting, and `global`, the aggregated one, where there is
            one) and test (`balanced`, `own`); `None` if the test part has no sample that counts.
        samples: their number, by part (`train`, `test`) and the name of each class that occurs.
        diverged: whether training diverged.
        notes: sentences the user should read.
    """

    model: PortableModel
    accuracy: Mapping[str, Mapping[str, float | None]]
    samples: Mapping[str, Mapping[str, int]]
    diverged: bool
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        figures = [self.accuracy[view]["own"] for view in ("before", "after")]
        before, after = ("-" if figure is None else f"{figure:.2f} %" for figure in figures)
        origin = self.model.origin
        return f"Adaptation({origin['method']} on {origin['dataset']}: own {before} before, {after} after)"


class UnseenClient(NamedTuple):
    """The samples of a client that was not in training.

    Attributes:
        train: raw samples to adapt on.
        test: raw samples to test on.
        held_back: whether the test part was taken from its samples, because it came without one.
    """

    train: Samples
    test: Samples
    held_back: bool


def adapt(folder: Path, data: Pool | Path, to: Path | None = None, module: nn.Module | None = None) -> Adaptation:
    """Let an unseen client adapt to a run, test it, and save its model if asked to.

    It is held-out client 0 after the last round: on the same samples this gives the figures of `holdout_clients`.

    Args:
        folder: of the run.
        data: the client's samples, before they are normalised.
        to: where to save its model.
        module: the network, if the run took it from Python.

    Raises:
        UserError: something does not fit; nothing was written.
    """
    if to is not None:
        check_target(to)
    restored = read_steadily(folder, lambda: Restored(folder, module))
    run, method = trained_run(restored), restored.method
    client = read_client(data, restored.signature, restored.experiment.general.seed)
    parts = {"train": _ready("train", client.train, restored), "test": _ready("test", client.test, restored)}
    with torch.no_grad(), one_thread(), unmapped():
        adapted = _train(restored, parts["train"])
        models = {"before": (adapted.before, method.is_global), "after": (adapted.after, False)}
        # Some methods have no global model, and private statistics belong to none.
        with suppress(UserError):
            models["global"] = (global_params(restored), True)
        accuracy = {name: _accuracy(restored, *model, parts) for name, model in models.items()}
        counts = {name: class_counts(part, method.setup.num_classes).tolist() for name, part in parts.items()}
        model = describe(run, adapted.after, "newcomer", counts["train"])
    if to is not None:
        model.save(to)
    notes = _notes(client, adapted, accuracy)
    if method.own_adjustment(parts["train"], is_global=True) is not None and sum(map(bool, counts["train"])) == 1:
        notes = (*notes, "the client holds one class and the model knows it, so `own` is 100 % for any model.")
    names = restored.signature.class_names
    present = [k for k in range(len(names)) if counts["train"][k] or counts["test"][k]]
    samples = {part: {names[k]: count[k] for k in present} for part, count in counts.items()}
    return Adaptation(model, accuracy, samples, not adapted.valid, notes)


def read_client(data: Pool | Path, signature: Signature, seed: int) -> UnseenClient:
    """Return an unseen client's samples, or raise `UserError` if the run's networks cannot read them.

    Args:
        data: samples in Python, or an `.npz` or `.csv` file.
        signature: of the networks.
        seed: chooses the samples that are held back if there is no test part.
    """
    if isinstance(data, Pool):
        name, parts = "data", _from_pool(data, signature)
    elif data.suffix.lower() == ".csv":
        name, parts = str(data), [_samples(str(data), str(data), *read_csv(data, labelled=True), signature)]
    elif data.suffix.lower() == ".npz":
        name, parts = str(data), _from_npz(data, signature)
    else:
        raise UserError(f"`{data}` is not a file of samples; give an `.npz` or `.csv` file.")
    return UnseenClient(parts[0], parts[1], False) if len(parts) == 2 else _hold_back(name, parts[0], seed)


def number_labels(name: str, labels: NDArray[Any], class_names: Sequence[str]) -> NDArray[np.int64]:
    """Return labels as class numbers; words are names of classes if all of them are, otherwise numbers in writing.

    Example:
        >>> number_labels("y", np.array(["b", "a"]), ["a", "b"]).tolist()
        [1, 0]
        >>> number_labels("y", np.array(["1", "0"]), ["a", "b"]).tolist()
        [1, 0]
    """
    if labels.dtype.kind == "U":
        words, places = labels.reshape(-1).tolist(), {known: i for i, known in enumerate(class_names)}
        if {*words} <= {*places}:
            return np.array([places[word] for word in words], dtype=np.int64)
        strange = [word for word in words if word not in places and not word.replace(".", "", 1).isdecimal()]
        if strange or {*words} & {*places}:
            odd = strange[0] if strange else next(word for word in words if word not in places)
            raise UserError(
                f"`{name}` has the label `{excerpt(odd)}`, which is no class of the run; {nearest(odd, class_names)}"
            )
        labels = labels.astype(np.float64)
    labels = as_numbers(name, labels).reshape(-1)
    known = np.isin(labels, np.arange(len(class_names)))
    if not known.all():
        raise UserError(
            f"`{name}` has the label {labels[~known][0]:g}, which is no class of the run; number the classes from 0 to "
            f"{len(class_names) - 1}, or give their names."
        )
    return labels.astype(np.int64)


def _from_pool(pool: Pool, signature: Signature) -> list[Samples]:
    """Take labels as the run's numbers, or by name if the pool names its classes."""
    names, parts = pool.arrays.class_names, [("x", "y", pool.arrays.train)]
    if pool.arrays.test is not None:
        parts.append(("test_x", "test_y", pool.arrays.test))
    numbered = names == tuple(map(str, range(len(names))))
    return [_samples(x, y, part.x, part.y if numbered else np.array(names)[part.y], signature) for x, y, part in parts]


def _from_npz(path: Path, signature: Signature) -> list[Samples]:
    arrays = read_npz(path)
    pairs = [("train_x", "train_y") if {"train_x", "train_y"} & {*arrays} else ("x", "y")]
    if {"test_x", "test_y"} & {*arrays}:
        pairs.append(("test_x", "test_y"))
    lacking = [name for pair in pairs for name in pair if name not in arrays]
    if lacking:
        raise UserError(
            f"`{path}` has no `{lacking[0]}`; give `train_x` and `train_y` (or `x` and `y`), and `test_x` and `test_y` "
            "for a test part."
        )
    return [_samples(f"{path}:{x}", f"{path}:{y}", arrays[x], arrays[y], signature) for x, y in pairs]


def _samples(x_name: str, y_name: str, x: NDArray[Any], y: NDArray[Any], signature: Signature) -> Samples:
    """Return samples and labels as the run's data set has them."""
    inputs = as_samples(x_name, as_numbers(x_name, x), signature.input_shape)
    labels = number_labels(y_name, y, signature.class_names)
    if len(labels) != len(inputs):
        raise UserError(f"`{y_name}` has {len(labels)} labels for {len(inputs)} samples; give one label per sample.")
    return Samples(inputs, labels)


def _hold_back(name: str, samples: Samples, seed: int) -> UnseenClient:
    held = hold_back(samples.y, np.random.default_rng([seed % 2**64, *b"newcomer"]))
    if not len(held):
        raise UserError(
            f"`{name}` has too few samples to hold some back for a test ({len(samples.y)}, and a class's only sample "
            "stays in training); add samples, or a test part (`test_x` and `test_y`)."
        )
    rest = np.delete(np.arange(len(samples.y)), held)
    train, test = (Samples(samples.x[rows], samples.y[rows]) for rows in (rest, held))
    return UnseenClient(train, test, held_back=True)


def _ready(part: str, samples: Samples, restored: Restored) -> ClientData:
    """Put samples into the run's precision, as its clients read theirs."""
    normalisation, dtype = restored.signature.normalisation, restored.signature.dtype
    data = ready(restored.experiment, normalisation, Samples(samples.x.astype(np.float64), samples.y))
    if not torch.isfinite(data.x).all():
        raise UserError(
            f"`data` has {part} samples that are too large for {dtype}, the run's precision; check the scale of its "
            "numbers."
        )
    return data


def _train(restored: Restored, data: ClientData) -> Adapted:
    method, key = restored.method, restored.key
    download = welcome(method, restored.server, key.device)
    round_key = fold(key, "newcomer round", restored.round - 1, 0)
    return adapt_client(method, initial_held_out_client(method, key, 0), download, data, round_key)


def _accuracy(
    restored: Restored, params: Tree, is_global: bool, parts: Mapping[str, ClientData]
) -> dict[str, float | None]:
    found = accuracies(restored.method, params, parts["train"], parts["test"], is_global)
    labels = label_distribution([parts["train"]], restored.method.setup.num_classes)
    figures = evaluate_view(View((0,), found[None]), labels)
    return {name: figures[name]["mean"] for name in TESTS}


def _notes(
    client: UnseenClient, adapted: Adapted, accuracy: Mapping[str, Mapping[str, float | None]]
) -> tuple[str, ...]:
    notes, count = [], len(client.test.y)
    if client.held_back:
        total = count + len(client.train.y)
        notes.append(f"there is no test part: {count} of {total} samples are held back for it.")
    if not adapted.valid:
        notes.append("training diverged (not finite): the client keeps the model it received.")
    own = {view: figures["own"] for view, figures in accuracy.items() if figures["own"] is not None}
    best = max(own, key=lambda view: own[view], default="after")
    # By more than rounding.
    if own and own[best] > own["after"] + 1e-9:
        notes.append(
            f"the model `{best}` is better than the adapted one on the {count} test samples: own {own[best]:.2f} % "
            f"against {own['after']:.2f} %."
        )
    return tuple(notes)
