"""Animals-10: about 26,000 photographs of ten animals, of all sizes, stretched to squares.

Corrado Alessio, "Animals-10", Kaggle, where an account is needed to get it. There is no official split: a fifth of each
class, drawn by `split_seed`, is the test split. In a prepared file the split has been drawn already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, final

from fedmate.core import Limits, option
from fedmate.data.dataset import Normalisation
from fedmate.data.files import Content, ImageDataset, missing
from fedmate.data.images import Form, Place, Tree, present, read_tree
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
"""The folders of the original and what their animals are called in English."""

CLASSES = tuple(NAMES)

NORMALISATION = Normalisation.of_bytes(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""ImageNet's."""

FOLDERS = ("animal10", "animals10", "animals-10")
INNER = "raw-img"
ARCHIVES, PREPARED = ("animals10.zip", "archive.zip"), "animal10.npz"


@final
@dataclass(frozen=True, kw_only=True)
class Animal10(ImageDataset):
    """Ten classes of animals, photographs of all sizes made small."""

    reading: ClassVar[tuple[str, ...]] = ("size", "skip_bad", "split_seed")

    bibtex: ClassVar[str] = """@misc{animals10,
  title = {{Animals-10}},
  author = {{Corrado Alessio}},
  howpublished = {Kaggle},
  url = {https://www.kaggle.com/datasets/alessiocorrado99/animals10}
}"""

    flip: bool = option(True, "mirror half of the training images")
    size: int = option(32, "pixels on each side, to which images are stretched", Limits(at_least=1, at_most=4096))
    skip_bad: bool = option(False, "leave out images that cannot be read")
    split_seed: int = option(0, "draws the fifth of each class to test on", Limits(at_least=0))

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
        """How many of its 26,179 images are on each side of the split."""
        return 20_943, 5_236

    def find(self, folder: Path) -> list[Path]:
        """Return the folders of the classes, or the archive, or the prepared file."""
        for place in (*(folder / name for name in FOLDERS), folder):
            for root in (place / INNER, place):
                if (root / CLASSES[0]).is_dir():
                    return present([root / kind for kind in CLASSES])
        for file in (*(folder / name for name in ARCHIVES), folder / PREPARED):
            if file.is_file():
                return [file]
        raise missing("animal10", folder, (FOLDERS[0], *ARCHIVES, PREPARED))

    def read(self, found: Sequence[Path]) -> Content:
        """Read all images, or the prepared file."""
        if found[0].name == PREPARED:
            return read_prepared(found[0], (3, self.size, self.size), tuple(NAMES.values()))
        tree = Tree(found, _place_of, tuple(NAMES.values()))
        return read_tree(tree, Form(self.size, skip_bad=self.skip_bad), self.split_seed)

    def normalisation(self, content: Content) -> Normalisation:
        """Return ImageNet's constants."""
        return NORMALISATION


def _place_of(name: str) -> Place | None:
    kind = PurePosixPath(name).parent.name
    return Place(False, CLASSES.index(kind), name) if kind in CLASSES else None
