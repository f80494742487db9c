"""Data handed over in Python: a user's own arrays, pooled or already split into clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmate.core import option
from fedmate.core.serialise import digest
from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples
from fedmate.errors import UserError

ArrayLike: TypeAlias = NDArray[Any] | torch.Tensor | Sequence[Any]

MOST_CLASSES = 100_000
"""Labels beyond are a mistake, a column of numbers that are no classes: they would fill the memory with names."""


@final
@dataclass(frozen=True, kw_only=True)
class ArrayDataset(Dataset):
    """Arrays that were handed to `fedmate.run(data=...)` in Python."""

    digest: str = option("", "fingerprint of the arrays")

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """A partition that fits any number of classes, and a network that fits any samples."""
        return {"partition": {"name": "dirichlet"}, "model": {"name": "mlp"}}

    def load(self, folder: Path) -> NoReturn:
        """Say that a file cannot hold them."""
        raise UserError(
            "`dataset.name` is `given`, arrays that were handed over in Python and are in no file; call "
            "`fedmate.run(..., data=...)`, and give them again, with `resume=...`, to go on with a run."
        )


@final
class Pool:
    """All samples in one place, to be dealt to clients by the experiment's partition.

    Args:
        x: samples `[samples, ...]`, numbers, as the network reads them.
        y: their labels, whole numbers from 0.
        test_x, test_y: the test split. If left out it is what no client gets, at least a fifth of the samples unless
            `partition.examples` says how many a client gets.
        class_names: one for each label; the numbers if left out.

    Example:
        >>> Pool([[0.0, 1.0], [1.0, 0.0]], [0, 1], class_names=["left", "right"]).arrays.class_names
        ('left', 'right')
    """

    def __init__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        test_x: ArrayLike | None = None,
        test_y: ArrayLike | None = None,
        *,
        class_names: Sequence[str] | None = None,
    ) -> None:
        """Check that arrays fit each other."""
        train = _samples("x", x, "y", y)
        test = None
        if test_x is not None or test_y is not None:
            if test_x is None or test_y is None:
                raise UserError("`test_x` and `test_y` belong together; give both, or neither.")
            test = _samples("test_x", test_x, "test_y", test_y)
        self.client_rows: list[NDArray[np.int64]] | None = None
        self.arrays = _arrays(train, test, class_names)


@final
class Sites:
    """Samples that lie with their clients already: each pair is a client.

    Args:
        clients: a pair `(x, y)` for each client, as in `Pool`.
        test: the pair `(x, y)` on which all clients are tested.
        class_names: one for each label; the numbers if left out.

    Example:
        >>> here, there = ([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])
        >>> [rows.tolist() for rows in Sites([here, there], test=here).client_rows]
        [[0, 1], [2]]
    """

    def __init__(
        self,
        clients: Sequence[tuple[ArrayLike, ArrayLike]],
        test: tuple[ArrayLike, ArrayLike],
        *,
        class_names: Sequence[str] | None = None,
    ) -> None:
        """Check that arrays fit each other."""
        if not len(clients):
            raise UserError("`clients` is empty; give a pair `(x, y)` for each client.")
        pairs = [_pair(f"clients[{i}]", pair) for i, pair in enumerate(clients)]
        odd = next((i for i, pair in enumerate(pairs) if pair.x.shape[1:] != pairs[0].x.shape[1:]), None)
        if odd is not None:
            raise UserError(
                f"`clients[{odd}].x` has samples of shape {pairs[odd].x.shape[1:]}, `clients[0].x` of shape "
                f"{pairs[0].x.shape[1:]}; give all samples one shape."
            )
        train = Samples(np.concatenate([pair.x for pair in pairs]), np.concatenate([pair.y for pair in pairs]))
        ends = np.cumsum([len(pair.y) for pair in pairs])
        self.client_rows: list[NDArray[np.int64]] | None = np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1])
        self.arrays = _arrays(train, _pair("test", test), class_names)


def fingerprint(data: Pool | Sites) -> str:
    """Return what tells these arrays from others."""
    arrays = data.arrays
    tensors = {"x": arrays.train.x, "y": arrays.train.y}
    if arrays.test is not None:
        tensors |= {"test_x": arrays.test.x, "test_y": arrays.test.y}
    if data.client_rows is not None:
        tensors["sizes"] = np.array([len(rows) for rows in data.client_rows])
    return digest({name: torch.from_numpy(array) for name, array in tensors.items()}, "\n".join(arrays.class_names))


def _pair(name: str, pair: tuple[ArrayLike, ArrayLike]) -> Samples:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"`{name}` is a {type(pair).__name__}; give a pair `(x, y)` of samples and labels.")
    return _samples(f"{name}.x", pair[0], f"{name}.y", pair[1])


def _samples(x_name: str, x: ArrayLike, y_name: str, y: ArrayLike) -> Samples:
    inputs, labels = as_numbers(x_name, x), as_numbers(y_name, y)
    if labels.ndim != 1 or not len(labels):
        raise UserError(f"`{y_name}` has the shape {labels.shape}; give one label for each sample, at least one.")
    if inputs.ndim < 2 or len(inputs) != len(labels):
        raise UserError(
            f"`{x_name}` has the shape {inputs.shape} for {len(labels)} labels; give `[samples, ...]`, one per label."
        )
    if not np.array_equal(labels, np.floor(labels)) or labels.min() < 0:
        raise UserError(f"`{y_name}` must hold whole numbers from 0; number the classes 0, 1, 2, ...")
    if labels.max() >= MOST_CLASSES:
        raise UserError(f"`{y_name}` holds a label {labels.max()}, which looks like no class; number them 0, 1, 2, ...")
    if not inputs.size:
        raise UserError(f"`{x_name}` has the shape {inputs.shape}: its samples hold nothing; give some numbers.")
    if inputs.dtype != np.float64:
        inputs = inputs.astype(np.float32)
    # Copied: what the caller does to its arrays later is its own business.
    return Samples(np.array(inputs, order="C"), labels.astype(np.int64))


def as_numbers(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return values as an array of finite numbers, or raise `UserError` about what is called `name`."""
    values = for_numpy(name, values)
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"`{name}` has rows of unequal length; give an array of numbers.") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"`{name}` holds {array.dtype} values; give an array of numbers.")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        # What does not fit into double precision is found below.
        with np.errstate(over="ignore"):
            array = array.astype(np.float64)
    finite = np.isfinite(array)
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise UserError(f"`{name}` is {array[place]} at {list(place)}; replace what is not a finite number first.")
    return array


