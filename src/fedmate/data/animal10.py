"""Animals-10 (Corrado Alessio, Kaggle): about 26,000 photographs of all sizes, stretched to squares.

There is no official split: a fifth of each class, drawn by `split_seed`, is the test split. A prepared file is split
already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from fedmate.core import Limits, option
from fedmate.data.dataset import Arrays, Normalisation, flip_option
from fedmate.data.images import ImageFormat, read_images
from fedmate.data.published import PublishedDataset, paper_settings

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


@final
@dataclass(frozen=True, kw_only=True)
class Animal10(PublishedDataset):
    """Animals-10: photographs of ten kinds of animals from the web."""

    name: ClassVar[str] = "animal10"
    class_names: ClassVar[tuple[str, ...]] = tuple(NAMES.values())
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
        trees = [[root / kind for kind in NAMES] for top in tops for root in (top / "raw-img", top)]
        return [*trees, [folder / "animals10.zip"], [folder / "archive.zip"]]

    def read_published(self, found: Sequence[Path]) -> Arrays:
        """Read all images."""
        return read_images(found, NAMES, ImageFormat(self.size, skip_bad=self.skip_bad), self.split_seed)
