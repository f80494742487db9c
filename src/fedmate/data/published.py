"""Data sets that were published, in their own files or in a prepared one.

A prepared file `NAME.npz` holds images as bytes, `train_x` and `test_x`, and their labels, `train_y` and `test_y`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmate.data.dataset import Arrays, Samples, check_labels
from fedmate.data.files import FileDataset
from fedmate.data.npz import read_npz, take_pair
from fedmate.errors import UserError


def paper_settings(network: str, learning_rate: float | None = None, **partition: Any) -> dict[str, dict[str, Any]]:
    """Return the paper's settings; its learning rate is 0.02 if left out, its clients have 600 samples."""
    training = {} if learning_rate is None else {"training": {"learning_rate": learning_rate}}
    return {"partition": {"name": "share", "examples": 600, **partition}, "model": {"name": network}, **training}


@dataclass(frozen=True, kw_only=True)
class PublishedDataset(FileDataset):
    """A published data set of images, or a prepared file of it."""

    @property
    @abstractmethod
    def name(self) -> str:
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
        complete = next((paths for paths in candidates if all(path.exists() for path in paths)), None)
        if complete is not None:
            return complete
        for paths in candidates:
            there = [path for path in paths if path.exists()]
            if there:
                lacking = next(path for path in paths if path not in there)
                raise UserError(
                    f"`dataset.name` is `{self.name}`, but `{lacking}` is missing beside `{there[0].name}`; complete "
                    f"the files, or get them with `fedmate data {self.name}`."
                )
        forms = " or ".join(dict.fromkeys(f"`{paths[0].relative_to(folder).parts[0]}`" for paths in candidates))
        raise UserError(
            f"`dataset.name` is `{self.name}`, but `{folder}` has no {forms}; get it with `fedmate data {self.name}`, "
            "or name the folder that has it with `--data-dir` or `FEDMATE_DATA`."
        )

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the published files or the prepared one."""
        if found[0].suffix != ".npz":
            return self.read_published(found)
        arrays, parts = read_npz(found[0]), []
        for part in ("train", "test"):
            x, y = take_pair(found[0], arrays, part)
            labels = check_labels(f"{found[0]}[{part}_y]", y, len(self.class_names))
            parts.append(Samples(_images(f"{found[0]}[{part}_x]", x, self.shape), labels))
        return Arrays(parts[0], parts[1], self.class_names)


def _images(name: str, x: NDArray[Any], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return images with channels first, which may come last in the file, or be left out if one."""
    channels, height, width = shape
    found = x.shape[1:]
    if x.dtype == np.uint8 and found == shape:
        return x
    if x.dtype == np.uint8 and found == (height, width, channels):
        return np.moveaxis(x, 3, 1)
    if x.dtype == np.uint8 and (1, *found) == shape:
        return x[:, None]
    raise UserError(
        f"`{name}` has {x.dtype} images of shape {list(found)}; prepare images of bytes (uint8) of shape {list(shape)}."
    )
