"""CIFAR-10 and CIFAR-100: 60,000 photographs of 32 x 32 pixels each, 50,000 of them to train on.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, University of Toronto, 2009.

Read from the first of these that is there: the prepared `cifar10.npz`, the folder of Python's batches
`cifar-10-batches-py`, that of binary ones `cifar-10-batches-bin`, the archives `cifar-10-python.tar.gz` and
`cifar-10-binary.tar.gz`, or the batches themselves; likewise `cifar100.npz`, `cifar-100-python`, `cifar-100-binary`,
`cifar-100-python.tar.gz`, `cifar-100-binary.tar.gz`, whose fine labels are used.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import Limits, option
from fedmate.data.bundle import damaged, open_bundle, read_file
from fedmate.data.dataset import Normalisation, Samples
from fedmate.data.files import Content, ImageDataset, check_labels, first_complete, missing
from fedmate.data.npz import read_prepared
from fedmate.data.pickles import read_pickle
from fedmate.errors import UserError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32

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


class Form(NamedTuple):
    """A way in which a data set is published.

    Attributes:
        folder: what its files are in.
        archive: what the folder is packed in.
        files: its batches, in the official order; the last is the test split.
        extra: a file beside them that tells the folder from any other.
    """

    folder: str
    archive: str
    files: tuple[str, ...]
    extra: str

    @property
    def is_binary(self) -> bool:
        """Whether batches are rows of bytes, not pickles."""
        return self.files[0].endswith(".bin")


class Layout(NamedTuple):
    """How a data set is published.

    Attributes:
        name: of the data set.
        class_names: one for each label.
        forms: the ways.
        labels: what a pickle calls the labels.
        label_bytes: how many bytes stand before an image in a binary batch; the last of them is the label.
    """

    name: str
    class_names: tuple[str, ...]
    forms: tuple[Form, ...]
    labels: str
    label_bytes: int


_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

CIFAR10 = Layout(
    "cifar10",
    CIFAR10_CLASSES,
    (
        Form("cifar-10-batches-py", "cifar-10-python.tar.gz", _BATCHES, "batches.meta"),
        Form(
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            tuple(f"{batch}.bin" for batch in _BATCHES),
            "batches.meta.txt",
        ),
    ),
    labels="labels",
    label_bytes=1,
)

CIFAR100 = Layout(
    "cifar100",
    CIFAR100_CLASSES,
    (
        Form("cifar-100-python", "cifar-100-python.tar.gz", ("train", "test"), "meta"),
        Form("cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin", "test.bin"), "fine_label_names.txt"),
    ),
    labels="fine_labels",
    label_bytes=2,
)


@dataclass(frozen=True, kw_only=True)
class _Cifar(ImageDataset):
    """What both have in common."""

    bibtex: ClassVar[str] = """@techreport{cifar2009,
  title = {Learning Multiple Layers of Features from Tiny Images},
  author = {Krizhevsky, Alex},
  institution = {University of Toronto},
  year = {2009}
}"""

    crop: int = option(4, "random crops after padding by that many pixels; 0 is off", Limits(at_least=0, at_most=64))
    flip: bool = option(True, "mirror half of the training images")

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How it is published."""

    @property
    def published(self) -> tuple[int, int]:
        """How many images there are."""
        return 50_000, 10_000

    def find(self, folder: Path) -> list[Path]:
        """Return the files of the first form that is all there."""
        name, _, forms, *_ = self.layout
        prepared = f"{name}.npz"
        candidates = [
            [folder / prepared],
            *([folder / form.folder / file for file in form.files] for form in forms),
            *([folder / form.archive] for form in forms),
        ]
        # Names such as `train` are too common to say of any folder that it lacks the others.
        for form in forms:
            if all((folder / file).is_file() for file in (*form.files, form.extra)):
                candidates.append([folder / file for file in form.files])
        found = first_complete(name, candidates)
        if found is None:
            places = (*(form.folder for form in forms), *(form.archive for form in forms))
            raise missing(name, folder, [prepared, *places])
        return found

    def read(self, found: Sequence[Path]) -> Content:
        """Read the batches in their official order."""
        if found[0].suffix == ".npz":
            return read_prepared(found[0], SHAPE, self.layout.class_names)
        form = next(form for form in self.layout.forms if found[0].name in (form.archive, form.files[0]))
        batches = {file: _batch(self.layout, form, place, data) for file, place, data in _contents(found, form)}
        lacking = next((file for file in form.files if file not in batches), None)
        if lacking is not None:
            raise damaged(found[0], f"it has no `{form.folder}/{lacking}`")
        *train, test = (batches[file] for file in form.files)
        x, y = (np.concatenate(parts) for parts in zip(*train, strict=True))
        return Content(Samples(x, y), test, self.layout.class_names)


