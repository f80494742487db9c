"""MNIST (LeCun et al., 1998) and its relatives: Fashion-MNIST (Xiao et al., 2017), EMNIST (Cohen et al., 2017), Digits.

All but Digits are in idx files: the type and number of axes, their lengths, then the numbers, which are bytes here.
"""

from __future__ import annotations

import gzip
import math
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import option
from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples, check_labels
from fedmate.data.files import PublishedDataset, paper_settings
from fedmate.data.sources import RemoteFile, damaged, read_all
from fedmate.errors import UserError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _downloads(address: str, folder: str, *files: tuple[int, str]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{address}/{name}.gz", f"{folder}/{name}.gz", *file)
        for name, file in zip(FILES, files, strict=True)
    )


def read_idx(name: str, data: bytes) -> NDArray[np.uint8]:
    """Return the array in an idx file, compressed by gzip or not, or raise `UserError`."""
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(name, str(error)) from None
    if data[:3] != b"\0\0\x08" or len(data) < 4:
        raise UserError(
            f"`{name}` begins with the bytes `{data[:4].hex(' ')}`, so it is no idx file of bytes; download it again."
        )
    start = 4 + 4 * data[3]
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    if len(data) != start + math.prod(shape):
        raise damaged(name, f"it announces {math.prod(shape):,} bytes and has {len(data) - start:,}")
    # A copy that can be written to, as torch wants it.
    return np.frombuffer(bytearray(data), np.uint8, offset=start).reshape(shape)


@dataclass(frozen=True, kw_only=True)
class _IdxDataset(PublishedDataset):
    """Images of 28 x 28 pixels and their labels in four idx files."""

    folders: ClassVar[tuple[str, ...]]
    """Where the files may lie; the second folder is torchvision's."""
    is_turned: ClassVar[bool] = False
    """Whether the files hold rows and columns exchanged."""

    shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    # The constants of MNIST, which are customary for its relatives, too.
    normalisation: ClassVar[Normalisation] = Normalisation.of_bytes((0.1307,), (0.3081,))

    @property
    def files(self) -> tuple[str, ...]:
        """Training images, their labels, test images, their labels."""
        return FILES

    @property
    def first_label(self) -> int:
        """The number of the first class in the files."""
        return 0

    def candidates(self, folder: Path) -> list[list[Path]]:
        """Return the four idx files in each of the folders: `NAME` if it exists, else `NAME.gz`."""
        places = [[folder / place / name for name in self.files] for place in self.folders]
        return [[path if path.is_file() else path.with_name(f"{path.name}.gz") for path in paths] for paths in places]

    def read_published(self, found: Sequence[Path]) -> Arrays:
        """Read the four idx files, or the archive of EMNIST's."""
        files = read_all(found, [f"gzip/{file}.gz" for file in self.files])
        return Arrays(self._read_part(*files[:2]), self._read_part(*files[2:]), self.class_names)

    def _read_part(self, images: tuple[str, bytes], labels: tuple[str, bytes]) -> Samples:
        x, y = read_idx(*images), read_idx(*labels)
        if x.ndim != 3 or x.shape[1:] != self.shape[1:] or y.shape != (len(x),) or not len(y):
            raise UserError(
                f"`{images[0]}` has the shape {list(x.shape)} and `{labels[0]}` {list(y.shape)}, expected [images, 28, "
                "28] and [images]; check whether they are the right files."
            )
        x = x.swapaxes(1, 2) if self.is_turned else x
        return Samples(x[:, None], check_labels(labels[0], y - self.first_label, len(self.class_names)))


@final
@dataclass(frozen=True, kw_only=True)
class Mnist(_IdxDataset):
    """MNIST: handwritten digits, 28 x 28 pixels."""

    name: ClassVar[str] = "mnist"
    class_names: ClassVar[tuple[str, ...]] = tuple(string.digits)
    folders: ClassVar[tuple[str, ...]] = ("mnist", "MNIST/raw")
    published: ClassVar[tuple[int, int]] = (60_000, 10_000)
    defaults: ClassVar[dict[str, dict[str, Any]]] = paper_settings("emnist_cnn", 0.01)
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
class FashionMnist(_IdxDataset):
    """Fashion-MNIST: pictures of ten kinds of clothes, 28 x 28 pixels."""

    name: ClassVar[str] = "fashion_mnist"
    class_names: ClassVar[tuple[str, ...]] = (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    )
    folders: ClassVar[tuple[str, ...]] = ("fashion_mnist", "FashionMNIST/raw")
    published: ClassVar[tuple[int, int]] = (60_000, 10_000)
    defaults: ClassVar[dict[str, dict[str, Any]]] = paper_settings("emnist_cnn", 0.01)
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


class Split(NamedTuple):
    """A split of EMNIST: its classes in groups, its numbers of images, samples of a client, number of a first class."""

    characters: tuple[str, ...]
    published: tuple[int, int]
    examples: int
    first_label: int = 0


DIGITS, UPPER, LOWER = string.digits, string.ascii_uppercase, string.ascii_lowercase

SPLITS = {
    "byclass": Split((DIGITS, UPPER, LOWER), (697_932, 116_323), 1000),
    # The other small letters look like their capitals and count among them.
    "balanced": Split((DIGITS, UPPER, "abdefghnqrt"), (112_800, 18_800), 320),
    "letters": Split((UPPER,), (124_800, 20_800), 1000, first_label=1),
}


@final
@dataclass(frozen=True, kw_only=True)
class Emnist(_IdxDataset):
    """EMNIST: handwritten digits, capitals and small letters, 28 x 28 pixels."""

    split: Literal["byclass", "balanced", "letters"] = option(
        "byclass", "`byclass`: 62 classes; `balanced`: 47, as many of each; `letters`: 26, without regard to case"
    )

    name: ClassVar[str] = "emnist"
    is_turned: ClassVar[bool] = True
    folders: ClassVar[tuple[str, ...]] = ("emnist", "EMNIST/raw")
    downloads: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "emnist/gzip.zip",
            561_753_746,
            "58c8d27c78d21e728a6bc7b3cc06412e",
        ),
    )
    reading: ClassVar[tuple[str, ...]] = ("split",)
    citation: ClassVar[str] = "emnist2017"

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's settings."""
        return paper_settings("emnist_cnn", 0.01, examples=SPLITS[self.split].examples)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The characters of the split."""
        return tuple("".join(SPLITS[self.split].characters))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Digits, capitals and small letters, if the split has them."""
        sizes = [len(group) for group in SPLITS[self.split].characters]
        spans = zip(sizes, accumulate(sizes), strict=True)
        return tuple(tuple(range(end - size, end)) for size, end in spans) if len(sizes) > 1 else ()

    @property
    def published(self) -> tuple[int, int]:
        """The official numbers of images in the split."""
        return SPLITS[self.split].published

    @property
    def first_label(self) -> int:
        """The number of the first class in the files."""
        return SPLITS[self.split].first_label

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the split."""
        kinds = [f"{part}-{kind}" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")]
        return tuple(f"emnist-{self.split}-{kind}-ubyte" for kind in kinds)

    def candidates(self, folder: Path) -> list[list[Path]]:
        """Return the four idx files and the archive."""
        return [*super().candidates(folder), *([folder / place / "gzip.zip"] for place in (*self.folders, "."))]


@final
@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """Digits: 1,797 handwritten digits, 8 x 8 pixels."""

    # The test part of Alpaydin and Kaynak, 1998, is part of scikit-learn, so nothing is downloaded.
    citation: ClassVar[str] = "digits1998"
    # Pixels go from 0 to 16.
    normalisation: ClassVar[Normalisation] = Normalisation(mean=(4.884,), std=(6.017,))
    # There is no official split. Few samples for each client: the rest is the test split.
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"partition": {"examples": 40}, "model": {"name": "digits_cnn"}}

    def load(self, folder: Path) -> Arrays:
        """Read the digits from scikit-learn."""
        # Imported here because it takes as long as everything else.
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        samples = Samples(images.astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.int64))
        return Arrays(samples, None, tuple("0123456789"), self.normalisation)
