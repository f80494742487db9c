"""MNIST and Fashion-MNIST: 70,000 grey images of 28 x 28 pixels each, 60,000 of them to train on.

LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document Recognition", Proceedings of the IEEE
86, 1998; Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms",
arXiv:1708.07747, 2017.

Read from the first of these that is there: the prepared `mnist.npz`, or the four idx files, compressed or not, in
`mnist` or `MNIST/raw`; likewise `fashion_mnist.npz`, `fashion_mnist`, `FashionMNIST/raw`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

from fedmate.data.bundle import read_file
from fedmate.data.dataset import Normalisation
from fedmate.data.files import Content, ImageDataset, first_complete, missing
from fedmate.data.idx import SIDE, Named, idx_files, read_pair
from fedmate.data.npz import read_prepared

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

NORMALISATION = Normalisation.of_bytes((0.1307,), (0.3081,))
"""Of MNIST's pixels, and by custom of its kin."""

FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


class Layout(NamedTuple):
    """How a data set is published.

    Attributes:
        name: of the data set.
        class_names: one for each label.
        folder: what its files may be in, besides a folder of its name.
    """

    name: str
    class_names: tuple[str, ...]
    folder: str


@dataclass(frozen=True, kw_only=True)
class _MnistLike(ImageDataset):
    """What both have in common."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How it is published."""

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """What the paper does with such images."""
        return {
            "partition": {"name": "share", "examples": 600},
            "model": {"name": "emnist_cnn"},
            "training": {"learning_rate": 0.01},
        }

    @property
    def published(self) -> tuple[int, int]:
        """How many images there are."""
        return 60_000, 10_000

    def find(self, folder: Path) -> list[Path]:
        """Return the files of the first form that is all there."""
        name, _, other = self.layout
        places = [folder / name, folder / other]
        found = first_complete(name, [[folder / f"{name}.npz"], *(idx_files(place, FILES) for place in places)])
        if found is None:
            raise missing(name, folder, [f"{name}.npz", *(f"{place}/{FILES[0]}.gz" for place in (name, other))])
        return found

    def read(self, found: Sequence[Path]) -> Content:
        """Read the prepared file, or the four idx files."""
        classes = self.layout.class_names
        if len(found) == 1:
            return read_prepared(found[0], (1, SIDE, SIDE), classes)
        files = [Named(str(path), read_file(path)) for path in found]
        train, test = (read_pair(images, labels, len(classes)) for images, labels in (files[:2], files[2:]))
        return Content(train, test, classes)

    def normalisation(self, content: Content) -> Normalisation:
        """Return the constants that the paper uses."""
        return NORMALISATION


@final
@dataclass(frozen=True, kw_only=True)
class Mnist(_MnistLike):
    """MNIST: handwritten digits, 28 x 28 pixels."""

    bibtex: ClassVar[str] = r"""@article{mnist1998,
  title = {Gradient-Based Learning Applied to Document Recognition},
  author = {LeCun, Yann and Bottou, L{\'e}on and Bengio, Yoshua and Haffner, Patrick},
  journal = {Proceedings of the IEEE},
  volume = {86},
  number = {11},
  pages = {2278--2324},
  year = {1998}
}"""

    @property
    def layout(self) -> Layout:
        """How it is published."""
        return Layout("mnist", tuple("0123456789"), "MNIST/raw")


@final
@dataclass(frozen=True, kw_only=True)
class FashionMnist(_MnistLike):
    """Fashion-MNIST: pictures of ten kinds of clothes, 28 x 28 pixels."""

    bibtex: ClassVar[str] = """@article{fashionmnist2017,
  title = {{Fashion-MNIST}: a Novel Image Dataset for Benchmarking Machine Learning Algorithms},
  author = {Xiao, Han and Rasul, Kashif and Vollgraf, Roland},
  journal = {arXiv preprint arXiv:1708.07747},
  year = {2017}
}"""

    @property
    def layout(self) -> Layout:
        """How it is published."""
        return Layout("fashion_mnist", FASHION_CLASSES, "FashionMNIST/raw")