@final
@dataclass(frozen=True, kw_only=True)
class Cifar10(_Cifar):
    """CIFAR-10: photographs of ten kinds of animals and vehicles, 32 x 32 pixels."""

    @property
    def layout(self) -> Layout:
        """How it is published."""
        return CIFAR10

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's split, with its network."""
        return {"partition": {"name": "share", "examples": 600}, "model": {"name": "cifar_cnn"}}

    def normalisation(self, content: Content) -> Normalisation:
        """Return the constants that the paper uses."""
        return Normalisation.of_bytes((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@final
@dataclass(frozen=True, kw_only=True)
class Cifar100(_Cifar):
    """CIFAR-100: photographs of a hundred kinds of things, 32 x 32 pixels, by their fine labels."""

    @property
    def layout(self) -> Layout:
        """How it is published."""
        return CIFAR100

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """The paper's split, with its network and step size."""
        return {
            "partition": {"name": "share", "examples": 600},
            "model": {"name": "cifar100_cnn"},
            "training": {"learning_rate": 0.01},
        }

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Ten groups of ten labels that follow each other."""
        return tuple(tuple(range(first, first + 10)) for first in range(0, 100, 10))

    def normalisation(self, content: Content) -> Normalisation:
        """Return the constants that the paper uses."""
        return Normalisation.of_bytes((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def _contents(found: Sequence[Path], form: Form) -> Iterator[tuple[str, str, bytes]]:
    """Yield the batches one at a time: file name, what to call it in messages, content."""
    if found[0].name != form.archive:
        yield from ((path.name, str(path), read_file(path)) for path in found)
        return
    wanted = {f"{form.folder}/{file}": file for file in form.files}
    for name, data in open_bundle(found[0]).items(wanted.__contains__):
        yield wanted[name], f"{found[0]}/{name}", data


def _batch(layout: Layout, form: Form, place: str, data: bytes) -> Samples:
    images, labels = _from_rows(layout, place, data) if form.is_binary else _from_pickle(layout, place, data)
    if not len(images):
        raise damaged(place, "it holds no image")
    y = check_labels(f"{place}[{layout.labels}]", labels, len(layout.class_names))
    return Samples(images.reshape(-1, *SHAPE), y)


def _from_rows(layout: Layout, place: str, data: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return images and labels of a binary batch: each row is a label, then an image."""
    width = layout.label_bytes + PIXELS
    if len(data) % width:
        raise damaged(place, f"it has {len(data):,} bytes, no multiple of {width:,}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, width)
    return rows[:, layout.label_bytes :], rows[:, layout.label_bytes - 1]


def _from_pickle(layout: Layout, place: str, data: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return images and labels of Python's batch, whose keys are bytes if Python 2 wrote it."""
    batch = read_pickle(data, place)
    fields = batch if isinstance(batch, dict) else {}
    images, labels = (fields.get(key.encode(), fields.get(key)) for key in ("data", layout.labels))
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        labels = np.array(labels)
    if not isinstance(images, np.ndarray) or not isinstance(labels, np.ndarray):
        raise damaged(place, f"it has no images `data` with `{layout.labels}`")
    if images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != PIXELS:
        raise UserError(
            f"`{place}` has {images.dtype} images of shape {list(images.shape[1:])}, expected uint8 of shape [{PIXELS}]"
            "; see whether it is the right file."
        )
    if labels.shape != (len(images),):
        raise damaged(place, f"it has {len(images)} images and labels of shape {list(labels.shape)}")
    return images, labels
