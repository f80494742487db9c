"""Data sets in files: read once in the form they are published in, then from a memory-mapped cache.

The cache is one safetensors file per data set and its options. It records names, sizes and times of the files it was
made from, and is written again when they change or when it is damaged.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedmate import storage
from fedmate.data.dataset import (
    Arrays,
    Dataset,
    Normalisation,
    Samples,
    as_floats,
    as_numbers,
    content_digest,
    crop_option,
    flip_option,
    pair_up,
)
from fedmate.data.sources import expand, files_in, read_numpy, user_folder
from fedmate.errors import UserError

FORMAT = 4
"""The version of the cache."""

CHANNELS = (1, 3)
"""The lengths of an axis that is taken for channels."""


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
    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the files that `find` returned, or raise `UserError`."""

    @property
    def published(self) -> tuple[int, int] | None:
        """The official numbers of training and test samples; another number is worth a warning."""
        return None

    def load(self, folder: Path, caches: Sequence[Path] | None = None) -> Arrays:
        """Return the arrays, from a cache in the first of the folders `caches` that has it or can be written to."""
        found = self.find(folder)
        options = {name: getattr(self, name) for name in self.reading}
        # Files of one name may lie in several places.
        identity = json.dumps([type(self).__name__, options, [str(path.absolute()) for path in found]])
        name = f"{type(self).__name__.lower()}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.safetensors"
        signature = sign(found)
        # A shared folder may not be writable.
        places = [place / "cached" / name for place in ((folder, user_folder()) if caches is None else caches)]
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


@dataclass(frozen=True, kw_only=True)
class PublishedDataset(FileDataset):
    """A published data set of images, in its own files or in a prepared one.

    A prepared file `NAME.npz` holds images as bytes, `train_x` and `test_x`, and their labels, `train_y` and `test_y`.
    """

    name: ClassVar[str]
    """Its name in an experiment."""

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """One for each label."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""

    @abstractmethod
    def candidates(self, folder: Path) -> list[list[Path]]:
        """Return sets of published files, each of which is enough."""

    @abstractmethod
    def read_published(self, found: Sequence[Path]) -> Arrays:
        """Read one of these sets."""

    def find(self, folder: Path) -> list[Path]:
        """Return the first set of files that is complete."""
        candidates = [*self.candidates(folder), [folder / f"{self.name}.npz"]]
        lacking = [[path for path in paths if not path.exists()] for paths in candidates]
        if [] in lacking:
            return candidates[lacking.index([])]
        torn = next((gap[0] for paths, gap in zip(candidates, lacking, strict=True) if len(gap) < len(paths)), None)
        if torn is not None:
            raise UserError(
                f"`dataset.name` is `{self.name}`, but of its files `{torn}` is missing; complete them, or get them "
                f"with `fedmate data {self.name}`."
            )
        forms = " or ".join(dict.fromkeys(f"`{paths[0].relative_to(folder).parts[0]}`" for paths in candidates))
        raise UserError(
            f"`dataset.name` is `{self.name}`, but `{folder}` has no {forms}; get it with `fedmate data {self.name}`, "
            "or name the folder that has it with `--data-dir` or `FEDMATE_DATA`."
        )

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the published files or the prepared one."""
        path = found[0]
        if path.suffix != ".npz":
            return self.read_published(found)
        arrays = read_arrays(path, self.class_names)
        shape = arrays.train.x.shape[1:]
        if arrays.train.x.dtype != np.uint8 or shape != self.shape:
            raise UserError(
                f"`{path}` has {arrays.train.x.dtype} images of shape {list(shape)}; prepare images of bytes (uint8) "
                f"of shape {list(self.shape)}."
            )
        return arrays


def paper_settings(network: str, learning_rate: float | None = None, **partition: Any) -> dict[str, dict[str, Any]]:
    """Return the paper's settings; its learning rate is 0.02 if left out, its clients have 600 samples."""
    training = {} if learning_rate is None else {"training": {"learning_rate": learning_rate}}
    return {"partition": {"name": "share", "examples": 600, **partition}, "model": {"name": network}, **training}


def own_path(path: str, kind: str, content: str) -> Path:
    """Return the file or folder, by its `kind`, of a user's own data, or raise `UserError`."""
    if not path:
        raise UserError(
            f"`dataset.path` is not set; set it to the {kind} of your {content}, such as by `--set dataset.path=PATH`."
        )
    found = expand(path)
    if not (found.is_file() if kind == "file" else found.is_dir()):
        raise UserError(f"`dataset.path` is `{path}`, which is no {kind}; name the {kind} of your {content}.")
    return found


