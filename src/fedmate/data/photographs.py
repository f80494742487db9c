"""Published photographs: CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), CINIC-10 and Animals-10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from fedmate.core import Limits, option
from fedmate.data.dataset import Arrays, Normalisation, Samples, check_labels, crop_option, flip_option
from fedmate.data.files import PublishedDataset, paper_settings
from fedmate.data.images import read_images
from fedmate.data.sources import RemoteFile, damaged, read_all

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
CIFAR100_CLASSES = tuple(_NAMES.split())

ANIMALS = {
    "cane": "dog",
    "cavallo": "horse",
    "elefante": "elephant",
    "farfalla": "butterfly",
    "gallina": "chicken",
    "gatto": "cat",
    "mucca": "cow",
    "pecora": "sheep",
    "ragno": "spider",
    "scoiattolo": "squirrel",
}
"""The published folders of Animals-10 and the names of their classes."""


def _toronto(name: str, size: int, md5: str) -> tuple[RemoteFile, ...]:
    return (RemoteFile(f"https://www.cs.toronto.edu/~kriz/{name}", name, size, md5),)


@dataclass(frozen=True, kw_only=True)
class _Small(PublishedDataset):
    """The common part of CIFAR and CINIC-10: 32 x 32 pixels, with crops and flips."""

    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)

    crop: int = crop_option(4)
    flip: bool = flip_option(True)


@dataclass(frozen=True, kw_only=True)
class _Cifar(_Small):
    """The common part: each binary batch has rows of label bytes, the last of which counts, and an image."""

    members: ClassVar[tuple[str, ...]]
    """The batches in the archive; the last one is the test split."""
    label_bytes: ClassVar[int]
    """The number of bytes before each image."""

    published: ClassVar[tuple[int, int]] = (50_000, 10_000)
    citation: ClassVar[str] = "cifar2009"

    def candidates(self, folder: Path) -> list[list[Path]]:
        """Return the unpacked batches and the archive."""
        return [[folder / member for member in self.members], [folder / self.downloads[0].path]]

    def read_published(self, found: Sequence[Path]) -> Arrays:
        """Read the batches in their official order."""
        *train, test = (self._batch(*file) for file in read_all(found, self.members))
        x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
        return Arrays(Samples(x, y), test, self.class_names)

    def _batch(self, name: str, data: bytes) -> Samples:
        width = self.label_bytes + int(np.prod(self.shape))
        if not data or len(data) % width:
            raise damaged(name, f"it has {len(data):,} bytes, no multiple of {width:,}")
        rows = np.frombuffer(data, np.uint8).reshape(-1, width)
        labels = check_labels(name, rows[:, self.label_bytes - 1], len(self.class_names))
        return Samples(rows[:, self.label_bytes :].reshape(-1, *self.shape), labels)


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
    defaults: ClassVar[dict[str, dict[str, Any]]] = paper_settings("cifar_cnn")
    downloads: ClassVar[tuple[RemoteFile, ...]] = _toronto(
        "cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"
    )


@final
@dataclass(frozen=True, kw_only=True)
class Cifar100(_Cifar):
    """CIFAR-100: photographs of a hundred kinds of things, 32 x 32 pixels, by their fine labels."""

    name: ClassVar[str] = "cifar100"
    class_names: ClassVar[tuple[str, ...]] = CIFAR100_CLASSES
    members: ClassVar[tuple[str, ...]] = ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin")
    label_bytes: ClassVar[int] = 2
    normalisation: ClassVar[Normalisation] = Normalisation.of_bytes((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    defaults: ClassVar[dict[str, dict[str, Any]]] = paper_settings("cifar100_cnn", 0.01)
    # Ten groups of ten consecutive labels.
    groups: ClassVar[tuple[tuple[int, ...], ...]] = tuple(tuple(range(i, i + 10)) for i in range(0, 100, 10))
    downloads: ClassVar[tuple[RemoteFile, ...]] = _toronto(
        "cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"
    )


@final
@dataclass(frozen=True, kw_only=True)
class Cinic10(_Small):
    """CINIC-10: ten classes of photographs, 32 x 32 pixels, 4.5 times as many as in CIFAR-10."""

    # Darlow et al., 2018: CIFAR-10 and downsampled ImageNet. The folder `valid` is not used.
    name: ClassVar[str] = "cinic10"
    class_names: ClassVar[tuple[str, ...]] = CIFAR10_CLASSES
    published: ClassVar[tuple[int, int]] = (90_000, 90_000)
    normalisation: ClassVar[Normalisation] = Normalisation.of_bytes(
        (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)
    )
    defaults: ClassVar[dict[str, dict[str, Any]]] = paper_settings("cifar_cnn")
    downloads: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile(
            # Addresses of the older form, `/bitstream/handle/10283/3192/...`, return a web page to programs.
            "https://datashare.ed.ac.uk/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/download",
            "CINIC-10.tar.gz",
            687_544_992,
            "6ee4d0c996905fe93221de577967a372",
        ),
    )
    reading: ClassVar[tuple[str, ...]] = ("skip_bad",)
    citation: ClassVar[str] = "cinic2018"

    skip_bad: bool = option(False, "leave out images that cannot be read")

    def candidates(self, folder: Path) -> list[list[Path]]:
        """Return the folders of the classes and the archive."""
        tops = (folder / "CINIC-10", folder / "cinic10", folder / "cinic-10", folder)
        trees = [[top / part / kind for part in ("train", "test") for kind in CIFAR10_CLASSES] for top in tops]
        return [*trees, [folder / "CINIC-10.tar.gz"]]

    def read_published(self, found: Sequence[Path]) -> Arrays:
        """Read all images."""
        return read_images(found, {kind: kind for kind in CIFAR10_CLASSES}, size=32, skip_bad=self.skip_bad)


@final
@dataclass(frozen=True, kw_only=True)
class Animal10(PublishedDataset):
    """Animals-10: photographs of ten kinds of animals from the web."""

    # By Corrado Alessio: 26,000 of all sizes, stretched to squares. There is no official split: a fifth of each class
    # is the test split. A prepared file is split already.
    name: ClassVar[str] = "animal10"
    class_names: ClassVar[tuple[str, ...]] = tuple(ANIMALS.values())
    published: ClassVar[tuple[int, int]] = (20_943, 5_236)
    # Of ImageNet.
    normalisation: ClassVar[Normalisation] = Normalisation.of_bytes((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    defaults: ClassVar[dict[str, dict[str, Any]]] = paper_settings("animals_cnn", 0.01, share=20.0)
    instructions: ClassVar[tuple[str, ...]] = (
        "Sign in at https://www.kaggle.com: an account is needed, and free.",
        "Open https://www.kaggle.com/datasets/alessiocorrado99/animals10 and download the data set.",
        "Put the archive, packed as it is, into `{folder}`; its name is `archive.zip` or `animals10.zip`.",
        "Or unpack it, so that `{folder}/animal10/raw-img/cane` and nine other folders hold the images.",
    )
    reading: ClassVar[tuple[str, ...]] = ("size", "skip_bad", "split_seed")
    citation: ClassVar[str] = "animals10"

    flip: bool = flip_option(True)
    size: int = option(32, "pixels on each side, to which images are stretched", Limits(at_least=1, at_most=4096))
    skip_bad: bool = option(False, "leave out images that cannot be read")
    split_seed: int = option(0, "seed of the random test split, a fifth of each class", Limits(at_least=0))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (3, self.size, self.size)

    def candidates(self, folder: Path) -> list[list[Path]]:
        """Return the folders of the classes and the archive."""
        tops = [folder / "animal10", folder / "animals10", folder / "animals-10", folder]
        trees = [[root / kind for kind in ANIMALS] for top in tops for root in (top / "raw-img", top)]
        return [*trees, [folder / "animals10.zip"], [folder / "archive.zip"]]

    def read_published(self, found: Sequence[Path]) -> Arrays:
        """Read all images."""
        return read_images(found, ANIMALS, **{key: getattr(self, key) for key in self.reading})
