"""A user's samples: the files and the shapes they come in."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmate.data.dataset import as_numbers
from fedmate.data.sources import read_numpy, unreadable
from fedmate.errors import UserError

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
    import pandas

    try:
        frame = pandas.read_csv(
            path, header=None, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig"
        )
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"`{path}` is not a CSV table ({reason}); give all rows one length.") from None
    cells = frame.to_numpy(dtype=object)
    first = [cell.strip() for cell in cells[0]]
    separator = next((mark for mark in (";", "\t") if mark in first[0]), None)
    if len(first) == 1 and separator:
        raise UserError(f"`{path}` has {separator!r} between its cells; write commas, and decimal points in numbers.")
    numbers = frame.apply(pandas.to_numeric, errors="coerce").to_numpy(np.float64)
    counts = len(first) > 2 and len(cells) > 1 and first == [str(i) for i in range(len(first))]
    has_header = bool(np.isnan(numbers[0]).all()) or counts or (labelled and LABEL in first)
    columns = np.arange(len(first))
    labels = np.array([], dtype=str)
    if labelled:
        if has_header and first.count(LABEL) != 1:
            raise UserError(f"`{path}` needs exactly one column called `{LABEL}` for the classes; rename its columns.")
        place = first.index(LABEL) if has_header else len(first) - 1
        labels, columns = np.array([cell.strip() for cell in cells[has_header:, place]]), np.delete(columns, place)
    if len(cells) == has_header:
        raise UserError(f"`{path}` holds no sample; write a row for each.")
    odd = np.argwhere(~np.isfinite(numbers[has_header:, columns]))
    if len(odd):
        row, column = odd[0][0] + has_header, columns[odd[0][1]]
        raise UserError(
            f"`{path}` has `{cells[row, column]:.40}` in row {row + 1}, column {column + 1}; write finite numbers "
            "with a decimal point and commas between cells."
        )
    # From the text once more: Python rounds to the nearest number, which pandas need not.
    return cells[has_header:, columns].astype(np.float64), labels


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
    wanted = ", ".join(map(str, shape))
    flat = "" if len(shape) == 1 else f" or [samples, {size}]"
    raise UserError(f"`{name}` has the shape {list(x.shape)}; give [samples, {wanted}]{flat}.")
