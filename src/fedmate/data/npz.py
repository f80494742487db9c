"""Arrays in a file that `numpy.savez` wrote: a user's own, and those prepared for a named data set.

A prepared file `NAME.npz` holds bytes: images `train_x`, `test_x` and their labels `train_y`, `test_y`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import option
from fedmate.data.arrays import MOST_CLASSES, as_numbers
from fedmate.data.bundle import LONGEST, unreadable
from fedmate.data.dataset import Arrays, Normalisation, Samples
from fedmate.data.files import Content, ImageDataset, check_labels
from fedmate.data.paths import expand
from fedmate.errors import UserError

ByName: TypeAlias = Mapping[str, NDArray[Any]]

CHANNELS = (1, 3)
"""How many an image has: an axis of another length is none of channels."""


def read_numpy(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file of numpy's by name; the one of an `.npy` file has none.

    Raises:
        OSError: it cannot be read.
        UserError: it is damaged or something else.
    """
    try:
        # Opened here: numpy leaves a damaged file open.
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            return {"": found} if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        kind = "save" if path.suffix.lower() == ".npy" else "savez"
        if str(error).startswith("Object arrays"):
            words = ", and words with `.astype(str)`" if kind == "savez" else ""
            raise UserError(
                f"`{path}` holds Python objects, which are not read; save plain numbers{words}, with `numpy.{kind}`."
            ) from None
        raise UserError(
            f"`{path}` is not a file of numpy's numbers ({_reason(error)}); write it with `numpy.{kind}`."
        ) from None


def _reason(error: Exception) -> str:
    """Say why a file is not read: one that is damaged makes numpy's parsers, and those below, raise almost anything."""
    if "allow_pickle" in str(error):
        # It takes whatever it does not know for objects, and says how they could be read, which is not safe.
        return "but Python objects, which are not read, or something else"
    return str(error).splitlines()[0][:LONGEST] if str(error) else type(error).__name__


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name, or raise `UserError` if it is missing, damaged or something else."""
    try:
        arrays = read_numpy(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if not arrays or "" in arrays:
        raise UserError(f"`{path}` holds no named arrays; write it with `numpy.savez`.")
    return arrays


def read_prepared(path: Path, shape: tuple[int, int, int], class_names: Sequence[str]) -> Content:
    """Return what is in a file prepared for a named data set, or raise `UserError`.

    Args:
        path: of the file.
        shape: channels, height and width of an image. In the file channels may come last, and be left out if one.
        class_names: one for each label.
    """
    return check_prepared(path, read_npz(path), shape, class_names)


def check_prepared(path: Path, arrays: ByName, shape: tuple[int, int, int], class_names: Sequence[str]) -> Content:
    """Return arrays that were prepared for a named data set as its content, or raise `UserError`; see above."""
    _check_names(path, arrays, ("train_x", "train_y", "test_x", "test_y"))
    train, test = (
        _pair(path, part, _as_images(f"{path}[{part}_x]", arrays[f"{part}_x"], shape), arrays[f"{part}_y"])
        for part in ("train", "test")
    )
    labels = [
        check_labels(f"{path}[{part}_y]", samples.y, len(class_names))
        for part, samples in (("train", train), ("test", test))
    ]
    return Content(Samples(train.x, labels[0]), Samples(test.x, labels[1]), tuple(class_names))


@final
@dataclass(frozen=True, kw_only=True)
class Npz(ImageDataset):
    """A user's own arrays in an `.npz` file: images as bytes, or samples of any other numbers."""

    path: str = option(
        "", "the file, with `train_x`, `train_y` and, if there are any, `test_x`, `test_y`", is_path=True
    )

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """A partition that fits any number of classes, a network that fits samples of any shape."""
        return {"partition": {"name": "dirichlet"}, "model": {"name": "mlp"}}

    def find(self, folder: Path) -> list[Path]:
        """Return the file, wherever it is; nothing lies in `folder`."""
        if not self.path:
            raise UserError("`dataset.path` is empty; set it to the `.npz` file that holds the samples.")
        path = expand("dataset.path", self.path)
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise UserError(f"`dataset.path` is `{path}`, which {what}; name an `.npz` file.")
        return [path]

    def read(self, found: Sequence[Path]) -> Content:
        """Read the arrays and see that they fit each other."""
        (path,) = found
        arrays = read_npz(path)
        parts = ["train", "test"] if {"test_x", "test_y"} & {*arrays} else ["train"]
        _check_names(path, arrays, [f"{part}_{letter}" for part in parts for letter in "xy"])
        samples = [
            _pair(path, part, _as_samples(f"{path}[{part}_x]", arrays[f"{part}_x"]), arrays[f"{part}_y"])
            for part in parts
        ]
        kinds = [part.x.dtype == np.uint8 for part in samples]
        if kinds[0] != kinds[-1]:
            held = " and ".join(f"{part.x.dtype} in `{name}_x`" for name, part in zip(parts, samples, strict=True))
            raise UserError(f"`{path}` has {held}, but only bytes (uint8) are normalised; give both one type.")
        shapes = [part.x.shape[1:] for part in samples]
        if shapes[0] != shapes[-1]:
            raise UserError(
                f"`{path}` has test samples of shape {list(shapes[-1])}, the others are {list(shapes[0])}; give both "
                "one shape."
            )
        labels, names = _number_labels(path, arrays, parts)
        train, *test = (Samples(part.x, numbers) for part, numbers in zip(samples, labels, strict=True))
        clients, client_names = _number_clients(path, arrays)
        return Content(train, test[0] if test else None, names, clients, client_names=client_names)

    def normalisation(self, content: Content) -> Normalisation:
        """Bring bytes to the range from -1 to 1, and leave other numbers as they are."""
        return Normalisation.of_bytes((0.5,), (0.5,)) if content.train.x.dtype == np.uint8 else Normalisation()

    def load(self, folder: Path) -> Arrays:
        """Return the arrays; only images can be cropped and mirrored."""
        arrays = super().load(folder)
        if arrays.train.x.ndim != 4 and any(self.augmentation):
            name = "crop" if self.crop else "flip"
            raise UserError(
                f"`dataset.{name}` is for images, but `{self.path}` has samples of shape "
                f"{list(arrays.train.x.shape[1:])}; leave it out."
            )
        return arrays


