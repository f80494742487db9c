"""An unseen client adapts a run's model: it receives the broadcast, runs one local update, and is tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedmate.backends.base import View, initial_held_out_client, one_thread, welcome
from fedmate.backends.client import accuracies, adapt_client
from fedmate.core import fold, unmapped
from fedmate.data import Samples, hold_back
from fedmate.data.arrays import Pool
from fedmate.data.dataset import as_numbers
from fedmate.data.sources import read_numpy
from fedmate.errors import UserError, nearest
from fedmate.experiment.build import Signature
from fedmate.experiment.checkpoint import Restored, read_steadily
from fedmate.experiment.evaluate import evaluate_view, label_distribution
from fedmate.experiment.export import describe, global_params, trained_run
from fedmate.experiment.inputs import ready
from fedmate.experiment.predict import PortableModel, check_target
from fedmate.experiment.record import TESTS
from fedmate.experiment.sample_files import as_samples, read_csv

Part: TypeAlias = tuple[str, str, NDArray[Any], NDArray[Any]]
"""How errors call the samples and the labels, and both."""


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


class UnseenClient(NamedTuple):
    """Raw samples to adapt on and to test on; `held_back` if the second were taken from the first."""

    train: Samples
    test: Samples
    held_back: bool


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
    run, method, key = trained_run(restored), restored.method, restored.key
    client = read_client(data, restored.signature, restored.experiment.general.seed)
    # In the run's precision, as its clients read theirs.
    raw = (Samples(part.x.astype(np.float64), part.y) for part in (client.train, client.test))
    train, test = (ready(restored.experiment, restored.signature.normalisation, part) for part in raw)
    with torch.no_grad(), one_thread(), unmapped():
        round_key = fold(key, "newcomer round", restored.round - 1, 0)
        download = welcome(method, restored.server, key.device)
        client_state = initial_held_out_client(method, key, 0)
        before, after, valid = adapt_client(method, client_state, download, train, round_key)
        models = {"before": (before, method.is_global), "after": (after, False)}
        # Some methods have no global model, and private statistics belong to none.
        with suppress(UserError):
            models["global"] = (global_params(restored), True)
        labels, accuracy = label_distribution(method.setup, [train]), {}
        for name, (params, is_global) in models.items():
            found = accuracies(method, params, train, test, is_global)
            figures = evaluate_view(View((0,), found[None]), labels)
            accuracy[name] = {kind: figures[kind]["mean"] for kind in TESTS}
        held, tested = (method.setup.class_counts(part).tolist() for part in (train, test))
        adapted = describe(run, after, "newcomer", held)
    if to is not None:
        adapted.save(Path(to))
    notes = _notes(client, bool(valid), accuracy)
    if sum(map(bool, held)) == 1:
        notes.append("the client holds one class and the model knows it, so `own` is 100 % for any model.")
    rows = [row for row in zip(restored.signature.class_names, held, tested, strict=True) if row[1] or row[2]]
    samples = {"train": {name: count for name, count, _ in rows}, "test": {name: count for name, _, count in rows}}
    return Adaptation(adapted, accuracy, samples, not valid, tuple(notes))


def read_client(data: Pool | Path, signature: Signature, seed: int) -> UnseenClient:
    """Return an unseen client's samples, or raise `UserError` if the run's networks cannot read them.

    Args:
        data: samples in Python, or an `.npz` or `.csv` file.
        signature: of the networks.
        seed: chooses the samples that are held back if there is no test part.
    """
    if isinstance(data, Pool):
        name, parts = "data", _from_pool(data)
    elif data.suffix.lower() == ".csv":
        name, parts = str(data), [(str(data), str(data), *read_csv(data, labelled=True))]
    elif data.suffix.lower() == ".npz":
        name, parts = str(data), _from_npz(data)
    else:
        raise UserError(f"`{data}` is not a file of samples; give an `.npz` or `.csv` file.")
    samples, *test = [_samples(*part, signature) for part in parts]
    if test:
        return UnseenClient(samples, test[0], held_back=False)
    held = hold_back(samples.y, np.random.default_rng([seed % 2**64, *b"newcomer"]))
    if not len(held):
        raise UserError(
            f"`{name}` has too few samples to hold some back for a test ({len(samples.y)}, and a class's only sample "
            "stays in training); add samples, or a test part (`test_x` and `test_y`)."
        )
    rest = np.delete(np.arange(len(samples.y)), held)
    train, kept = (Samples(samples.x[rows], samples.y[rows]) for rows in (rest, held))
    return UnseenClient(train, kept, held_back=True)


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
                f"`{name}` has the label `{odd:.40}`, which is no class of the run; {nearest(odd, class_names)}"
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


def _from_pool(pool: Pool) -> list[Part]:
    """Take labels as the run's numbers, or by name if the pool names its classes."""
    names, parts = pool.arrays.class_names, [("x", "y", pool.arrays.train)]
    if pool.arrays.test is not None:
        parts.append(("test_x", "test_y", pool.arrays.test))
    numbered = names == tuple(map(str, range(len(names))))
    return [(x, y, part.x, part.y if numbered else np.array(names)[part.y]) for x, y, part in parts]


def _from_npz(path: Path) -> list[Part]:
    arrays = read_numpy(path)
    pairs = [("train_x", "train_y") if {"train_x", "train_y"} & {*arrays} else ("x", "y")]
    if {"test_x", "test_y"} & {*arrays}:
        pairs.append(("test_x", "test_y"))
    lacking = [name for pair in pairs for name in pair if name not in arrays]
    if lacking:
        raise UserError(
            f"`{path}` has no `{lacking[0]}`; give `train_x` and `train_y` (or `x` and `y`), and `test_x` and `test_y` "
            "for a test part."
        )
    return [(f"{path}:{x}", f"{path}:{y}", arrays[x], arrays[y]) for x, y in pairs]


def _samples(x_name: str, y_name: str, x: NDArray[Any], y: NDArray[Any], signature: Signature) -> Samples:
    """Return samples and labels as the run's data set has them."""
    inputs = as_samples(x_name, as_numbers(x_name, x), signature.input_shape)
    labels = number_labels(y_name, y, signature.class_names)
    if len(labels) != len(inputs):
        raise UserError(f"`{y_name}` has {len(labels)} labels for {len(inputs)} samples; give one label per sample.")
    return Samples(inputs, labels)


def _notes(client: UnseenClient, valid: bool, accuracy: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    notes, count = list[str](), len(client.test.y)
    if client.held_back:
        total = count + len(client.train.y)
        notes.append(f"there is no test part: {count} of {total} samples are held back for it.")
    if not valid:
        notes.append("training diverged (not finite): the client keeps the model it received.")
    own = {view: figures["own"] for view, figures in accuracy.items() if figures["own"] is not None}
    best = max(own, key=lambda view: own[view], default="after")
    # By more than rounding.
    if own and own[best] > own["after"] + 1e-9:
        notes.append(
            f"the model `{best}` is better than the adapted one on the {count} test samples: own {own[best]:.2f} % "
            f"against {own['after']:.2f} %."
        )
    return notes
