"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), read from the binary archives, unpacked or not, or a prepared `.npz`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from fedmate.core import option
from fedmate.data.archives import damaged, read_all
from fedmate.data.dataset import (
    CROP_HELP,
    CROP_LIMITS,
    FLIP_HELP,
    Arrays,
    Normalisation,
    RemoteFile,
    Samples,
    check_labels,
)
from fedmate.data.files import FileDataset, find_first
from fedmate.data.npz import read_prepared

SHAPE = (3, 32, 32)

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR100_CLASSES = (
    *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle"),
    *("bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle"),
    *("chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur"),
    *("dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard"),
    *("lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain"),
    *("mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree"),
    *("plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket"),
    *("rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider"),
    *("squirrel", "streetcar", "sunflower", "sweet_pepper", "table"),
    *("tank", "telephone", "television", "tiger", "tractor"),
    *("train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm"),
)


@dataclass(frozen=True, kw_only=True)
class _Cifar(FileDataset):
    """The common part: each binary batch has rows of label bytes, the last of which counts, and an image."""

    name: ClassVar[str]
    class_names: ClassVar[tuple[str, ...]]
    members: ClassVar[tuple[str, ...]]
    """The batches in the archive; the last one is the test split."""
    label_bytes: ClassVar[int]
    """The number of bytes before each image."""

    citation: ClassVar[str] = "cifar2009"

    crop: int = option(4, CROP_HELP, CROP_LIMITS)
    flip: bool = option(True, FLIP_HELP)

    @property
    def published(self) -> tuple[int, int]:
        """The official numbers of images."""
        return 50_000, 10_000

    def find(self, folder: Path) -> list[Path]:
        """Return the prepared file, the unpacked batches or the archive."""
        archive = folder / self.downloads[0].path
        batches = [folder / member for member in self.members]
        return find_first(self.name, folder, [[folder / f"{self.name}.npz"], batches, [archive]])

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the batches in their official order."""
        if found[0].suffix == ".npz":
            return read_prepared(found[0], SHAPE, self.class_names)
        *train, test = (self._batch(*file) for file in read_all(found, self.members))
        x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
        return Arrays(Samples(x, y), test, self.class_names)

    def _batch(self, name: str, data: bytes) -> Samples:
        width = self.label_bytes + int(np.prod(SHAPE))
        if not data or len(data) % width:
            raise damaged(name, f"it has {len(data):,} bytes, no multiple of {width:,}")
        rows = np.frombuffer(data, np.uint8).reshape(-1, width)
        labels = check_labels(name, rows[:, self.label_bytes - 1], len(self.class_names))
        return Samples(rows[:, self.label_bytes :].reshape(-1, *SHAPE), labels)


@final
@dataclass(frozen=True, kw_only=True)
class Cifar10(_Cifar):
    """CIFAR-10: photographs of ten kinds of animals and vehicles, 32 x 32 pixels."""

    name: ClassVar[str] = "cifar10"
    class_names: ClassVar[tuple[str, ...]] = CIFAR10_CLASSES
    members: ClassVar[tuple[str, ...]] = tuple(
        f"cifar-10-batches-bin/{batch}.bin" for batch in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    )
    label_bytes: ClassVar[int] = 1
    normalisation: ClassVar[Normalisation] = Normalisation.of_bytes((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    downloads: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
    )

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's partition and network."""
        return {"partition": {"name": "share", "examples": 600}, "model": {"name": "cifar_cnn"}}


@final
@dataclass(frozen=True, kw_only=True)
class Cifar100(_Cifar):
    """CIFAR-100: photographs of a hundred kinds of things, 32 x 32 pixels, by their fine labels."""

    name: ClassVar[str] = "cifar100"
    class_names: ClassVar[tuple[str, ...]] = CIFAR100_CLASSES
    members: ClassVar[tuple[str, ...]] = ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin")
    label_bytes: ClassVar[int] = 2
    normalisation: ClassVar[Normalisation] = Normalisation.of_bytes((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    downloads: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "cifar-100-binary.tar.gz",
            168_513_733,
            "03b5dce01913d631647c71ecec9e9cb8",
        ),
    )

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's partition, network and learning rate."""
        return {
            "partition": {"name": "share", "examples": 600},
            "model": {"name": "cifar100_cnn"},
            "training": {"learning_rate": 0.01},
        }

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Ten groups of ten consecutive labels."""
        return tuple(tuple(range(first, first + 10)) for first in range(0, 100, 10))
