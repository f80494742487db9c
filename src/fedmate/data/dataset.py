"""What a data set is: arrays with labels, and what an experiment on it starts from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedmate.core import Augmentation, Source
from fedmate.core.options import check_options

CHUNK = 1000
"""Samples looked at in one go, so that large files are never in memory as a whole."""


class Samples(NamedTuple):
    """Inputs `[samples, ...]`, images as bytes `[samples, channels, height, width]`, and labels `[samples]`, int64.

    Either may be a memory-mapped file: take the rows you need, do not write into it.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]


class Normalisation(NamedTuple):
    """What is done to raw samples before a network reads them: subtract `mean`, divide by `std`.

    Both have a number for each channel, or one for all. They are constants of the data set, so that a client's input
    does not depend on anybody's data, and travel with every model that leaves.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @classmethod
    def of_bytes(cls, mean: tuple[float, ...], std: tuple[float, ...]) -> Self:
        """Return what does to bytes what `mean` and `std` do to brightness from 0 to 1."""
        return cls(tuple(255 * value for value in mean), tuple(255 * value for value in std))

    def source(self, x: NDArray[Any], augmentation: Augmentation, dtype: torch.dtype, device: str) -> Source:
        """Put samples on a device, with what is done to them whenever they are read."""
        shape = (-1, *[1] * (x.ndim - 2))
        mean, std = (torch.tensor(values, dtype=dtype, device=device).reshape(shape) for values in self)
        # Bytes stay bytes; other numbers take the network's precision at once.
        samples = torch.from_numpy(np.ascontiguousarray(x))
        samples = samples.to(device) if samples.dtype == torch.uint8 else samples.to(device, dtype)
        return Source(samples, mean, std, augmentation)


class Arrays(NamedTuple):
    """A loaded data set.

    Attributes:
        train: what is dealt to the clients.
        test: the official test split; `None` if there is none, then what no client holds is the test split.
        class_names: one for each label.
        normalisation: what the samples still need.
        clients: whose each training sample is, numbered from 0, if the data set tells.
        notes: sentences the user should read.
        digest: of the content, if it is known already.
        client_names: what those clients are called.
    """

    train: Samples
    test: Samples | None
    class_names: tuple[str, ...]
    normalisation: Normalisation = Normalisation()
    clients: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    digest: str | None = None
    client_names: tuple[str, ...] = ()


def content_digest(arrays: Arrays) -> str:
    """Return what tells the content of a data set from others: the SHA-256 of its numbers and names."""
    found = hashlib.sha256("\n".join(arrays.class_names).encode())
    parts = [*arrays.train, *(arrays.test or ()), *([] if arrays.clients is None else [arrays.clients])]
    for array in parts:
        found.update(f"{array.dtype.str} {array.shape}".encode())
        for chunk in chunks(array):
            found.update(np.ascontiguousarray(chunk).data)
    return found.hexdigest()


def chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield an array some rows at a time."""
    yield from (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))


def hold_back(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose a fifth of samples for a test, from each class as nearly as can be, but never a class's only sample."""
    order = rng.permutation(len(labels))
    order = order[np.bincount(labels)[labels[order]] > 1]
    # Every fifth of a row in which classes stand together: each gives a fifth, rounded up or down.
    chosen: NDArray[np.int64] = np.sort(order[np.argsort(labels[order], kind="stable")][2::5])
    return chosen


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A data set; fields are its options."""

    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}
    """Named settings that replace its defaults, by section."""

    bibtex: ClassVar[str] = ""
    """What to cite for it, as entries of BibTeX; empty where there is nothing."""

    def __post_init__(self) -> None:
        """Refuse options outside their limits."""
        check_options("dataset", type(self), vars(self))

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """What an experiment on this data set starts from, by section.

        In a section with a `name` the other keys hold for that name; without it they hold for all.
        """
        return {}

    @property
    def augmentation(self) -> Augmentation:
        """How its images are varied in training."""
        return Augmentation()

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The classes that dominate clients together in the partition `share`; its own rule if there are none."""
        return ()

    def stand_ins(self) -> Arrays | None:
        """Return samples of the right shape where clients hold the data, and `load` reads none; otherwise `None`."""
        return None

    def check_site(self, arrays: Arrays) -> None:  # noqa: B027 most have nothing to check
        """Raise `UserError` if a site's own data is not what `stand_ins` stands for."""

    @abstractmethod
    def load(self, folder: Path) -> Arrays:
        """Read the arrays; `folder` is where data sets lie."""