def _check_names(path: Path, arrays: ByName, wanted: Sequence[str]) -> None:
    lacking = next((name for name in wanted if name not in arrays), None)
    if lacking is not None:
        held = ", ".join(f"`{name}`" for name in arrays)
        raise UserError(f"`{path}` has no `{lacking}`, but {held}; write {', '.join(f'`{name}`' for name in wanted)}.")


def _pair(path: Path, part: str, x: NDArray[Any], y: NDArray[Any]) -> Samples:
    if not x[:1].size and len(x):
        raise UserError(
            f"`{path}` has samples of shape {list(x.shape[1:])} in `{part}_x`, which hold nothing; give some."
        )
    if y.ndim != 1 or len(x) != len(y) or not len(y):
        raise UserError(
            f"`{path}` has {len(x)} samples in `{part}_x` for `{part}_y` of shape {list(y.shape)}; give one label for "
            "each sample, at least one."
        )
    return Samples(x, y)


def _as_images(name: str, x: NDArray[Any], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return images with channels first, not copied."""
    channels, height, width = shape
    if x.dtype != np.uint8:
        raise UserError(f"`{name}` holds {x.dtype} values; a prepared file has images as bytes, that is uint8.")
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
    wide = numbers.dtype.kind == "f" and numbers.dtype.itemsize >= 8
    return numbers.astype(np.float64 if wide else np.float32)


def _number_labels(path: Path, arrays: ByName, parts: Sequence[str]) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
    """Return the labels of each part as numbers, and the names of the classes."""
    names = _class_names(path, arrays)
    labels = {f"{part}_y": arrays[f"{part}_y"] for part in parts}
    if all(values.dtype.kind in "US" for values in labels.values()):
        words = {key: _words(f"{path}[{key}]", values) for key, values in labels.items()}
        names = names or tuple(sorted({word for values in words.values() for word in values}))
        numbers = {name: i for i, name in enumerate(names)}
        for key, values in words.items():
            odd = next((i for i, word in enumerate(values) if word not in numbers), None)
            if odd is not None:
                raise UserError(
                    f"`{path}[{key}]` is `{values[odd]}` at [{odd}], which is none of `class_names`; add it there."
                )
        found = [np.array([numbers[word] for word in values], dtype=np.int64) for values in words.values()]
    else:
        limit = len(names) if names else MOST_CLASSES
        found = [check_labels(f"{path}[{key}]", values, limit) for key, values in labels.items()]
        names = names or tuple(map(str, range(1 + max(int(values.max()) for values in found))))
    if len(names) < 2:
        raise UserError(f"`{path}` holds one class only; give samples of two classes at least, or `class_names`.")
    if len(names) > MOST_CLASSES:
        raise UserError(f"`{path}` has {len(names)} classes, which look like something else; label with fewer.")
    return found, names


def _class_names(path: Path, arrays: ByName) -> tuple[str, ...]:
    """Return the names a file gives its classes, none if it does not."""
    if "class_names" not in arrays:
        return ()
    names = tuple(_words(f"{path}[class_names]", arrays["class_names"]))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"`{path}[class_names]` has `{twice[0]}` twice; give each class a name of its own.")
    return names


def _number_clients(path: Path, arrays: ByName) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return whose each training sample is, numbered in the order of what the file calls them, and those names."""
    if "train_client" not in arrays:
        return None, ()
    clients = arrays["train_client"]
    if clients.shape != arrays["train_y"].shape:
        raise UserError(
            f"`{path}[train_client]` has the shape {list(clients.shape)} for {len(arrays['train_y'])} samples; give "
            "one client for each."
        )
    name = f"{path}[train_client]"
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