def read_arrays(path: Path, class_names: Sequence[str] | None = None) -> Arrays:
    """Read a file of numpy's, or raise `UserError`; without `class_names` those of the file or of its labels count."""
    arrays = read_numpy(path)
    parts = ["train", "test"] if {"test_x", "test_y"} & {*arrays} else ["train"]
    wanted = [f"{part}_{kind}" for part in parts for kind in "xy"]
    lacking = next((name for name in wanted if name not in arrays), None)
    if lacking is not None:
        held = ", ".join(f"`{name}`" for name in arrays if name) or "no named array"
        raise UserError(f"`{path}` has no `{lacking}`, but {held}; write {', '.join(f'`{name}`' for name in wanted)}.")
    if class_names is None and "class_names" in arrays:
        class_names = arrays["class_names"].ravel().tolist()
    inputs, labels = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
    for part in parts:
        name = f"{path}[{part}_x]"
        inputs[name], labels[f"{path}[{part}_y]"] = _as_samples(name, arrays[f"{part}_x"]), arrays[f"{part}_y"]
    (train, *test), names = pair_up(inputs, labels, class_names, f"{path}[class_names]")
    found = Arrays(train, test[0] if test else None, names)
    if "train_client" not in arrays:
        if "test_client" in arrays:
            raise UserError(f"`{path}` has `test_client`, but no `train_client`; add it, or leave both out.")
        return found
    owners, numbers = np.unique(_owners(path, "train_client", arrays, found.train), return_inverse=True)
    found = found._replace(clients=numbers.astype(np.int64), client_names=tuple(map(str, owners.tolist())))
    if found.test is None or "test_client" not in arrays:
        return found
    testers = _owners(path, "test_client", arrays, found.test)
    known = {*owners.tolist()}
    stranger = next((tester for tester in testers.tolist() if tester not in known), None)
    if stranger is not None:
        raise UserError(
            f"`{path}[test_client]` holds `{stranger}`, which `train_client` has not; name clients of `train_client`."
        )
    own = (testers == owner for owner in owners)
    return found._replace(local_tests=tuple(Samples(found.test.x[rows], found.test.y[rows]) for rows in own))


def _owners(path: Path, name: str, arrays: Mapping[str, NDArray[Any]], samples: Samples) -> NDArray[Any]:
    """Return the client of each sample."""
    owners, name = arrays[name], f"{path}[{name}]"
    if owners.shape != samples.y.shape:
        raise UserError(
            f"`{name}` has the shape {list(owners.shape)} for {len(samples.y)} samples; give one client for each."
        )
    if owners.dtype.kind == "U":
        return owners
    numbers = as_numbers(name, owners)
    broken = np.flatnonzero(numbers != np.floor(numbers))
    if len(broken):
        raise UserError(f"`{name}` is {numbers[broken[0]]} at [{broken[0]}]; give whole numbers or words.")
    return numbers


def _as_samples(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return bytes as images with channels first, and other numbers as floating-point numbers."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return as_floats(name, x)
    if x.ndim == 3:
        return x[:, None]
    return np.moveaxis(x, 3, 1) if x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS else x


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
    about = [FORMAT, signature, arrays.digest, arrays.class_names, arrays.client_names, arrays.notes]
    content = save({key: np.ascontiguousarray(part) for key, part in parts.items()}, {"fedmate": json.dumps(about)})
    storage.make_folder(path.parent)
    storage.replace(path, content, is_shared=True)


def read_cache(path: Path, signature: str) -> Arrays | None:
    """Map a cache into memory; `None` if it is missing, damaged or made from other files."""
    try:
        # Tensors of torch are mapped, those of numpy would be copied.
        with safe_open(path, "pt") as file:
            version, signed, digest, class_names, client_names, notes = json.loads(file.metadata()["fedmate"])
            if (version, signed) != (FORMAT, signature):
                return None
            parts = {key: file.get_tensor(key).numpy() for key in file.keys()}  # noqa: SIM118
        arrays = Arrays(
            train=Samples(parts["train_x"], parts["train_y"]),
            test=Samples(parts["test_x"], parts["test_y"]) if "test_x" in parts else None,
            class_names=tuple(class_names),
            clients=parts.get("clients"),
            client_names=tuple(client_names),
            notes=tuple(notes),
            digest=digest,
        )
        return arrays if content_digest(arrays) == digest else None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None
