"""EMNIST: handwritten digits and letters, 28 x 28 pixels, in several splits; 697,932 + 116,323 images in `byclass`.

Cohen, Afshar, Tapson and van Schaik, "EMNIST: Extending MNIST to Handwritten Letters", International Joint Conference
on Neural Networks, 2017.

Read from the first of these that is there: the four idx files of the split, compressed or not, in `emnist` or
`EMNIST/raw`; the archive `gzip.zip` there or in the folder of data sets itself; the prepared `emnist.npz`, which cannot
say by its name which split it is, and therefore comes last. The idx files hold images with rows and columns exchanged,
which is undone.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import option
from fedmate.data.bundle import damaged, open_bundle, read_file
from fedmate.data.dataset import Normalisation, Samples
from fedmate.data.files import Content, ImageDataset, first_complete, missing
from fedmate.data.idx import SIDE, Named, idx_files, read_pair
from fedmate.data.mnist import NORMALISATION
from fedmate.data.npz import check_prepared, read_npz
from fedmate.errors import UserError

DIGITS, UPPER, LOWER = string.digits, string.ascii_uppercase, string.ascii_lowercase

SPLITS: dict[str, tuple[str, ...]] = {
    "byclass": (DIGITS, UPPER, LOWER),
    # The other small letters look like their capitals and count among them.
    "balanced": (DIGITS, UPPER, "abdefghnqrt"),
    "letters": (UPPER,),
}
"""By split: the characters that are its classes, in groups."""

FIRST = {"byclass": 0, "balanced": 0, "letters": 1}
"""By split: the number its idx files give the first class."""

EXAMPLES = {"byclass": 1000, "balanced": 320, "letters": 1000}
"""By split: how many samples a client gets."""

PUBLISHED = {"byclass": (697_932, 116_323), "balanced": (112_800, 18_800), "letters": (124_800, 20_800)}
"""By split: how many images there are to train and to test on."""

PLACES = ("emnist", "EMNIST/raw")
ARCHIVE = "gzip.zip"


@final
@dataclass(frozen=True, kw_only=True)
class Emnist(ImageDataset):
    """EMNIST: handwritten digits, capitals and small letters, 28 x 28 pixels."""

    split: Literal["byclass", "balanced", "letters"] = option(
        "byclass", "`byclass`: 62 classes; `balanced`: 47, as many of each; `letters`: 26, without regard to case"
    )

    reading: ClassVar[tuple[str, ...]] = ("split",)

    bibtex: ClassVar[str] = r"""@inproceedings{emnist2017,
  title = {{EMNIST}: Extending {MNIST} to Handwritten Letters},
  author = {Cohen, Gregory and Afshar, Saeed and Tapson, Jonathan and van Schaik, Andr{\'e}},
  booktitle = {International Joint Conference on Neural Networks (IJCNN)},
  pages = {2921--2926},
  year = {2017}
}"""

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's split, with its network and step size."""
        return {
            "partition": {"name": "share", "examples": EXAMPLES[self.split]},
            "model": {"name": "emnist_cnn"},
            "training": {"learning_rate": 0.01},
        }

    @property
    def class_names(self) -> tuple[str, ...]:
        """The characters of the split."""
        return tuple("".join(SPLITS[self.split]))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Digits, capitals and small letters, if the split has them."""
        sizes = [len(characters) for characters in SPLITS[self.split]]
        ends = np.cumsum(sizes).tolist()
        return tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)) if sizes[1:] else ()

    @property
    def published(self) -> tuple[int, int]:
        """How many images the split has."""
        return PUBLISHED[self.split]

    def find(self, folder: Path) -> list[Path]:
        """Return the files of the first form that is all there."""
        places = [folder / place for place in PLACES]
        candidates = [
            *(idx_files(place, self._files()) for place in places),
            *([place / ARCHIVE] for place in (*places, folder)),
            [folder / "emnist.npz"],
        ]
        found = first_complete("emnist", candidates)
        if found is None:
            names = [f"{PLACES[0]}/{ARCHIVE}", f"{PLACES[0]}/{self._files()[0]}.gz", "emnist.npz"]
            raise missing("emnist", folder, names)
        return found

    def read(self, found: Sequence[Path]) -> Content:
        """Read the prepared file, the archive or the four idx files."""
        if found[0].suffix == ".npz":
            arrays = read_npz(found[0])
            self._check_split(found[0], arrays)
            return check_prepared(found[0], arrays, (1, SIDE, SIDE), self.class_names)
        files = self._unpack(found[0]) if len(found) == 1 else [Named(str(path), read_file(path)) for path in found]
        train, test = (
            read_pair(images, labels, len(self.class_names), FIRST[self.split])
            for images, labels in (files[:2], files[2:])
        )
        return Content(_upright(train), _upright(test), self.class_names)

    def normalisation(self, content: Content) -> Normalisation:
        """Return the constants that the paper uses."""
        return NORMALISATION

    def _files(self) -> list[str]:
        return [
            f"emnist-{self.split}-{part}-{kind}-ubyte"
            for part in ("train", "test")
            for kind in ("images-idx3", "labels-idx1")
        ]

    def _unpack(self, path: Path) -> list[Named]:
        """Return the four files out of the archive."""
        wanted = [f"gzip/{file}.gz" for file in self._files()]
        contents = {name: Named(f"{path}/{name}", data) for name, data in open_bundle(path).items(wanted.__contains__)}
        lacking = next((name for name in wanted if name not in contents), None)
        if lacking is not None:
            raise damaged(path, f"it has no `{lacking}`")
        return [contents[name] for name in wanted]

    def _check_split(self, path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Refuse labels of another split: numbers alone would name other characters."""
        labels = [arrays[name] for name in ("train_y", "test_y") if name in arrays]
        if not all(part.dtype.kind in "iu" and part.size for part in labels):
            return
        classes = max((int(part.max()) for part in labels), default=-1) + 1
        if classes and classes != len(self.class_names):
            fitting = next((split for split, groups in SPLITS.items() if len("".join(groups)) == classes), None)
            advice = f"set `dataset.split` to `{fitting}`" if fitting else "no split has as many: see where it is from"
            raise UserError(
                f"`dataset.split` is `{self.split}` with {len(self.class_names)} classes, but `{path}` has {classes}; "
                f"{advice}."
            )


def _upright(samples: Samples) -> Samples:
    """Exchange rows and columns, without a copy."""
    return Samples(samples.x.swapaxes(2, 3), samples.y)
