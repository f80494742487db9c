"""Data sets in files: read once in the form they are published in, then from a memory-mapped cache.

The cache is one safetensors file per data set and its options. It records names, sizes and times of the files it was
made from, and is written again when they change or when it is damaged.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedmate import storage
from fedmate.core import Augmentation
from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples, content_digest, crop_option, flip_option
from fedmate.data.sources import files_in, user_folder
from fedmate.errors import UserError

FORMAT = 3
"""The version of the cache."""


@dataclass(frozen=True, kw_only=True)
class FileDataset(Dataset):
    """A data set that is read from files; images may be augmented."""

    normalisation: ClassVar[Normalisation] = Normalisation.of_bytes((0.5,), (0.5,))
    """Of images; samples that are no bytes are read as they are."""

    reading: ClassVar[tuple[str, ...]] = ()
    """The options that change the arrays: each combination of values has a cache of its own."""

    crop: int = crop_option()
    flip: bool = flip_option()

    @abstractmethod
    def find(self, folder: Path) -> list[Path]:
        """Return the files and folders to read, or raise `UserError` if some are missing."""

    @abstractmethod
    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the files that `find` returned, or raise `UserError`."""

    @property
    def published(self) -> tuple[int, int] | None:
        """The official numbers of training and test samples; another number is worth a warning."""
        return None

    @property
    def augmentation(self) -> Augmentation:
        """Crops and flips."""
        return Augmentation(self.crop, self.flip)

    def load(self, folder: Path) -> Arrays:
        """Return the arrays, from the cache if it fits the files."""
        # A shared folder may not be writable.
        return self.load_through(folder, [folder, user_folder()])

    def load_through(self, folder: Path, caches: Sequence[Path]) -> Arrays:
        """Return the arrays; the cache is in the first of the folders `caches` that has it or can be written to."""
        found = self.find(folder)
        options = {name: getattr(self, name) for name in self.reading}
        # Files of one name may lie in several places.
        identity = json.dumps([type(self).__name__, options, [str(path.absolute()) for path in found]])
        name = f"{type(self).__name__.lower()}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.safetensors"
        signature = sign(found)
        places = [place / "cached" / name for place in caches]
        arrays = next(filter(None, (read_cache(place, signature) for place in places)), None)
        if arrays is None:
            arrays = self.read(found)
            arrays = arrays._replace(digest=content_digest(arrays))
            for place in places:
                with suppress(OSError):
                    write_cache(place, arrays, signature)
                    arrays = read_cache(place, signature) or arrays
                    break
        if arrays.train.x.ndim != 4 and any(self.augmentation):
            raise UserError(
                f"`dataset.{'crop' if self.crop else 'flip'}` is for images, but `{found[0]}` has samples of shape "
                f"{list(arrays.train.x.shape[1:])}; leave it out."
            )
        here = (len(arrays.train.y), 0 if arrays.test is None else len(arrays.test.y))
        if self.published and here != self.published:
            official, actual = (f"{train:,} + {test:,}" for train, test in (self.published, here))
            note = f"the data set is published with {official} samples, here are {actual}."
            arrays = arrays._replace(notes=(*arrays.notes, note))
        is_bytes = arrays.train.x.dtype == np.uint8
        return arrays._replace(normalisation=self.normalisation if is_bytes else Normalisation())


def sign(paths: Sequence[Path]) -> str:
    """Return a digest of names, sizes and times of files, and of all files in folders."""
    found = hashlib.sha256()
    for path in paths:
        for name, file in files_in(path) if path.is_dir() else [(path.name, path)]:
            state = file.stat()
            found.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def write_cache(path: Path, arrays: Arrays, signature: str) -> None:
    """Write arrays for `read_cache`, all or nothing; raises `OSError`."""
    parts: dict[str, NDArray[Any]] = {"train_x": arrays.train.x, "train_y": arrays.train.y}
    if arrays.test is not None:
        parts |= {"test_x": arrays.test.x, "test_y": arrays.test.y}
    if arrays.clients is not None:
        parts["clients"] = arrays.clients
    about = {
        "format": FORMAT,
        "signature": signature,
        "digest": arrays.digest,
        "class_names": arrays.class_names,
        "client_names": arrays.client_names,
        "notes": arrays.notes,
    }
    content = save({key: np.ascontiguousarray(part) for key, part in parts.items()}, {"fedmate": json.dumps(about)})
    storage.make_folder(path.parent)
    storage.replace(path, content, is_shared=True)


def read_cache(path: Path, signature: str) -> Arrays | None:
    """Map a cache into memory; `None` if it is missing, damaged or made from other files."""
    try:
        # Tensors of torch are mapped, those of numpy would be copied.
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["fedmate"])
            if about["format"] != FORMAT or about["signature"] != signature:
                return None
            parts = {key: file.get_tensor(key).numpy() for key in file.keys()}  # noqa: SIM118
        arrays = Arrays(
            train=Samples(parts["train_x"], parts["train_y"]),
            test=Samples(parts["test_x"], parts["test_y"]) if "test_x" in parts else None,
            class_names=tuple(about["class_names"]),
            clients=parts.get("clients"),
            client_names=tuple(about["client_names"]),
            notes=tuple(about["notes"]),
            digest=about["digest"],
        )
        return arrays if content_digest(arrays) == about["digest"] else None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None
