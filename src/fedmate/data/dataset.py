"""Data sets: labelled arrays, and the settings that an experiment on them starts from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedmate.core import Augmentation, Limits, Source, option
from fedmate.core.options import check_options
from fedmate.data.sources import RemoteFile
from fedmate.errors import UserError

ArrayLike: TypeAlias = NDArray[Any] | torch.Tensor | Sequence[Any]

CHUNK = 1000
"""Samples that are hashed at once, so that a memory-mapped file is never in memory as a whole."""

MOST_CLASSES = 100_000
"""More classes are a mistake: a column of other numbers was taken for labels."""

OWN_DEFAULTS: dict[str, dict[str, Any]] = {"partition": {"name": "dirichlet"}, "model": {"name": "mlp"}}
"""A partition and a network for a user's own classes and shapes."""


class Samples(NamedTuple):
    """Inputs `[samples, ...]`, images as bytes `[samples, channels, height, width]`, and labels `[samples]`, int64.

    Both may be memory-mapped: take the rows you need, do not write into them.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]


class Normalisation(NamedTuple):
    """Constants of a data set, one per channel or one for all: a network reads (sample - mean) / std.

    They do not depend on any client's data, and travel with every exported model.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @classmethod
    def of_bytes(cls, mean: tuple[float, ...], std: tuple[float, ...]) -> Self:
        """Return the normalisation of bytes for constants given on the scale from 0 to 1."""
        return cls(tuple(255 * value for value in mean), tuple(255 * value for value in std))

    def source(self, x: NDArray[Any], augmentation: Augmentation, dtype: torch.dtype, device: str) -> Source:
        """Put samples on a device, together with their normalisation and augmentation."""
        shape = (-1, *[1] * (x.ndim - 2))
        mean, std = (torch.tensor(values, dtype=dtype, device=device).reshape(shape) for values in self)
        # Bytes stay bytes; other numbers take the network's precision at once.
        samples = torch.from_numpy(np.ascontiguousarray(x))
        samples = samples.to(device) if samples.dtype == torch.uint8 else samples.to(device, dtype)
        return Source(samples, mean, std, augmentation)


class Arrays(NamedTuple):
    """A loaded data set; without an official test split, the samples that no client holds are used."""

    train: Samples  # the samples that are split over clients
    test: Samples | None
    class_names: tuple[str, ...]  # one for each label
    normalisation: Normalisation = Normalisation()  # applied when a network reads samples
    clients: NDArray[np.int64] | None = None  # the natural client of each training sample, numbered from 0, if known
    notes: tuple[str, ...] = ()  # warnings for the user
    digest: str | None = None  # of the content, if it is known already
    client_names: tuple[str, ...] = ()  # of the natural clients
    local_tests: tuple[Samples, ...] = ()  # by natural or given client, the test samples of its own

    def tests_of(self, partition: str, holdings: Sequence[NDArray[np.int64]]) -> list[Samples]:
        """Return the test samples of their own that the clients of a partition brought, if they are these clients."""
        if self.local_tests and partition == "natural" and self.clients is not None:
            return [self.local_tests[self.clients[rows[0]]] for rows in holdings]
        return list(self.local_tests) if partition == "given" else []


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A data set; its fields are its options."""

    citation: ClassVar[str] = ""  # the publication: a key of data/citations.bib, or an entry of BibTeX
    downloads: ClassVar[tuple[RemoteFile, ...]] = ()  # the files that `fedmate data NAME` downloads
    # How to get the data set by hand, step by step; `{folder}` stands for the folder of data sets.
    instructions: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse options outside their limits."""
        check_options("dataset", type(self), vars(self))

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The settings that an experiment on this data set starts from, by section.

        In a section with a `name` the other keys hold for that name only; without a `name` they hold for all.
        """
        return {}

    @property
    def augmentation(self) -> Augmentation:
        """How training images are augmented, by the options `crop` and `flip` if there are any."""
        return Augmentation(getattr(self, "crop", 0), getattr(self, "flip", False))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of dominant classes in the partition `share`; empty: the partition's own rule."""
        return ()

    def find(self, folder: Path) -> list[Path]:
        """Return the files that `load` reads, or raise `UserError` if some are missing."""
        return []

    def stand_ins(self) -> Arrays | None:
        """Return samples of the right shape where clients hold the data, and `load` reads none; otherwise `None`."""
        return None

    def check_site(self, arrays: Arrays) -> None:  # noqa: B027 most have nothing to check
        """Raise `UserError` if a site's own data is not what `stand_ins` stands for."""

    @abstractmethod
    def load(self, folder: Path) -> Arrays:
        """Read the arrays; `folder` is the folder of data sets."""


def crop_option(default: int = 0) -> Any:
    """Declare the option of random crops."""
    return option(default, "random crops after padding by that many pixels; 0 is off", Limits(at_least=0, at_most=64))


def flip_option(default: bool = False) -> Any:
    """Declare the option of random flips."""
    return option(default, "mirror half of the training images")


def content_digest(arrays: Arrays) -> str:
    """Return the SHA-256 of the numbers and class names of a data set."""
    found = hashlib.sha256("\n".join(arrays.class_names).encode())
    owners = [] if arrays.clients is None else [arrays.clients]
    own_tests = [array for samples in arrays.local_tests for array in samples]
    for array in [*arrays.train, *(arrays.test or ()), *owners, *own_tests]:
        found.update(f"{array.dtype.str} {array.shape}".encode())
        for start in range(0, len(array), CHUNK):
            found.update(np.ascontiguousarray(array[start : start + CHUNK]).data)
    return found.hexdigest()