def for_numpy(name: str, values: ArrayLike) -> ArrayLike:
    """Return values as numpy can read them, or raise `UserError` about what is called `name`."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values if values.layout == torch.strided else values.to_dense()
        # numpy knows the types of 4 and 8 bytes only.
        return (values.float() if values.is_floating_point() and values.element_size() < 4 else values).numpy()
    if np.ma.is_masked(values):
        raise UserError(f"`{name}` has masked values, which would be read as if they were not; fill or leave them out.")
    return values


def _arrays(train: Samples, test: Samples | None, class_names: Sequence[str] | None) -> Arrays:
    if test is not None and test.x.shape[1:] != train.x.shape[1:]:
        raise UserError(
            f"the test samples have the shape {test.x.shape[1:]}, the others {train.x.shape[1:]}; give both one shape."
        )
    largest = max(int(part.y.max()) for part in (train, test) if part is not None)
    names = tuple(map(str, range(largest + 1))) if class_names is None else tuple(map(str, class_names))
    if largest >= len(names):
        raise UserError(f"`class_names` has {len(names)} names, but there is a label {largest}; name every class.")
    twice = next((name for name in names if names.count(name) > 1), None) if class_names is not None else None
    if twice is not None:
        raise UserError(f"`class_names` has `{twice}` twice; give each class a name of its own.")
    if len(names) < 2:
        raise UserError("`y` holds one class only; give samples of two classes at least, or `class_names`.")
    return Arrays(train, test, names, Normalisation())
