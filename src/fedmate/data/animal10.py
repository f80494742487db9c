"""Animals-10 (Corrado Alessio, Kaggle): about 26,000 photographs of all sizes, stretched to squares.

There is no official split: a fifth of each class, drawn by `split_seed`, is the test split. A prepared file is split
already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, final

from fedmate.core import Limits, option
from fedmate.data.dataset import FLIP_HELP, Arrays, Normalisation
from fedmate.data.files import FileDataset, find_first
from fedmate.data.images import ImageFormat, read_images
from fedmate.data.npz import read_prepared

NAMES = {
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
"""The published folders and the names of their classes."""

FOLDERS = tuple(NAMES)


@final
@dataclass(frozen=True, kw_only=True)
class Animal10(FileDataset):
    """Animals-10: photographs of ten kinds of animals from the web."""

    # Of ImageNet.
    normalisation: ClassVar[Normalisation] = Normalisation.of_bytes((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    instructions: ClassVar[tuple[str, ...]] = (
        "Sign in at https://www.kaggle.com: an account is needed, and free.",
        "Open https://www.kaggle.com/datasets/alessiocorrado99/animals10 and download the data set.",
        "Put the archive, packed as it is, into `{folder}`; its name is `archive.zip` or `animals10.zip`.",
        "Or unpack it, so that `{folder}/animal10/raw-img/cane` and nine other folders hold the images.",
    )
    reading: ClassVar[tuple[str, ...]] = ("size", "skip_bad", "split_seed")
    citation: ClassVar[str] = "animals10"

    flip: bool = option(True, FLIP_HELP)
    size: int = option(32, "pixels on each side, to which images are stretched", Limits(at_least=1, at_most=4096))
    skip_bad: bool = option(False, "leave out images that cannot be read")
    split_seed: int = option(0, "seed of the random test split, a fifth of each class", Limits(at_least=0))

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's setting."""
        return {
            "partition": {"name": "share", "share": 20.0, "examples": 600},
            "model": {"name": "animals_cnn"},
            "training": {"learning_rate": 0.01},
        }

    @property
    def published(self) -> tuple[int, int]:
        """The numbers of its 26,179 images on each side of the split."""
        return 20_943, 5_236

    def find(self, folder: Path) -> list[Path]:
        """Return the folders of the classes, the archive or the prepared file."""
        tops = [folder / "animal10", folder / "animals10", folder / "animals-10", folder]
        trees = [[root / kind for kind in FOLDERS] for top in tops for root in (top / "raw-img", top)]
        files = ("animals10.zip", "archive.zip", "animal10.npz")
        return find_first("animal10", folder, [*trees, *([folder / file] for file in files)])

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read all images, or the prepared file."""
        class_names = tuple(NAMES.values())
        if found[0].suffix == ".npz":
            return read_prepared(found[0], (3, self.size, self.size), class_names)
        form = ImageFormat(self.size, skip_bad=self.skip_bad)
        return read_images(found, _locate, class_names, form, self.split_seed)


def _locate(path: PurePosixPath) -> tuple[bool, int] | None:
    kind = path.parent.name
    return (False, FOLDERS.index(kind)) if kind in FOLDERS else None
