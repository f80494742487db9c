"""Arrays in a file of `numpy.savez`: a user's own, or those prepared for a named data set.

A prepared file `NAME.npz` holds images as bytes, `train_x` and `test_x`, and their labels, `train_y` and `test_y`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import option
from fedmate.data.archives import LARGEST, unreadable
from fedmate.data.arrays import MOST_CLASSES, as_numbers, check_names
from fedmate.data.dataset import Arrays, Samples, check_labels
from fedmate.data.files import FileDataset
from fedmate.data.paths import expand
from fedmate.errors import UserError

ByName: TypeAlias = Mapping[str, NDArray[Any]]

MOST_GROWTH = 100
"""A compressed file that is larger by this factor when it is read, and large, is meant to fill the memory."""

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


def read_prepared(path: Path, shape: tuple[int, int, int], class_names: Sequence[str]) -> Arrays:
    """Return the content of a file prepared for a named data set, or raise `UserError`.

    Args:
        path: of the file.
        shape: channels, height and width of an image. In the file channels may come last, or be left out if one.
        class_names: one for each label.
    """
    arrays = read_npz(path)
    train, test = (_pair(path, arrays, part) for part in ("train", "test"))
    parts = [
        Samples(
            _as_images(f"{path}[{part}_x]", samples.x, shape),
            check_labels(f"{path}[{part}_y]", samples.y, len(class_names)),
        )
        for part, samples in (("train", train), ("test", test))
    ]
    return Arrays(parts[0], parts[1], tuple(class_names))


@final
@dataclass(frozen=True, kw_only=True)
class Npz(FileDataset):
    """Your own arrays in an `.npz` file: images as bytes, or samples of any other numbers."""

    path: str = option(
        "", "the file, with `train_x`, `train_y` and, if there are any, `test_x`, `test_y`", is_path=True
    )

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """A partition and a network for any classes and shapes."""
        return {"partition": {"name": "dirichlet"}, "model": {"name": "mlp"}}

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
        names = ["train", "test"] if {"test_x", "test_y"} & {*arrays} else ["train"]
        pairs = [_pair(path, arrays, name) for name in names]
        inputs = [_as_samples(f"{path}[{name}_x]", pair.x) for name, pair in zip(names, pairs, strict=True)]
        forms = [(x.dtype == np.uint8, x.shape[1:]) for x in inputs]
        if forms[0] != forms[-1]:
            raise UserError(
                f"`{path}` has {inputs[0].dtype} training samples of shape {list(inputs[0].shape[1:])}, but "
                f"{inputs[1].dtype} test samples of shape {list(inputs[1].shape[1:])}; give both one type and shape."
            )
        labels, class_names = _number_labels(path, arrays, names)
        train, *test = (Samples(*part) for part in zip(inputs, labels, strict=True))
        clients, client_names = _number_clients(path, arrays)
        return Arrays(train, test[0] if test else None, class_names, clients=clients, client_names=client_names)


def _pair(path: Path, arrays: ByName, part: str) -> Samples:
    wanted = (f"{part}_x", f"{part}_y")
    lacking = next((name for name in wanted if name not in arrays), None)
    if lacking is not None:
        held = ", ".join(f"`{name}`" for name in arrays)
        raise UserError(f"`{path}` has no `{lacking}`, but {held}; write {', '.join(f'`{name}`' for name in wanted)}.")
    x, y = (arrays[name] for name in wanted)
    if not x.size or y.ndim != 1 or len(x) != len(y):
        raise UserError(
            f"`{path}` has `{part}_x` of shape {list(x.shape)} for `{part}_y` of shape {list(y.shape)}; give one label "
            "for each sample, at least one."
        )
    return Samples(x, y)


def _as_images(name: str, x: NDArray[Any], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return images with channels first, not copied."""
    channels, height, width = shape
    if x.dtype != np.uint8:
        raise UserError(f"`{name}` holds {x.dtype} values; a prepared file has images as bytes (uint8).")
    found = x.shape[1:]
    if found == shape:
        return x
    if found == (height, width, channels):
        return np.moveaxis(x, 3, 1)
    if found == (height, width) and channels == 1:
        return x[:, None]
    raise UserError(f"`{name}` has images of shape {list(found)}, expected {list(shape)}; prepare them in that size.")


def _as_samples(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return a user's own samples: bytes as images with channels first, other numbers as they are."""
    if x.ndim < 2:
        raise UserError(f"`{name}` has the shape {list(x.shape)}; give [samples, ...].")
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4:
        return np.moveaxis(x, 3, 1) if x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS else x
    numbers = as_numbers(name, x)
    is_double = numbers.dtype.kind == "f" and numbers.dtype.itemsize >= 8
    return numbers.astype(np.float64 if is_double else np.float32)


def _number_labels(path: Path, arrays: ByName, parts: Sequence[str]) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Return the labels of each part as numbers, and the names of the classes."""
    names = tuple(_words(f"{path}[class_names]", arrays["class_names"])) if "class_names" in arrays else ()
    labels = {f"{path}[{part}_y]": arrays[f"{part}_y"] for part in parts}
    if all(values.dtype.kind in "US" for values in labels.values()):
        words = {key: _words(key, values) for key, values in labels.items()}
        names = names or tuple(sorted({word for values in words.values() for word in values}))
        numbers = {name: i for i, name in enumerate(names)}
        for key, values in words.items():
            unknown = next((word for word in values if word not in numbers), None)
            if unknown is not None:
                raise UserError(f"`{key}` holds `{unknown}`, which is none of `class_names`; add it there.")
        found = [np.array([numbers[word] for word in values], dtype=np.int64) for values in words.values()]
    else:
        found = [check_labels(key, values, len(names) or MOST_CLASSES) for key, values in labels.items()]
        names = names or tuple(map(str, range(1 + max(int(values.max()) for values in found))))
    check_names(f"{path}[class_names]", names)
    return found, names


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
    clients = np.array(_words(name, clients)) if clients.dtype.kind in "US" else as_numbers(name, clients)
    names, numbers = np.unique(clients, return_inverse=True)
    return numbers.astype(np.int64), tuple(str(one) for one in names.tolist())


def _words(name: str, values: NDArray[Any]) -> list[str]:
    if values.dtype.kind not in "US" or values.ndim != 1:
        raise UserError(f"`{name}` holds {values.dtype} values of shape {list(values.shape)}; give a row of words.")
    try:
        words = [str(word) for word in (np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values)]
        "".join(words).encode()
        return words
    except UnicodeError:
        raise UserError(f"`{name}` holds bytes that are no text; write it as text.") from None