def hold_back(labels: NDArray[np.int64], rng: np.random.Generator, share: float = 0.2) -> NDArray[np.int64]:
    """Choose about a share of each class as test samples, but never the only sample of a class."""
    order = rng.permutation(len(labels))
    order = order[np.bincount(labels)[labels[order]] > 1]
    # At even distances in a row in which classes stand together: each class gives its share, rounded up or down.
    steps = np.floor(np.round(np.arange(len(order) + 1) * share + (1 - share) / 2, 9))
    chosen: NDArray[np.int64] = np.sort(order[np.argsort(labels[order], kind="stable")][np.diff(steps) > 0])
    return chosen


def hold_back_from_each(
    labels: NDArray[np.int64], holdings: Sequence[NDArray[np.int64]], rng: np.random.Generator, share: float
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    """Hold back a share of each client's rows; return what clients keep, and what is held back, each in order."""
    held = [rows[hold_back(labels[rows], rng, share)] for rows in map(np.sort, holdings)]
    # Clients may have samples in common, and no client trains on what another is tested on.
    return [np.setdiff1d(rows, np.concatenate(held)) for rows in holdings], held


def as_array(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return values as an array of numbers or words, or raise `UserError`; messages call them `name`."""
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
    # Words in a table of pandas are objects.
    is_words = array.dtype == object and all(isinstance(value, str) for value in array.flat)
    return array.astype(str) if is_words else array


def as_numbers(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return values as an array of finite numbers, or raise `UserError`; messages call them `name`."""
    array = as_array(name, values)
    if array.dtype.kind not in "biuf":
        raise UserError(f"`{name}` holds {array.dtype} values; give an array of numbers.")
    finite = np.isfinite(array)
    if not finite.all():
        place = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise UserError(f"`{name}` is {array[place]} at {list(place)}; replace numbers that are not finite.")
    return array


def as_floats(name: str, values: ArrayLike) -> NDArray[Any]:
    """Return a copy of finite numbers in double precision if they have it, otherwise in single precision."""
    numbers = as_numbers(name, values)
    is_double = numbers.dtype.kind == "f" and numbers.dtype.itemsize >= 8
    return np.array(numbers, np.float64 if is_double else np.float32, order="C")


def pair_up(
    inputs: Mapping[str, NDArray[Any]],
    labels: Mapping[str, NDArray[Any]],
    class_names: Sequence[Any] | None,
    called: str = "class_names",
) -> tuple[list[Samples], tuple[str, ...]]:
    """Return the samples of some parts, with labels as numbers, and the names of the classes, or raise `UserError`.

    Labels are numbers from 0 or words; in their order they name the classes if `class_names` are left out. Messages
    call arrays by their keys, and `class_names` as `called` says.
    """
    first_name, first = next(iter(inputs.items()))
    for (x_name, x), (y_name, y) in zip(inputs.items(), labels.items(), strict=True):
        if x.ndim < 2 or not x.size or y.shape != x.shape[:1]:
            raise UserError(
                f"`{x_name}` has the shape {list(x.shape)}, `{y_name}` {list(y.shape)}; give [samples, ...] and one "
                "label for each sample, at least one."
            )
        if (x.dtype == np.uint8, x.shape[1:]) != (first.dtype == np.uint8, first.shape[1:]):
            raise UserError(
                f"`{x_name}` has {x.dtype} samples of shape {list(x.shape[1:])}, `{first_name}` {first.dtype} samples "
                f"of shape {list(first.shape[1:])}; give all one type and shape."
            )
    names = () if class_names is None else tuple(map(str, class_names))
    if all(y.dtype.kind == "U" for y in labels.values()):
        names = names or tuple(sorted({word for y in labels.values() for word in y.tolist()}))
        places = {word: place for place, word in enumerate(names)}
        unknown = [(y_name, word) for y_name, y in labels.items() for word in y.tolist() if word not in places]
        if unknown:
            raise UserError(f"`{unknown[0][0]}` holds `{unknown[0][1]}`, which is none of `class_names`; add it.")
        numbers = [np.array([places[word] for word in y.tolist()], dtype=np.int64) for y in labels.values()]
    else:
        numbers = [check_labels(y_name, y, len(names) or MOST_CLASSES) for y_name, y in labels.items()]
        names = names or tuple(map(str, range(1 + max(int(y.max()) for y in numbers))))
    check_names(next(iter(labels)) if class_names is None else called, names)
    return [Samples(x, y) for x, y in zip(inputs.values(), numbers, strict=True)], names


def check_labels(name: str, labels: NDArray[Any], num_classes: int) -> NDArray[np.int64]:
    """Return whole numbers below `num_classes` as they are stored, or raise `UserError`."""
    if labels.dtype.kind not in "biuf":
        raise UserError(f"`{name}` holds {labels.dtype} values; give whole numbers, or words in every part.")
    wrong = np.flatnonzero(~((labels >= 0) & (labels < num_classes) & (labels == np.floor(labels))))
    if len(wrong):
        raise UserError(
            f"`{name}` is {labels[wrong[0]]} at [{wrong[0]}], but labels are whole numbers from 0 to "
            f"{num_classes - 1}; number the classes like that."
        )
    return labels.astype(np.int64)


def check_names(name: str, class_names: Sequence[str]) -> None:
    """Raise `UserError` unless there are two different classes at least; messages call them `name`."""
    twice = [one for one, count in Counter(class_names).items() if count > 1]
    if twice:
        raise UserError(f"`{name}` has `{twice[0]}` twice; give each class a name of its own.")
    if not 2 <= len(class_names) <= MOST_CLASSES:
        raise UserError(f"`{name}` has {len(class_names)} classes; there must be 2 to {MOST_CLASSES:,}.")
