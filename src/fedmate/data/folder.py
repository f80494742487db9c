"""Your own images, in a folder for each class.

`path` holds the folders of the classes, or the folders `train` and `test`, which hold them. Without these two a fifth
of each class is drawn as the test split. Hidden files, and files whose names do not end as those of images, are
skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from fedmate.core import Limits, option
from fedmate.data.dataset import OWN_DEFAULTS, Arrays
from fedmate.data.files import FileDataset
from fedmate.data.images import ImageFormat, is_image, read_images
from fedmate.data.sources import expand, files_in, unreadable
from fedmate.errors import UserError


@final
@dataclass(frozen=True, kw_only=True)
class Folder(FileDataset):
    """Your own images, in a folder for each class."""

    reading: ClassVar[tuple[str, ...]] = ("size", "grey", "skip_bad", "split_seed")
    defaults: ClassVar[dict[str, dict[str, Any]]] = OWN_DEFAULTS

    path: str = option("", "the folder whose folders are the classes, or are `train` and `test`", is_path=True)
    size: int | None = option(
        None, "pixels on each side, to which images are stretched", Limits(at_least=1, at_most=4096)
    )
    grey: bool = option(False, "one channel instead of three")
    skip_bad: bool = option(False, "leave out images that cannot be read")
    split_seed: int = option(
        0, "seed of the random test split, where there are no folders `train` and `test`", Limits(at_least=0)
    )

    def find(self, folder: Path) -> list[Path]:
        """Return the folders of the classes, below the folder that `path` names."""
        root = expand("dataset.path", self.path)
        if not self.path or not root.is_dir():
            raise UserError(f"`dataset.path` is `{self.path}`, which is no folder; name the folder of your images.")
        parts = [root / "train", root / "test"]
        if not all(part.is_dir() for part in parts):
            return _class_folders(root, at_least=2)
        train, test = _class_folders(parts[0], at_least=2), _class_folders(parts[1], at_least=1)
        unknown = sorted({path.name for path in test} - {path.name for path in train})
        if unknown:
            raise UserError(f"`{parts[1]}` has a folder `{unknown[0]}`, but `{parts[0]}` has none; add one.")
        return [*train, *test]

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the images of every class."""
        for path in found:
            deep = next((name for name, _ in files_in(path) if is_image(name) and "/" in name), None)
            if deep is not None:
                raise UserError(
                    f"`{path}` has images in further folders, such as `{deep}`; put images directly into "
                    "the folder of their class."
                )
        is_split = len({path.parent for path in found}) > 1
        form = ImageFormat(self.size, grey=self.grey, skip_bad=self.skip_bad)
        names = sorted({path.name for path in found})
        return read_images(found, dict(zip(names, names, strict=True)), form, None if is_split else self.split_seed)


def _class_folders(root: Path, at_least: int) -> list[Path]:
    """Return the folders of the classes in order of names, or raise `UserError` if there are too few."""
    try:
        found = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise unreadable(root, error) from None
    if len(found) < at_least:
        raise UserError(f"`{root}` has {len(found)} folders; put images into a folder for each class, two at least.")
    return found
