"""What a newcomer brings along: its samples, from a file or from Python, with labels as a run numbers them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmate.data import Samples, hold_back
from fedmate.data.arrays import Pool, as_numbers
from fedmate.errors import UserError, nearest
from fedmate.experiment.inputs import Table, as_samples, excerpt, of_no_kind, read_arrays, read_table
from fedmate.experiment.signature import Signature

LABEL = "label"
"""The column of a CSV file that holds the classes."""

Parts: TypeAlias = tuple[Samples, Samples | None]
"""What to learn from, and what to be tested on if that came, too."""


class Newcomer(NamedTuple):
    """A client that was not in training.

    Attributes:
        train: what it learns from, as the run's data set has samples before they are normalised.
        test: what it is tested on.
        held_back: whether the test part was taken from its samples, because it came without one.
    """

    train: Samples
    test: Samples
    held_back: bool


def read_newcomer(data: Pool | Path, signature: Signature, seed: int) -> Newcomer:
    """Take a newcomer's samples, or raise `UserError` if the run's networks cannot read them.

    Args:
        data: samples in Python, or an `.npz` or `.csv` file.
        signature: what the networks read and answer.
        seed: chooses what is held back if there is no test part.
    """
    if isinstance(data, Pool):
        name, (train, test) = "data", _from_pool(data, signature)
    elif data.suffix.lower() == ".csv":
        name, (train, test) = str(data), (_from_table(read_table(data), signature), None)
    elif data.suffix.lower() == ".npz":
        name, (train, test) = str(data), _from_arrays(data, signature)
    else:
        raise of_no_kind(data, "an `.npz` or `.csv` file")
    return _split(name, train, seed) if test is None else Newcomer(train, test, held_back=False)


def _from_pool(pool: Pool, signature: Signature) -> Parts:
    """Take labels as the run's numbers, or by name if the classes have names of their own."""
    names = pool.arrays.class_names
    numbered = names == tuple(map(str, range(len(names))))

    def take(prefix: str, part: Samples) -> Samples:
        labels = part.y if numbered else np.array(names)[part.y]
        return _samples(f"{prefix}x", part.x, f"{prefix}y", labels, signature)

    train, test = pool.arrays.train, pool.arrays.test
    return take("", train), None if test is None else take("test_", test)


def _from_arrays(path: Path, signature: Signature) -> Parts:
    arrays = read_arrays(path)

    def take(x: str, y: str) -> Samples:
        if x not in arrays or y not in arrays:
            held = ", ".join(f"`{name}`" for name in arrays)
            raise UserError(
                f"`{path}` holds {held}; give `train_x` and `train_y` (or `x` and `y`), and both of `test_x` and "
                "`test_y` if there is a test part."
            )
        return _samples(f"{path}:{x}", arrays[x], f"{path}:{y}", arrays[y], signature)

    train = take("train_x", "train_y") if arrays.keys() & {"train_x", "train_y"} else take("x", "y")
    return train, take("test_x", "test_y") if arrays.keys() & {"test_x", "test_y"} else None


def _from_table(table: Table, signature: Signature) -> Samples:
    """Take the classes from the column `label`, or from the last one if columns have no names."""
    # Columns may be called 0, 1, 2, ..., which does not look like a row of names.
    if table.header is None and LABEL in (cell.strip() for cell in table.rows[0]):
        table = table._replace(
            header=[cell.strip() for cell in table.rows[0]], rows=table.rows[1:], lines=table.lines[1:]
        )
    if table.header is not None and table.header.count(LABEL) != 1:
        raise UserError(
            f"`{table.path}` has {table.header.count(LABEL) or 'no'} columns called `{LABEL}`; give that name to the "
            "one that holds the classes."
        )
    if not table.rows:
        raise UserError(f"`{table.path}` holds no sample; write a row for each.")
    place = len(table.rows[0]) - 1 if table.header is None else table.header.index(LABEL)
    labels = np.array([row[place].strip() for row in table.rows])
    # Put out of the way, not cut out: an error counts columns as the file has them.
    rows = [[*row[:place], "0", *row[place + 1 :]] for row in table.rows]
    x = np.delete(table._replace(rows=rows).numbers(), place, axis=1)
    return _samples(str(table.path), x, str(table.path), labels, signature)


def _samples(x_name: str, x: NDArray[Any], y_name: str, y: NDArray[Any], signature: Signature) -> Samples:
    """Check samples and labels against what the run knows."""
    inputs = as_samples(x_name, as_numbers(x_name, x), signature.input_shape)
    labels = number_labels(y_name, y, signature.class_names)
    if len(labels) != len(inputs):
        raise UserError(f"`{y_name}` holds {len(labels)} labels for {len(inputs)} samples; give each sample one label.")
    return Samples(inputs, labels)


def number_labels(name: str, labels: NDArray[Any], class_names: Sequence[str]) -> NDArray[np.int64]:
    """Return the classes' numbers; words are names of classes if all of them are, or else numbers in writing.

    Example:
        >>> number_labels("y", np.array(["b", "a"]), ["a", "b"]).tolist()
        [1, 0]
        >>> number_labels("y", np.array(["1", "0"]), ["a", "b"]).tolist()
        [1, 0]
    """
    if labels.dtype.kind != "U":
        return _whole_numbers(name, as_numbers(name, labels).reshape(-1), class_names)
    words, places = labels.reshape(-1).tolist(), {known: i for i, known in enumerate(class_names)}
    if {*words} <= {*places}:
        return np.array([places[word] for word in words], dtype=np.int64)
    if not all(map(_is_number, words)):
        strange = min((word for word in words if word not in places), key=_is_number)
        raise UserError(
            f"`{name}` holds the label `{excerpt(strange)}`, which is no class of the run; "
            f"{nearest(strange, class_names)}"
        )
    return _whole_numbers(name, np.array([float(word) for word in words]), class_names)


def _whole_numbers(name: str, labels: NDArray[Any], class_names: Sequence[str]) -> NDArray[np.int64]:
    known = np.isin(labels, np.arange(len(class_names)))
    if not known.all():
        raise UserError(
            f"`{name}` holds the label {labels[~known][0]:g}, which is no class of the run; number the classes from "
            f"0 to {len(class_names) - 1}, or give their names."
        )
    return labels.astype(np.int64)


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).isdecimal()


def _split(name: str, samples: Samples, seed: int) -> Newcomer:
    """Hold back a part for the test."""
    held = hold_back(samples.y, np.random.default_rng([seed % 2**64, *b"newcomer"]))
    if not len(held):
        count = len(samples.y)
        raise UserError(
            f"`{name}` holds {count} sample{'s' * (count > 1)} and no test part, {_why_none(samples.y)}; add "
            "samples, or a test part (`test_x` and `test_y`)."
        )
    rest = np.delete(np.arange(len(samples.y)), held)
    train, test = (Samples(samples.x[rows], samples.y[rows]) for rows in (rest, held))
    return Newcomer(train, test, held_back=True)


def _why_none(labels: NDArray[np.int64]) -> str:
    """Say why nothing can be held back."""
    alone = np.bincount(labels)[labels] == 1
    if len(labels) > 1 and alone.all():
        return "and each is the only one of its class, which is never held back"
    return f"too few {'of one class ' * bool(len(labels) > 1 and alone.any())}to hold some back"
