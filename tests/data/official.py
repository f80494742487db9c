"""Data sets of a few samples, written in each form in which the named ones are published."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

RNG = np.random.default_rng(0)


def png(image: NDArray[np.uint8] | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def idx(array: NDArray[Any]) -> bytes:
    lengths = b"".join(int(length).to_bytes(4, "big") for length in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.astype(np.uint8).tobytes()


def put(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write a tar or zip archive, by the suffix; the order of members is not that of names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in reversed(list(files.items())):
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w:gz") as archive_:
        for name, content in reversed(list(files.items())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive_.addfile(member, io.BytesIO(content))
    return path


def pixels(count: int, *shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


class Small:
    """Images and labels of a named data set, as they have to be read, and its official files.

    Args:
        name: of the data set.
        options: of the data set.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options
        self.files: dict[str, bytes] = {}
        getattr(self, f"_{name}")(**options)

    def prepare(self, path: Path) -> None:
        np.savez(path, train_x=self.train[0], train_y=self.train[1], test_x=self.test[0], test_y=self.test[1])

    def _draw(self, shape: tuple[int, ...], classes: int, train: int, test: int) -> None:
        self.train, self.test = (
            (pixels(count, *shape), RNG.permutation(np.arange(count) % classes)) for count in (train, test)
        )

    def _cifar(self, folder: str, batches: list[str], classes: int) -> None:
        self._draw((3, 32, 32), classes, 2 * (len(batches) - 1), 3)
        x = [*np.split(self.train[0], len(batches) - 1), self.test[0]]
        y = [*np.split(self.train[1], len(batches) - 1), self.test[1]]
        for batch, images, labels in zip(batches, x, y, strict=True):
            # CIFAR-100 has the coarse label first.
            heads = [bytes([label // 5, label] if classes == 100 else [label]) for label in labels]
            rows = [head + image.tobytes() for head, image in zip(heads, images, strict=True)]
            self.files[f"{folder}/{batch}.bin"] = b"".join(rows)

    def _cifar10(self) -> None:
        self._cifar("cifar-10-batches-bin", [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], 10)

    def _cifar100(self) -> None:
        self._cifar("cifar-100-binary", ["train", "test"], 100)

    def _idx(self, names: list[str], first: int = 0, *, is_turned: bool = False) -> None:
        for (x, y), part in ((self.train, names[:2]), (self.test, names[2:])):
            stored = x[:, 0].swapaxes(1, 2) if is_turned else x[:, 0]
            self.files |= {f"{part[0]}.gz": gzip.compress(idx(stored)), f"{part[1]}.gz": gzip.compress(idx(y + first))}

    def _mnist(self) -> None:
        self._draw((1, 28, 28), 10, 12, 4)
        kinds = ("images-idx3", "labels-idx1")
        self._idx([f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in kinds])

    _fashion_mnist = _mnist

    def _emnist(self, split: str) -> None:
        classes = {"byclass": 62, "balanced": 47, "letters": 26}[split]
        self._draw((1, 28, 28), classes, 70, classes)
        kinds = ("images-idx3", "labels-idx1")
        names = [f"emnist-{split}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in kinds]
        self._idx(names, int(split == "letters"), is_turned=True)

    def _cinic10(self, **_: Any) -> None:
        kinds = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
        self.train, self.test = ((pixels(20, 3, 32, 32), np.arange(20) // 2) for _ in range(2))
        for part, (x, y) in (("train", self.train), ("test", self.test), ("valid", self.test)):
            for i, (image, label) in enumerate(zip(x, y, strict=True)):
                self.files[f"{part}/{kinds[label]}/{i:02}.png"] = png(image.transpose(1, 2, 0))

    def _animal10(self, **_: Any) -> None:
        kinds = ["cane", "cavallo", "elefante", "farfalla", "gallina"]
        kinds += ["gatto", "mucca", "pecora", "ragno", "scoiattolo"]
        self.train, self.test = (pixels(40, 3, 32, 32), np.arange(40) // 4), (pixels(10, 3, 32, 32), np.arange(10))
        both = [(image, label) for x, y in (self.train, self.test) for image, label in zip(x, y, strict=True)]
        for i, (image, label) in enumerate(both):
            # Names end as those of other formats do, which must not matter.
            self.files[f"raw-img/{kinds[label]}/{i:02}.jpeg"] = png(image.transpose(1, 2, 0))
