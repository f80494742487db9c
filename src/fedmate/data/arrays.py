"""A user's own arrays: in a file of numpy's, in Python, pooled or already split into clients, or with sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmate.core import Limits, option
from fedmate.core.tree import digest
from fedmate.data.dataset import (
    OWN_DEFAULTS,
    ArrayLike,
    Arrays,
    Dataset,
    Normalisation,
    Samples,
    as_array,
    as_floats,
    check_names,
    crop_option,
    flip_option,
    pair_up,
)
from fedmate.data.files import FileDataset, own_path, read_arrays
from fedmate.errors import UserError

CENTRE = 127.5
"""Images are read as (byte - CENTRE) / CENTRE, unless `mean` and `std` are declared."""


@final
@dataclass(frozen=True, kw_only=True)
class Npz(FileDataset):
    """Your own arrays in an `.npz` file: images as bytes, or samples of any other numbers."""

    defaults: ClassVar[dict[str, dict[str, Any]]] = OWN_DEFAULTS

    path: str = option(
        "", "the file, with `train_x`, `train_y` and, if there are any, `test_x`, `test_y`", is_path=True
    )

    def find(self, folder: Path) -> list[Path]:
        """Return the file that `path` names."""
        return [own_path(self.path, "file", "arrays")]

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the arrays."""
        return read_arrays(found[0])


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
@dataclass(frozen=True, kw_only=True)
class AtSites(Dataset):
    """Samples that stay at sites; run it with `flwr run`."""

    # The server knows this declaration and nothing else; where a site finds its samples is in a file of its own.
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"partition": {"name": "given"}, "model": {"name": "mlp"}}

    classes: tuple[str, ...] = option((), "the names of the classes, two at least")
    shape: tuple[int, ...] = option((), "of a sample; an image has channels, height and width")
    mean: tuple[float, ...] = option(
        (), "subtracted from samples, one for all or one per channel; left out, images are scaled to -1..1"
    )
    std: tuple[float, ...] = option((), "samples are divided by it then, likewise")
    crop: int = crop_option()
    flip: bool = flip_option()

    @property
    def is_of_bytes(self) -> bool:
        """Whether samples have to be bytes, as images without declared normalisation."""
        return len(self.shape) == 3 and not self.mean and not self.std

    @property
    def normalisation(self) -> Normalisation:
        """The declared normalisation, or that of images."""
        if self.is_of_bytes:
            return Normalisation((CENTRE,), (CENTRE,))
        return Normalisation(self.mean or (0.0,), self.std or (1.0,))

    def load(self, folder: Path) -> NoReturn:
        """Refuse: there is nothing to read here."""
        raise UserError(
            "`dataset.name` is `sites`, whose samples stay at the sites, so nothing can be read here; run the "
            "experiment with `flwr run`, see docs/deploy.md."
        )

    def stand_ins(self) -> Arrays:
        """Return one training and one test sample of zeros, so that the server knows shapes, or raise `UserError`."""
        check_names("dataset.classes", self.classes)
        if not self.shape or min(self.shape) < 1:
            raise UserError(
                f"`dataset.shape` is {list(self.shape)}; give the sizes of a sample, each 1 at least, such as "
                "`[3, 32, 32]` for an image."
            )
        for name, numbers, limits in (("mean", self.mean, Limits()), ("std", self.std, Limits(above=0))):
            if len(numbers) not in (0, 1, self.shape[0]):
                raise UserError(
                    f"`dataset.{name}` has {len(numbers)} numbers, but a sample has {self.shape[0]} channels; give one "
                    "for all, or one for each."
                )
            if not all(map(limits.allow, numbers)):
                raise UserError(f"`dataset.{name}` is {list(numbers)}; each must be {limits.describe()}.")
        if any(self.augmentation) and len(self.shape) != 3:
            name = "crop" if self.crop else "flip"
            raise UserError(f"`dataset.{name}` is for images, but `dataset.shape` is {list(self.shape)}; leave it out.")
        zero = Samples(np.zeros((1, *self.shape), np.uint8), np.zeros(1, np.int64))
        return Arrays(zero, zero, self.classes, self.normalisation)

    def check_site(self, arrays: Arrays) -> None:
        """Raise `UserError` if a site's samples have another shape or type than is declared."""
        shape = arrays.train.x.shape[1:]
        if shape != self.shape:
            hint = " (of images, `data.size` and `data.grey` say how they are read)" if len(shape) == 3 else ""
            raise UserError(
                f"its samples have the shape {list(shape)}, those of the experiment {list(self.shape)}; give them "
                f"that shape{hint}."
            )
        if self.is_of_bytes and arrays.train.x.dtype != np.uint8:
            raise UserError(
                f"its images hold {arrays.train.x.dtype} values, but the experiment takes bytes, 0 to 255; store them "
                "as uint8, or let the experiment declare `mean` and `std`."
            )


