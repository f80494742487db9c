"""A user's own arrays in a file of `numpy.savez`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import option
from fedmate.data.arrays import as_numbers, check_pair
from fedmate.data.dataset import MOST_CLASSES, OWN_DEFAULTS, Arrays, Samples, check_labels, check_names
from fedmate.data.files import FileDataset
from fedmate.data.sources import expand, unreadable
from fedmate.errors import UserError

ByName: TypeAlias = Mapping[str, NDArray[Any]]

LARGEST, MOST_GROWTH = 2**30, 100
"""A compressed file that has over so many bytes when it is read, and grows by this factor, is meant to fill memory."""

CHANNELS = (1, 3)
"""The lengths of an axis that is taken for channels."""


def read_numpy(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file of numpy by name; the one of an `.npy` file has the name "".

    Raises:
        OSError: it cannot be read.
        UserError: it is damaged or something else.
    """
    try:
        # Opened here: numpy leaves a damaged file open.
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return {"": found}
            size = sum(info.file_size for info in found.zip.infolist())
            if size > max(LARGEST, MOST_GROWTH * path.stat().st_size):
                raise ValueError(f"it expands to {size:,} bytes")
            return {name: found[name] for name in found.files}
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        kind = "save" if path.suffix.lower() == ".npy" else "savez"
        advice = f"write plain numbers, and words with `.astype(str)`, with `numpy.{kind}`"
        if str(error).startswith("Object arrays"):
            raise UserError(f"`{path}` holds Python objects, which are not read; {advice}.") from None
        # numpy takes any unknown content for pickled objects, and recommends to read them.
        unknown = "allow_pickle" in str(error) or not str(error)
        reason = "unknown content" if unknown else str(error).partition("\n")[0][:200]
        raise UserError(f"`{path}` is not a file of numpy's numbers ({reason}); {advice}.") from None


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name, or raise `UserError` if it is missing, damaged or something else."""
    try:
        arrays = read_numpy(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if not arrays or "" in arrays:
        raise UserError(f"`{path}` holds no named arrays; write it with `numpy.savez`.")
    return arrays


def take_pair(path: Path, arrays: ByName, part: str) -> Samples:
    """Return samples and labels of `train` or `test` in a file as they are, or raise `UserError`."""
    wanted = (f"{part}_x", f"{part}_y")
    lacking = next((name for name in wanted if name not in arrays), None)
    if lacking is not None:
        held = ", ".join(f"`{name}`" for name in arrays)
        raise UserError(f"`{path}` has no `{lacking}`, but {held}; write {', '.join(f'`{name}`' for name in wanted)}.")
    x, y = (arrays[name] for name in wanted)
    check_pair(f"{path}[{part}_x]", x, f"{path}[{part}_y]", y)
    return Samples(x, y)


@final
@dataclass(frozen=True, kw_only=True)
class Npz(FileDataset):
    """Your own arrays in an `.npz` file: images as bytes, or samples of any other numbers."""

    defaults: ClassVar[dict[str, dict[str, Any]]] = OWN_DEFAULTS

    path: str = option(
        "", "the file, with `train_x`, `train_y` and, if there are any, `test_x`, `test_y`", is_path=True
    )

    def find(self, folder: Path) -> list[Path]:
        """Return the file that `path` names."""
        path = expand("dataset.path", self.path)
        if not self.path or not path.is_file():
            raise UserError(f"`dataset.path` is `{self.path}`, which is no file; set it to your `.npz` file.")
        return [path]

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the arrays, and check that they fit each other."""
        (path,) = found
        arrays = read_npz(path)
        parts = ["train", "test"] if {"test_x", "test_y"} & {*arrays} else ["train"]
        pairs = [take_pair(path, arrays, part) for part in parts]
        inputs = [_as_samples(f"{path}[{part}_x]", pair.x) for part, pair in zip(parts, pairs, strict=True)]
        forms = [(x.dtype == np.uint8, x.shape[1:]) for x in inputs]
        if forms[0] != forms[-1]:
            raise UserError(
                f"`{path}` has {inputs[0].dtype} training samples of shape {list(inputs[0].shape[1:])}, but "
                f"{inputs[1].dtype} test samples of shape {list(inputs[1].shape[1:])}; give both one type and shape."
            )
        labels, class_names = _number_labels(path, arrays, [f"{part}_y" for part in parts])
        train, *test = (Samples(*part) for part in zip(inputs, labels, strict=True))
        clients, client_names = _number_clients(path, arrays)
        return Arrays(train, test[0] if test else None, class_names, clients=clients, client_names=client_names)


def _as_samples(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return a user's own samples: bytes as images with channels first, other numbers as they are."""
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4:
        return np.moveaxis(x, 3, 1) if x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS else x
    numbers = as_numbers(name, x)
    is_double = numbers.dtype.kind == "f" and numbers.dtype.itemsize >= 8
    return numbers.astype(np.float64 if is_double else np.float32)


def _number_labels(path: Path, arrays: ByName, keys: Sequence[str]) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Return the labels of each part as numbers, and the names of the classes, in alphabetical order if not given."""
    names = tuple(_words(path, arrays, "class_names")) if "class_names" in arrays else ()
    if arrays[keys[0]].dtype.kind == "U":
        words = {key: _words(path, arrays, key) for key in keys}
        names = names or tuple(sorted({word for values in words.values() for word in values}))
        numbers = {name: i for i, name in enumerate(names)}
        unknown = next(((key, word) for key, values in words.items() for word in values if word not in numbers), None)
        if unknown is not None:
            raise UserError(f"`{path}[{unknown[0]}]` holds `{unknown[1]}`, which is none of `class_names`; add it.")
        labels = [np.array([numbers[word] for word in values], dtype=np.int64) for values in words.values()]
    else:
        labels = [check_labels(f"{path}[{key}]", arrays[key], len(names) or MOST_CLASSES) for key in keys]
        names = names or tuple(map(str, range(1 + max(int(values.max()) for values in labels))))
    check_names(f"{path}[class_names]", names)
    return labels, names


def _number_clients(path: Path, arrays: ByName) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return the client of each training sample, numbered in the order of their names, and the names."""
    if "train_client" not in arrays:
        return None, ()
    clients, name = arrays["train_client"], f"{path}[train_client]"
    if clients.shape != arrays["train_y"].shape:
        raise UserError(
            f"`{name}` has the shape {list(clients.shape)} for {len(arrays['train_y'])} samples; give one client for "
            "each."
        )
    names, numbers = np.unique(clients if clients.dtype.kind == "U" else as_numbers(name, clients), return_inverse=True)
    return numbers.astype(np.int64), tuple(str(one) for one in names.tolist())


def _words(path: Path, arrays: ByName, key: str) -> list[str]:
    if arrays[key].dtype.kind != "U" or arrays[key].ndim != 1:
        raise UserError(
            f"`{path}[{key}]` holds {arrays[key].dtype} values of shape {list(arrays[key].shape)}; give a row of words."
        )
    return [str(word) for word in arrays[key]]
