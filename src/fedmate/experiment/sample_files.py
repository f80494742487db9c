"""A user's samples for `predict` and `adapt`: the files and the shapes they come in, and their labels."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmate.data import Samples, hold_back
from fedmate.data.arrays import Pool
from fedmate.data.dataset import as_numbers
from fedmate.data.sources import read_numpy, unreadable
from fedmate.errors import UserError, nearest
from fedmate.experiment.build import Signature

LABEL = "label"
"""The column of a CSV file that holds the classes."""


def read_array(path: Path) -> NDArray[Any]:
    """Return the samples in a file: `.npy`, `.npz` (one array, or one called `x` or `test_x`) or `.csv`."""
    if path.suffix.lower() == ".csv":
        return read_csv(path)[0]
    if path.suffix.lower() not in (".npy", ".npz"):
        raise UserError(f"`{path}` is not a file of samples; give a `.npy`, `.npz` or `.csv` file.")
    arrays = read_numpy(path)
    # numpy's reader goes by the content of a file; the array of an `.npy` file has no name.
    names = list(arrays) if len(arrays) == 1 else [name for name in ("x", "test_x") if name in arrays]
    if not names:
        held = ", ".join(f"`{name}`" for name in arrays) or "no array"
        raise UserError(f"`{path}` holds {held}; call the array of samples `x`.")
    return as_numbers(str(path), arrays[names[0]])


def read_csv(path: Path, *, labelled: bool = False) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Return the samples in a CSV file, a row each, and their labels.

    The first row is a header if no cell of it is a number, if one is `label`, or if it counts 0, 1, 2, ... as pandas
    does. If the table is `labelled`, labels are in the column `label`, or in the last one if there is no header.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except OSError as error:
        raise unreadable(path, error) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"`{path}` is not a CSV table ({error}); save it as text with commas between cells.") from None
    if not rows:
        raise UserError(f"`{path}` is empty; write a row of numbers for each sample.")
    top, first = rows[0]
    separator = next((mark for mark in (";", "\t") if mark in first[0]), None)
    if len(first) == 1 and separator:
        raise UserError(f"`{path}` has {separator!r} between its cells; write commas, and decimal points in numbers.")
    odd = next(((line, cells) for line, cells in rows if len(cells) != len(first)), None)
    if odd is not None:
        raise UserError(
            f"`{path}` has {len(odd[1])} cell{'s' * (len(odd[1]) != 1)} in row {odd[0]}, but {len(first)} in row "
            f"{top}; give all rows the same number of cells."
        )
    counts = len(first) > 2 and len(rows) > 1 and first == [str(i) for i in range(len(first))]
    has_header = counts or LABEL in first or all(math.isnan(as_number(cell)) for cell in first)
    place = first.index(LABEL) if LABEL in first else len(first) - 1
    if labelled and has_header and first.count(LABEL) != 1:
        raise UserError(f"`{path}` needs exactly one column called `{LABEL}` for the classes; rename its columns.")
    if not labelled and LABEL in first:
        raise UserError(
            f"`{path}` has the column `{LABEL}` in row {top}, column {place + 1}, but `predict` reads samples only; "
            "remove that column."
        )
    body = rows[has_header:]
    if not body:
        raise UserError(f"`{path}` holds no sample, only the header in row {top}; write a row for each sample.")
    columns = [column for column in range(len(first)) if not labelled or column != place]
    samples = np.stack([np.array([as_number(cells[column]) for column in columns]) for _, cells in body])
    for i, j in np.argwhere(~np.isfinite(samples)):
        line, cells = body[i]
        raise UserError(
            f"`{path}` has `{cells[columns[j]]:.40}` in row {line}, column {columns[j] + 1}; write finite numbers with "
            "a decimal point and commas between cells."
        )
    return samples, np.array([cells[place] for _, cells in body if labelled], dtype=str)


def as_samples(name: str, x: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Give an array the shape `[samples, *shape]`, or raise `UserError`.

    It may have that shape, be one sample or hold flattened samples. Channels of images may come last, and grey images
    need none.
    """
    size = math.prod(shape)
    forms = [shape, (size,)]
    if len(shape) == 3:
        forms += [(*shape[1:], shape[0])] + [shape[1:]] * (shape[0] == 1)
    for form in forms:
        if x.shape == form:
            x = x[None]
        if x.shape[1:] == form:
            if not len(x):
                raise UserError(f"`{name}` holds no sample; give at least one.")
            # Only the form with channels last needs more than another shape.
            return np.moveaxis(x, 3, 1) if len(form) == 3 and form != shape else x.reshape(-1, *shape)
    flat = "" if len(shape) == 1 else f" or [samples, {size}]"
    labels = ", without labels" if x.ndim == 2 and x.shape[1] == size + 1 else ""
    wanted = ", ".join(map(str, shape))
    raise UserError(f"`{name}` has the shape {list(x.shape)}; give [samples, {wanted}]{flat}{labels}.")


