"""Data sets that are read from files: once from whatever form they come in, then from a memory-mapped cache.

The cache is one safetensors file for each data set and its options: bytes for images, labels, and the digest of both.
It belongs to certain files, known by name, size and time of change; when they change, or it does, it is made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate import storage
from fedmate.core import Augmentation, Limits, option
from fedmate.data.bundle import files_in, unreadable
from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples, chunks, content_digest
from fedmate.data.paths import user_folder
from fedmate.errors import UserError

FORMAT = 2
HEADER = 8
"""Bytes of a safetensors file that tell how long its description is."""

_KINDS = {"U8": np.uint8, "I64": np.int64, "F32": np.float32, "F64": np.float64}
_CODES = {np.dtype(kind): code for code, kind in _KINDS.items()}


class Content(NamedTuple):
    """What a data set's files hold.

    Attributes:
        train, test: as in `Arrays`.
        class_names: as in `Arrays`.
        clients, client_names: as in `Arrays`.
        notes: as in `Arrays`.
    """

    train: Samples
    test: Samples | None
    class_names: tuple[str, ...]
    clients: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileDataset(Dataset):
    """A data set that lies in files."""

    reading: ClassVar[tuple[str, ...]] = ()
    """The options that change what is read; the cache is made for their values."""

    @abstractmethod
    def find(self, folder: Path) -> list[Path]:
        """Return the files and folders to read, the same for the same content of `folder`, or raise `UserError`."""

    @abstractmethod
    def read(self, found: Sequence[Path]) -> Content:
        """Read what `find` found, or raise `UserError`."""

    @abstractmethod
    def normalisation(self, content: Content) -> Normalisation:
        """Return what the samples need before a network reads them."""

    @property
    def published(self) -> tuple[int, int] | None:
        """How many samples there are to train and to test on, where that is known; another number is worth a note."""
        return None

    def load(self, folder: Path) -> Arrays:
        """Return the arrays, out of the cache if it is there and belongs to these files."""
        # A folder that others share may not be writable.
        return self.load_through(folder, [folder, user_folder()])

    def load_through(self, folder: Path, caches: Sequence[Path]) -> Arrays:
        """Return the same, with the cache in the first of some folders that has it or takes it."""
        found = self.find(folder)
        options = {name: getattr(self, name) for name in self.reading}
        # The place of a user's own file tells it from another one of the same name.
        identity = json.dumps([type(self).__name__, options, [str(path.absolute()) for path in found]])
        name = f"{type(self).__name__.lower()}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.safetensors"
        signature = sign(found)
        places = [place / "cached" / name for place in caches]
        arrays = next(filter(None, (_open(place, signature) for place in places)), None)
        if arrays is None:
            content = self.read(found)
            arrays = Arrays(**content._asdict())
            arrays = arrays._replace(digest=content_digest(arrays))
            for place in places:
                with suppress(OSError):
                    storage.make_folder(place.parent)
                    storage.replace_by_parts(place, _pack(arrays, signature))
                    arrays = _open(place, signature) or arrays
                    break
        notes = (*arrays.notes, *self._compare(arrays))
        return arrays._replace(normalisation=self.normalisation(Content(*arrays[:3])), notes=notes)

    def _compare(self, arrays: Arrays) -> Iterator[str]:
        """Say so if there are more or fewer samples than published."""
        here = (len(arrays.train.y), 0 if arrays.test is None else len(arrays.test.y))
        if self.published not in (None, here):
            wanted, found = (" + ".join(f"{count:,}" for count in counts) for counts in (self.published or (), here))
            yield f"the data set is published with {wanted} samples, here are {found}."


@dataclass(frozen=True, kw_only=True)
class ImageDataset(FileDataset):
    """A data set of images, which may be varied in training."""

    crop: int = option(0, "random crops after padding by that many pixels; 0 is off", Limits(at_least=0, at_most=64))
    flip: bool = option(False, "mirror half of the training images")

    @property
    def augmentation(self) -> Augmentation:
        """What its options say."""
        return Augmentation(self.crop, self.flip)


def missing(name: str, folder: Path, wanted: Sequence[str]) -> UserError:
    """Return what to say when a named data set is not where it should be.

    Args:
        name: of the data set.
        folder: where data sets lie.
        wanted: the names that would do, any one of them.
    """
    forms = " or ".join(f"`{one}`" for one in wanted)
    return UserError(
        f"`dataset.name` is `{name}`, but `{folder}` has no {forms}; get it with `fedmate data {name}`, or name the "
        "folder that has it with `--data-dir` or `FEDMATE_DATA`."
    )


def first_complete(name: str, candidates: Iterable[Sequence[Path]]) -> list[Path] | None:
    """Return the first of several sets of files that is all there, `None` if of each set nothing is.

    Args:
        name: of the data set.
        candidates: the sets, any one of which would do.
    """
    found = [(list(paths), [path for path in paths if not path.is_file()]) for paths in candidates]
    whole = next((paths for paths, lacking in found if not lacking), None)
    part = next(((paths, lacking) for paths, lacking in found if len(lacking) < len(paths)), None)
    if whole is None and part is not None:
        paths, lacking = part
        there = next(path for path in paths if path not in lacking)
        raise UserError(
            f"`dataset.name` is `{name}`, but `{there.name}` has no `{lacking[0].name}` beside it in `{there.parent}`; "
            f"get it with `fedmate data {name}`, or complete the files."
        )
    return whole


def check_labels(name: str, labels: NDArray[Any], num_classes: int, first: int = 0) -> NDArray[np.int64]:
    """Return labels as whole numbers from 0, or raise `UserError`.

    Args:
        name: what to call them in messages.
        labels: one for each sample.
        num_classes: how many there may be.
        first: the number of the first class.
    """
    if labels.dtype.kind not in "biuf":
        raise UserError(f"`{name}` holds {labels.dtype} values; give one whole number for each sample.")
    last = first + num_classes - 1
    odd = np.flatnonzero(~((labels >= first) & (labels <= last) & (labels == np.floor(labels))))
    if len(odd):
        raise UserError(
            f"`{name}` is {labels[odd[0]]} at [{odd[0]}], but labels are whole numbers from {first} to {last}; mend "
            "it, or fetch it again."
        )
    return labels.astype(np.int64) - first


def sign(paths: Sequence[Path]) -> str:
    """Return what tells files, and all files in folders, from what they were at another time."""
    found = hashlib.sha256()
    for path in paths:
        for name, file in files_in(path) if path.is_dir() else [(path.name, path)]:
            try:
                state = file.stat()
            except OSError as error:
                raise unreadable(file, error) from None
            found.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def _arrays(arrays: Arrays) -> dict[str, NDArray[Any]]:
    parts = {"train_x": arrays.train.x, "train_y": arrays.train.y}
    if arrays.test is not None:
        parts |= {"test_x": arrays.test.x, "test_y": arrays.test.y}
    if arrays.clients is not None:
        parts["clients"] = arrays.clients
    return parts


def _pack(arrays: Arrays, signature: str) -> Iterator[bytes]:
    """Yield a safetensors file piece by piece."""
    note = {
        "format": FORMAT,
        "signature": signature,
        "digest": arrays.digest,
        "class_names": arrays.class_names,
        "client_names": arrays.client_names,
        "notes": arrays.notes,
    }
    # Wide numbers first: each array then begins where its numbers may lie.
    parts = dict(sorted(_arrays(arrays).items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header: dict[str, Any] = {
        "__metadata__": {"fedmate": json.dumps(note), "checksum": _checksum(json.dumps(note), parts)}
    }
    end = 0
    for name, array in parts.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _CODES[array.dtype], "shape": array.shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % HEADER)
    yield len(text).to_bytes(HEADER, "little") + text
    for array in parts.values():
        yield from (np.ascontiguousarray(chunk).tobytes() for chunk in chunks(array))


def _open(path: Path, signature: str) -> Arrays | None:
    """Map a cache into memory; `None` if it is missing, damaged or made from other files."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(HEADER), "little")
            # A description is short; what claims to be longer than the file is none.
            header = json.loads(file.read(length)) if length <= path.stat().st_size else {}
        about = header.pop("__metadata__")
        note = json.loads(about["fedmate"])
        if note["format"] != FORMAT or note["signature"] != signature:
            return None
        parts = {name: _map(path, HEADER + length, entry) for name, entry in header.items()}
        if _checksum(about["fedmate"], parts) != about["checksum"]:
            return None
        return Arrays(
            train=Samples(parts["train_x"], np.array(parts["train_y"])),
            test=Samples(parts["test_x"], np.array(parts["test_y"])) if "test_x" in parts else None,
            class_names=tuple(note["class_names"]),
            clients=np.array(parts["clients"]) if "clients" in parts else None,
            client_names=tuple(note["client_names"]),
            notes=tuple(note["notes"]),
            digest=note["digest"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _checksum(note: str, parts: Mapping[str, NDArray[Any]]) -> str:
    """Return what shows that some byte of a cache is no longer what it was; unlike a digest it takes no time."""
    found = zlib.crc32(note.encode())
    for name, array in parts.items():
        found = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), found)
        for chunk in chunks(array):
            found = zlib.crc32(np.ascontiguousarray(chunk).data, found)
    return f"{found:08x}"


def _map(path: Path, start: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    kind, shape, (begin, end) = np.dtype(_KINDS[entry["dtype"]]), tuple(entry["shape"]), entry["data_offsets"]
    if end - begin != kind.itemsize * math.prod(shape):
        raise ValueError("an array has another length than its shape says")
    # Private: torch wants memory that can be written to, and whoever does so changes his own copy only.
    return np.memmap(path, kind, "c", start + begin, shape)
