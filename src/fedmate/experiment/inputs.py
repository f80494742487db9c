"""Numbers that users bring along: arrays in Python, and files that hold them."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate.data.arrays import as_numbers
from fedmate.data.npz import read_numpy
from fedmate.errors import UserError

NAMES = ("x", "test_x")
"""The array of an `.npz` file that holds samples, if there are several; the first of these that is there."""

LONGEST = 40
"""How many characters of a cell a sentence quotes."""

SEPARATORS = {";": "semicolons", "\t": "tabs"}
"""What some write between the cells of a file instead of commas."""


class Table(NamedTuple):
    """A CSV file.

    Attributes:
        path: where it lies.
        header: the names in its first row; `None` if that row is a sample.
        rows: its cells, all rows alike in length, at least one.
        lines: for each row the line of the file it ends in, from 1.
    """

    path: Path
    header: list[str] | None
    rows: list[list[str]]
    lines: list[int]

    def numbers(self) -> NDArray[np.float64]:
        """Return all cells as numbers, or raise `UserError` naming the first that is not a finite number."""
        found = [[_number(cell) for cell in row] for row in self.rows]
        for line, cells, row in zip(self.lines, found, self.rows, strict=True):
            odd = next((i for i, value in enumerate(cells) if value is None or not math.isfinite(value)), None)
            if odd is not None:
                what = f"`{excerpt(row[odd])}`" if row[odd].strip() else "empty"
                raise UserError(
                    f"`{self.path}` is {what} in row {line}, column {odd + 1}; every cell below an optional row of "
                    "names must be a finite number, with a point and no separators of thousands."
                )
        return np.array(found, dtype=np.float64)


def read_array(path: Path) -> NDArray[Any]:
    """Return the numbers in a file: `.npy`, `.npz` (one array, or one called `x` or `test_x`) or `.csv`.

    Raises:
        UserError: it is missing, damaged, or holds something else than finite numbers.
    """
    match path.suffix.lower():
        case ".csv":
            return read_table(path).numbers()
        case ".npy":
            return as_numbers(str(path), _load(path)[""])
        case ".npz":
            return as_numbers(str(path), _choose(path, _load(path)))
    raise of_no_kind(path, "a `.npy`, `.npz` or `.csv` file")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of an `.npz` file by name, whatever they hold, or raise `UserError` if it is something else."""
    return _load(path)


def read_table(path: Path) -> Table:
    """Return the cells of a CSV file, or raise `UserError` if it is not one."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            numbered = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise _unreadable(path, error) from None
    except (csv.Error, ValueError) as error:
        raise UserError(f"`{path}` is not a CSV file ({error}); give rows of numbers with commas between.") from None
    _check_separator(path, [row for _, row in numbered[:2]])
    header = None
    if numbered and _is_header(numbered[0][1], alone=len(numbered) == 1):
        header = [cell.strip() for cell in numbered.pop(0)[1]]
    if not numbered:
        raise UserError(f"`{path}` holds no row of numbers; write a row for each sample.")
    width = len(numbered[0][1]) if header is None else len(header)
    for line, row in numbered:
        if len(row) != width:
            raise UserError(f"`{path}` has {len(row)} cells in row {line}, {width} above it; give all rows one length.")
    return Table(path, header, [row for _, row in numbered], [line for line, _ in numbered])


def as_samples(name: str, x: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Give an array the shape `[samples, *shape]`, or raise `UserError`.

    It may have that shape already, be one sample, or have its samples flattened; images may have their channels last,
    and grey ones none.
    """
    size = math.prod(shape)
    for form in _forms(shape):
        if x.shape == form:
            x = x[None]
        if x.shape[1:] == form:
            if not len(x):
                raise UserError(f"`{name}` holds no sample; give one at least.")
            # Only the form with channels last needs more than another shape.
            last = len(form) == 3 and form != shape
            return np.moveaxis(x, 3, 1) if last else x.reshape(-1, *shape)
    flat = "" if len(shape) == 1 else f", or {_shape('samples', size)} for flattened ones"
    raise UserError(
        f"`{name}` has the shape {_shape(*x.shape)}; give {_shape('samples', *shape)}, {_shape(*shape)} for one "
        f"sample{flat}."
    )


def _forms(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes that a sample may come in, the network's own first."""
    forms = [shape, (math.prod(shape),)]
    if len(shape) == 3:
        channels, height, width = shape
        forms += [(height, width, channels)] + [(height, width)] * (channels == 1)
    return forms


def excerpt(text: str) -> str:
    """Return a cell as a sentence can quote it: on one line, and not too long.

    Example:
        >>> excerpt("  two   words "), len(excerpt("0;" * 99))
        ('two words', 40)
    """
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def _check_separator(path: Path, rows: list[list[str]]) -> None:
    """Refuse cells that are several, one of them a number at least: with decimal commas a row is cut in odd places."""
    for separator, name in SEPARATORS.items():
        several = (cell.strip().split(separator) for row in rows for cell in row if separator in cell.strip())
        if any(_number(piece) is not None for pieces in several for piece in pieces):
            raise UserError(
                f"`{path}` has {name} between its cells; write it with commas, and numbers with a decimal point."
            )


def of_no_kind(path: Path, wanted: str) -> UserError:
    """Return what to say about a path whose ending is that of no file that is wanted."""
    ending = f"ends in `{path.suffix}`" if path.suffix else "has no ending"
    return UserError(f"`{path}` {'is a folder' if os.path.isdir(path) else ending}; give {wanted}.")


def _load(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file of numpy's by name; the one of an `.npy` file has none."""
    try:
        arrays = read_numpy(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not arrays or ("" in arrays) != (path.suffix.lower() == ".npy"):
        raise UserError(f"`{path}` is another kind of file than its name says; write it with `numpy.save` or `savez`.")
    return arrays


def _choose(path: Path, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    name = next((name for name in NAMES if name in arrays), None)
    if name is None:
        held = ", ".join(f"`{name}`" for name in arrays)
        raise UserError(f"`{path}` holds {held}; call the array of samples `x`, or leave the others out.")
    return arrays[name]


def _unreadable(path: Path, error: OSError) -> UserError:
    # Its ending is one that is taken, or nobody would have tried to read it.
    reasons = {FileNotFoundError: "does not exist", IsADirectoryError: "is a folder"}
    reason = reasons.get(type(error), f"cannot be read ({error.strerror or error})")
    return UserError(f"`{path}` {reason}; give the path of a file that can be read.")


def _is_header(row: list[str], *, alone: bool) -> bool:
    """Tell whether a file's first row names its columns: no cell is a number, or they count 0, 1, 2, ..."""
    # What pandas writes for columns without names. A sample that looks like that is less likely.
    counted = len(row) > 2 and row == [str(number) for number in range(len(row))]
    return all(_number(cell) is None for cell in row) or (counted and not alone)


def _number(cell: str) -> float | None:
    try:
        # Python reads 1_000 as a number, nobody else does.
        return float(cell) if "_" not in cell else None
    except ValueError:
        return None


def _shape(*sizes: int | str) -> str:
    return f"[{', '.join(map(str, sizes))}]"