def read_client(data: Pool | Path, signature: Signature, seed: int) -> tuple[Samples, Samples, bool]:
    """Return an unseen client's samples to adapt on and to test on, or raise `UserError`.

    The last is whether the test samples were taken from the others, by `seed`, because `data` has no test part.
    """
    if isinstance(data, Pool):
        name, parts = "data", [("x", "y", data.arrays.train)]
        if data.arrays.test is not None:
            parts.append(("test_x", "test_y", data.arrays.test))
        # Labels are the run's numbers, unless the pool names its classes.
        names = np.array(data.arrays.class_names)
        is_numbered = names.tolist() == [str(k) for k in range(len(names))]
        found = [_samples(x, y, part.x, part.y if is_numbered else names[part.y], signature) for x, y, part in parts]
    elif data.suffix.lower() == ".csv":
        name = str(data)
        found = [_samples(name, name, *read_csv(data, labelled=True), signature)]
    elif data.suffix.lower() == ".npz":
        name, arrays = str(data), read_numpy(data)
        pairs = [("train_x", "train_y") if {"train_x", "train_y"} & {*arrays} else ("x", "y")]
        if {"test_x", "test_y"} & {*arrays}:
            pairs.append(("test_x", "test_y"))
        lacking = [key for pair in pairs for key in pair if key not in arrays]
        if lacking:
            raise UserError(
                f"`{data}` has no `{lacking[0]}`; give `train_x` and `train_y` (or `x` and `y`), and `test_x` and "
                "`test_y` for a test part."
            )
        found = [_samples(f"{data}:{x}", f"{data}:{y}", arrays[x], arrays[y], signature) for x, y in pairs]
    else:
        raise UserError(f"`{data}` is not a file of samples; give an `.npz` or `.csv` file.")
    samples, *test = found
    if test:
        return samples, test[0], False
    held = hold_back(samples.y, np.random.default_rng([seed % 2**64, *b"newcomer"]))
    if not len(held):
        raise UserError(
            f"`{name}` has too few samples to hold some back for a test ({len(samples.y)}, and a class's only sample "
            "stays in training); add samples, or a test part (`test_x` and `test_y`)."
        )
    rest = np.delete(np.arange(len(samples.y)), held)
    train, kept = (Samples(samples.x[rows], samples.y[rows]) for rows in (rest, held))
    return train, kept, True


def _samples(x_name: str, y_name: str, x: NDArray[Any], y: NDArray[Any], signature: Signature) -> Samples:
    """Return samples and labels as the run's data set has them."""
    inputs = as_samples(x_name, as_numbers(x_name, x), signature.input_shape)
    labels = _number_labels(y_name, y, signature.class_names)
    if len(labels) != len(inputs):
        raise UserError(f"`{y_name}` has {len(labels)} labels for {len(inputs)} samples; give one label per sample.")
    return Samples(inputs, labels)


def _number_labels(name: str, labels: NDArray[Any], class_names: Sequence[str]) -> NDArray[np.int64]:
    """Return labels as class numbers; words are names of classes if all of them are, otherwise numbers in writing."""
    if labels.dtype.kind == "U":
        words, places = labels.reshape(-1).tolist(), {known: i for i, known in enumerate(class_names)}
        if {*words} <= {*places}:
            return np.array([places[word] for word in words], dtype=np.int64)
        if {*words} & {*places} or any(math.isnan(as_number(word)) for word in words):
            odd = next(word for word in words if word not in places)
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


def as_number(cell: str) -> float:
    """Return the number that is written in a cell, NaN if there is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan
