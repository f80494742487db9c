"""EMNIST (Cohen et al., 2017): handwritten digits and letters, in several splits.

The prepared `emnist.npz` comes last because its name does not tell the split. Idx files hold images with rows and
columns exchanged, which is undone.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, final

import numpy as np

from fedmate.core import option
from fedmate.data.archives import read_all
from fedmate.data.dataset import Arrays, Normalisation, RemoteFile, Samples
from fedmate.data.files import FileDataset, find_first
from fedmate.data.idx import SIDE, idx_files, read_splits
from fedmate.data.mnist import NORMALISATION
from fedmate.data.npz import read_npz, read_prepared
from fedmate.errors import UserError


class Split(NamedTuple):
    """A split of EMNIST.

    Attributes:
        characters: its classes, in groups.
        published: the official numbers of training and test images.
        examples: the default number of samples of a client.
        first: the number of the first class in its idx files.
    """

    characters: tuple[str, ...]
    published: tuple[int, int]
    examples: int
    first: int = 0


DIGITS, UPPER, LOWER = string.digits, string.ascii_uppercase, string.ascii_lowercase

SPLITS = {
    "byclass": Split((DIGITS, UPPER, LOWER), (697_932, 116_323), 1000),
    # The other small letters look like their capitals and count among them.
    "balanced": Split((DIGITS, UPPER, "abdefghnqrt"), (112_800, 18_800), 320),
    "letters": Split((UPPER,), (124_800, 20_800), 1000, first=1),
}


@final
@dataclass(frozen=True, kw_only=True)
class Emnist(FileDataset):
    """EMNIST: handwritten digits, capitals and small letters, 28 x 28 pixels."""

    split: Literal["byclass", "balanced", "letters"] = option(
        "byclass", "`byclass`: 62 classes; `balanced`: 47, as many of each; `letters`: 26, without regard to case"
    )

    normalisation: ClassVar[Normalisation] = NORMALISATION
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
        """The paper's partition, network and learning rate."""
        return {
            "partition": {"name": "share", "examples": SPLITS[self.split].examples},
            "model": {"name": "emnist_cnn"},
            "training": {"learning_rate": 0.01},
        }

    @property
    def class_names(self) -> tuple[str, ...]:
        """The characters of the split."""
        return tuple("".join(SPLITS[self.split].characters))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Digits, capitals and small letters, if the split has them."""
        groups = SPLITS[self.split].characters
        ends = np.cumsum([len(group) for group in groups]).tolist()
        spans = zip(groups, ends, strict=True)
        return tuple(tuple(range(end - len(group), end)) for group, end in spans) if len(groups) > 1 else ()

    @property
    def published(self) -> tuple[int, int]:
        """The official numbers of images in the split."""
        return SPLITS[self.split].published

    def find(self, folder: Path) -> list[Path]:
        """Return the four idx files, the archive or the prepared file."""
        places = (folder / "emnist", folder / "EMNIST/raw")
        archives = [[place / "gzip.zip"] for place in (*places, folder)]
        trees = [idx_files(place, self._files()) for place in places]
        return find_first("emnist", folder, [*trees, *archives, [folder / "emnist.npz"]])

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the four idx files or the prepared file."""
        if found[0].suffix == ".npz":
            self._check_split(found[0])
            return read_prepared(found[0], (1, SIDE, SIDE), self.class_names)
        files = read_all(found, [f"gzip/{file}.gz" for file in self._files()])
        train, test = read_splits(files, len(self.class_names), SPLITS[self.split].first)
        train, test = (Samples(part.x.swapaxes(2, 3), part.y) for part in (train, test))
        return Arrays(train, test, self.class_names)

    def _files(self) -> list[str]:
        kinds = ("images-idx3", "labels-idx1")
        return [f"emnist-{self.split}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in kinds]

    def _check_split(self, path: Path) -> None:
        """Refuse labels of another split: their numbers would name other characters."""
        arrays = read_npz(path)
        labels = [arrays[name] for name in ("train_y", "test_y") if name in arrays]
        if not labels or not all(part.dtype.kind in "iu" and part.size for part in labels):
            return
        classes = max(int(part.max()) for part in labels) + 1
        if classes != len(self.class_names):
            fitting = next((name for name, split in SPLITS.items() if len("".join(split.characters)) == classes), None)
            advice = f"set `dataset.split` to `{fitting}`" if fitting else "no split has as many: check its origin"
            raise UserError(
                f"`dataset.split` is `{self.split}` with {len(self.class_names)} classes, but `{path}` has {classes}; "
                f"{advice}."
            )