@final
class Pool:
    """All samples in one place: the experiment's partition splits them over clients.

    Args:
        x: samples `[samples, ...]`, numbers, as the network reads them.
        y: their labels, whole numbers from 0 or words.
        test_x, test_y: the test split. If left out it is what no client gets, at least a fifth of the samples unless
            `partition.examples` says how many a client gets.
        class_names: one for each label; if left out, the numbers, or the words in alphabetical order.

    Example:
        >>> Pool([[0.0, 1.0], [1.0, 0.0]], ["right", "left"]).arrays.class_names
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
        parts = {"": (x, y)}
        if test_x is not None and test_y is not None:
            parts["test_"] = (test_x, test_y)
        elif test_x is not None or test_y is not None:
            raise UserError("`test_x` and `test_y` belong together; give both, or neither.")
        (train, *test), names = _gather(parts, class_names)
        self.client_rows: list[NDArray[np.int64]] | None = None
        self.arrays = Arrays(train, test[0] if test else None, names)


@final
class Sites:
    """Samples that are split into clients already.

    Args:
        clients: `(x, y)` for each client, as in `Pool`; or `(x, y, test_x, test_y)`, with test samples of its own.
        test: the pair `(x, y)` on which all clients are tested; if left out, what clients bring for testing, together.
        class_names: as in `Pool`.

    Example:
        >>> here, there = ([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])
        >>> [rows.tolist() for rows in Sites([here, there], test=here).client_rows]
        [[0, 1], [2]]
    """

    def __init__(
        self,
        clients: Sequence[tuple[ArrayLike, ...]],
        test: tuple[ArrayLike, ArrayLike] | None = None,
        *,
        class_names: Sequence[str] | None = None,
    ) -> None:
        if not len(clients):
            raise UserError("`clients` is empty; give a pair `(x, y)` for each client.")
        size = 4 if isinstance(clients[0], tuple | list) and len(clients[0]) == 4 else 2
        parts = {f"clients[{i}]": part for i, part in enumerate(clients)}
        for name, part in [*parts.items(), *([] if test is None and size == 4 else [("test", test)])]:
            wanted = 2 if name == "test" else size
            if name != "test" and isinstance(part, tuple | list) and len(part) != size:
                first = f", `clients[0]` {size}" if name != "clients[0]" else ""
                raise UserError(
                    f"`{name}` has {len(part)} arrays{first}; give every client the same two or four: `(x, y)`, or "
                    "`(x, y, test_x, test_y)`."
                )
            if not isinstance(part, tuple | list) or len(part) != wanted:
                kind = "missing" if part is None else "no pair"
                raise UserError(
                    f"`{name}` is {kind}; give a pair `(x, y)` of samples and labels, or for each client "
                    "`(x, y, test_x, test_y)`."
                )
        pairs = {f"{name}.": (part[0], part[1]) for name, part in parts.items()}
        if size == 4:
            pairs |= {f"{name}.test_": (part[2], part[3]) for name, part in parts.items()}
        if test is not None:
            pairs["test."] = test
        found, names = _gather(pairs, class_names)
        own, local = found[: len(parts)], found[len(parts) : len(parts) * size // 2]
        ends = np.cumsum([len(part.y) for part in own])
        self.client_rows: list[NDArray[np.int64]] | None = np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1])
        tested = _together(local) if test is None else found[-1]
        self.arrays = Arrays(_together(own), tested, names, local_tests=tuple(local))


def _together(parts: Sequence[Samples]) -> Samples:
    return Samples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def _gather(
    parts: Mapping[str, tuple[ArrayLike, ArrayLike]], class_names: Sequence[str] | None
) -> tuple[list[Samples], tuple[str, ...]]:
    """Return copies of the samples of each part, and the class names; messages call them `PARTx` and `PARTy`."""
    inputs = {f"{part}x": as_floats(f"{part}x", x) for part, (x, _) in parts.items()}
    labels = {f"{part}y": as_array(f"{part}y", y) for part, (_, y) in parts.items()}
    return pair_up(inputs, labels, class_names)


def fingerprint(data: Pool | Sites) -> str:
    """Return a digest of the arrays, and of their split into clients."""
    arrays = data.arrays
    tensors = {"x": arrays.train.x, "y": arrays.train.y}
    if arrays.test is not None:
        tensors |= {"test_x": arrays.test.x, "test_y": arrays.test.y}
    if data.client_rows is not None:
        tensors["sizes"] = np.array([len(rows) for rows in data.client_rows])
    for i, samples in enumerate(arrays.local_tests):
        tensors |= {f"local_x{i}": samples.x, f"local_y{i}": samples.y}
    return digest({name: torch.from_numpy(array) for name, array in tensors.items()}, "\n".join(arrays.class_names))
