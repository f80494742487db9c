"""A user's own arrays in Python, pooled or already split into clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmate.core import option
from fedmate.core.tree import digest
from fedmate.data.dataset import MOST_CLASSES, OWN_DEFAULTS, Arrays, Dataset, Samples, check_labels, check_names
from fedmate.errors import UserError

ArrayLike: TypeAlias = NDArray[Any] | torch.Tensor | Sequence[Any]


@final
@dataclass(frozen=True, kw_only=True)
class ArrayDataset(Dataset):
    """Your own arrays in Python: `fedmate.run(..., data=...)`."""

    defaults: ClassVar[dict[str, dict[str, Any]]] = OWN_DEFAULTS

    digest: str = option("", "fingerprint of the arrays")

    def load(self, folder: Path) -> NoReturn:
        """Refuse: the arrays are in no file."""
        raise UserError(
            "`dataset.name` is `given`, arrays that were passed in Python and are in no file; call "
            "`fedmate.run(..., data=...)`, and pass them again, with `resume=...`, to continue a run."
        )


@final
class Pool:
    """All samples in one place: the experiment's partition splits them over clients.

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
        if (test_x is None) != (test_y is None):
            raise UserError("`test_x` and `test_y` belong together; give both, or neither.")
        test = None if test_x is None or test_y is None else _samples("test_x", test_x, "test_y", test_y)
        self.client_rows: list[NDArray[np.int64]] | None = None
        self.arrays = _arrays(_samples("x", x, "y", y), test, class_names)


@final
class Sites:
    """Samples that are split into clients already: each pair is a client.

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
        if not len(clients):
            raise UserError("`clients` is empty; give a pair `(x, y)` for each client.")
        pairs = [_pair(f"clients[{i}]", pair) for i, pair in enumerate(clients)]
        for i, pair in enumerate(pairs):
            _check_shape(f"clients[{i}].x", pair, "clients[0].x", pairs[0])
        train = Samples(np.concatenate([pair.x for pair in pairs]), np.concatenate([pair.y for pair in pairs]))
        ends = np.cumsum([len(pair.y) for pair in pairs])
        self.client_rows: list[NDArray[np.int64]] | None = np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1])
        self.arrays = _arrays(train, _pair("test", test), class_names)


def fingerprint(data: Pool | Sites) -> str:
    """Return a digest of the arrays, and of their split into clients."""
    arrays = data.arrays
    tensors = {"x": arrays.train.x, "y": arrays.train.y}
    if arrays.test is not None:
        tensors |= {"test_x": arrays.test.x, "test_y": arrays.test.y}
    if data.client_rows is not None:
        tensors["sizes"] = np.array([len(rows) for rows in data.client_rows])
    return digest({name: torch.from_numpy(array) for name, array in tensors.items()}, "\n".join(arrays.class_names))


def as_numbers(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return values as an array of finite numbers, or raise `UserError`; messages call them `name`."""
    if isinstance(values, torch.Tensor):
        tensor = values.detach().cpu()
        # numpy has no bfloat16.
        values = (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()
    if np.ma.is_masked(values):
        raise UserError(f"`{name}` has masked values, which numpy would read as numbers; fill them or leave them out.")
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"`{name}` has rows of unequal length; give an array of numbers.") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"`{name}` holds {array.dtype} values; give an array of numbers.")
    finite = np.isfinite(array)
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise UserError(f"`{name}` is {array[place]} at {list(place)}; replace numbers that are not finite.")
    return array


def check_pair(x_name: str, x: NDArray[Any], y_name: str, y: NDArray[Any]) -> None:
    """Raise `UserError` unless samples have an axis of their own, and one label each; messages call them by name."""
    if x.ndim < 2 or not x.size or y.shape != x.shape[:1]:
        raise UserError(
            f"`{x_name}` has the shape {list(x.shape)}, `{y_name}` {list(y.shape)}; give [samples, ...] and one label "
            "for each sample, at least one."
        )


def _pair(name: str, pair: tuple[ArrayLike, ArrayLike]) -> Samples:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"`{name}` is a {type(pair).__name__}; give a pair `(x, y)` of samples and labels.")
    return _samples(f"{name}.x", pair[0], f"{name}.y", pair[1])


def _samples(x_name: str, x: ArrayLike, y_name: str, y: ArrayLike) -> Samples:
    inputs, labels = as_numbers(x_name, x), as_numbers(y_name, y)
    check_pair(x_name, inputs, y_name, labels)
    # A copy: the caller may change its arrays later.
    kind = np.float64 if inputs.dtype == np.float64 else np.float32
    return Samples(np.array(inputs, kind, order="C"), check_labels(y_name, labels, MOST_CLASSES))


def _check_shape(name: str, samples: Samples, first_name: str, first: Samples) -> None:
    shape, expected = list(samples.x.shape[1:]), list(first.x.shape[1:])
    if shape != expected:
        raise UserError(
            f"`{name}` has samples of shape {shape}, `{first_name}` of shape {expected}; give all samples one shape."
        )


def _arrays(train: Samples, test: Samples | None, class_names: Sequence[str] | None) -> Arrays:
    if test is not None:
        _check_shape("test_x", test, "x", train)
    largest = max(int(part.y.max()) for part in (train, test) if part is not None)
    names = tuple(map(str, range(largest + 1))) if class_names is None else tuple(map(str, class_names))
    if largest >= len(names):
        raise UserError(f"`class_names` has {len(names)} names, but there is a label {largest}; name every class.")
    check_names("y" if class_names is None else "class_names", names)
    return Arrays(train, test, names)
