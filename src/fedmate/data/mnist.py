"""MNIST (LeCun et al., 1998) and Fashion-MNIST (Xiao et al., 2017), read from idx files or a prepared `.npz`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from fedmate.data.archives import read_all
from fedmate.data.dataset import Arrays, Normalisation, RemoteFile
from fedmate.data.files import FileDataset, find_first
from fedmate.data.idx import SIDE, idx_files, read_splits
from fedmate.data.npz import read_prepared

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

NORMALISATION = Normalisation.of_bytes((0.1307,), (0.3081,))
"""The constants of MNIST, which are customary for its relatives, too."""


def _downloads(address: str, folder: str, *files: tuple[int, str]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{address}/{name}.gz", f"{folder}/{name}.gz", *file)
        for name, file in zip(FILES, files, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class _MnistLike(FileDataset):
    """The common part."""

    name: ClassVar[str]
    class_names: ClassVar[tuple[str, ...]]
    other_folder: ClassVar[str]
    """The folder in which torchvision puts the files."""

    normalisation: ClassVar[Normalisation] = NORMALISATION

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's settings for grey images."""
        return {
            "partition": {"name": "share", "examples": 600},
            "model": {"name": "emnist_cnn"},
            "training": {"learning_rate": 0.01},
        }

    @property
    def published(self) -> tuple[int, int]:
        """The official numbers of images."""
        return 60_000, 10_000

    def find(self, folder: Path) -> list[Path]:
        """Return the prepared file or the four idx files."""
        places = (folder / self.name, folder / self.other_folder)
        candidates = [[folder / f"{self.name}.npz"], *(idx_files(place, FILES) for place in places)]
        return find_first(self.name, folder, candidates)

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the prepared file or the four idx files."""
        if len(found) == 1:
            return read_prepared(found[0], (1, SIDE, SIDE), self.class_names)
        return Arrays(*read_splits(read_all(found, ()), len(self.class_names)), self.class_names)


@final
@dataclass(frozen=True, kw_only=True)
class Mnist(_MnistLike):
    """MNIST: handwritten digits, 28 x 28 pixels."""

    name: ClassVar[str] = "mnist"
    class_names: ClassVar[tuple[str, ...]] = tuple("0123456789")
    other_folder: ClassVar[str] = "MNIST/raw"
    # The original host has refused access since 2024; this is PyTorch's copy.
    downloads: ClassVar[tuple[RemoteFile, ...]] = _downloads(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "mnist",
        (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    )
    citation: ClassVar[str] = "mnist1998"


@final
@dataclass(frozen=True, kw_only=True)
class FashionMnist(_MnistLike):
    """Fashion-MNIST: pictures of ten kinds of clothes, 28 x 28 pixels."""

    name: ClassVar[str] = "fashion_mnist"
    class_names: ClassVar[tuple[str, ...]] = (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    )
    other_folder: ClassVar[str] = "FashionMNIST/raw"
    # There is no https address; the checksum protects the files.
    downloads: ClassVar[tuple[RemoteFile, ...]] = _downloads(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "fashion_mnist",
        (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    )
    citation: ClassVar[str] = "fashionmnist2017"
