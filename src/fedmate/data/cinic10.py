"""CINIC-10: CIFAR-10's images and downsampled ones of ImageNet, 90,000 to train, validate and test on, 32 x 32 pixels.

Darlow, Crowley, Antoniou and Storkey, "CINIC-10 is not ImageNet or CIFAR-10", 2018. The folders `train` and `test` are
used, `valid` is not.
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

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PARTS = ("train", "test")
SIDE = 32
IMAGES = 90_000
"""In each part."""

NORMALISATION = Normalisation.of_bytes(
    mean=(0.47889522, 0.47227842, 0.43047404), std=(0.24205776, 0.23828046, 0.25874835)
)

FOLDERS = ("CINIC-10", "cinic10", "cinic-10")
ARCHIVE, PREPARED = "CINIC-10.tar.gz", "cinic10.npz"


@final
@dataclass(frozen=True, kw_only=True)
class Cinic10(ImageDataset):
    """Ten classes of small photographs, 4.5 times as many as CIFAR-10 has."""

    reading: ClassVar[tuple[str, ...]] = ("skip_bad",)

    bibtex: ClassVar[str] = """@article{cinic2018,
  title = {{CINIC-10} Is Not {ImageNet} or {CIFAR-10}},
  author = {Darlow, Luke N. and Crowley, Elliot J. and Antoniou, Antreas and Storkey, Amos J.},
  journal = {arXiv preprint arXiv:1810.03505},
  year = {2018}
}"""

    crop: int = option(4, "random crops after padding by that many pixels; 0 is off", Limits(at_least=0, at_most=64))
    flip: bool = option(True, "mirror half of the training images")
    skip_bad: bool = option(False, "leave out images that cannot be read")

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's setting."""
        return {"partition": {"name": "share", "examples": 600}, "model": {"name": "cifar_cnn"}}

    @property
    def published(self) -> tuple[int, int]:
        """How many images there are."""
        return IMAGES, IMAGES

    def find(self, folder: Path) -> list[Path]:
        """Return the folders of the classes, or the archive, or the prepared file."""
        for root in (*(folder / name for name in FOLDERS), folder):
            if all((root / part / CLASSES[0]).is_dir() for part in PARTS):
                return present([root / part / kind for part in PARTS for kind in CLASSES])
        for file in (folder / ARCHIVE, folder / PREPARED):
            if file.is_file():
                return [file]
        raise missing("cinic10", folder, (FOLDERS[0], ARCHIVE, PREPARED))

    def read(self, found: Sequence[Path]) -> Content:
        """Read all images, or the prepared file."""
        if found[0].name == PREPARED:
            return read_prepared(found[0], (3, SIDE, SIDE), CLASSES)
        return read_tree(Tree(found, _place_of, CLASSES), Form(SIDE, resize=False, skip_bad=self.skip_bad))

    def normalisation(self, content: Content) -> Normalisation:
        """Return CINIC-10's constants."""
        return NORMALISATION


def _place_of(name: str) -> Place | None:
    match PurePosixPath(name).parts[-3:-1]:
        case (part, kind) if part in PARTS and kind in CLASSES:
            return Place(part == "test", CLASSES.index(kind), name)
    return None
