"""Folder: a user's own images, in a folder for each class.

`path` holds the folders of the classes, or `train` and `test`, which hold them; what lies beside `train` and `test`,
such as `val` or `valid`, is not read. Without these two a fifth of each class is drawn for the test. Images lie
directly in the folder of their class; hidden files and files whose names do not end as those of images do are passed
over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, final

from fedmate.core import Limits, option
from fedmate.data.bundle import files_in, unreadable
from fedmate.data.dataset import Normalisation
from fedmate.data.files import Content, ImageDataset
from fedmate.data.images import SUFFIXES, Form, Place, Tree, is_hidden, is_image, printable, read_tree
from fedmate.data.paths import expand
from fedmate.errors import UserError

NORMALISATION = Normalisation.of_bytes((0.5,), (0.5,))
"""From -1 to 1."""


@final
@dataclass(frozen=True, kw_only=True)
class Folder(ImageDataset):
    """Your own images, in a folder for each class."""

    reading: ClassVar[tuple[str, ...]] = ("size", "grey", "skip_bad", "split_seed")

    path: str = option("", "the folder whose folders are the classes, or are `train` and `test`", is_path=True)
    size: int | None = option(
        None, "pixels on each side, to which images are stretched", Limits(at_least=1, at_most=4096)
    )
    grey: bool = option(False, "one channel instead of three")
    skip_bad: bool = option(False, "leave out images that cannot be read")
    split_seed: int = option(
        0, "draws the fifth of each class to test on, without `train` and `test`", Limits(at_least=0)
    )

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """What fits any number of classes and any size."""
        return {"partition": {"name": "dirichlet"}, "model": {"name": "mlp"}}

    def find(self, folder: Path) -> list[Path]:
        """Return the folders of the classes; nothing lies in `folder`."""
        root = self._root()
        parts = [root / "train", root / "test"]
        if not all(part.is_dir() for part in parts):
            return _class_folders(root, at_least=2)
        train, test = _class_folders(parts[0], at_least=2), _class_folders(parts[1], at_least=1)
        unknown = sorted({path.name for path in test} - {path.name for path in train})
        if unknown:
            raise UserError(f"`{parts[1]}` has a folder `{unknown[0]}`, but `{parts[0]}` has none; give it one, too.")
        return [*train, *test]

    def read(self, found: Sequence[Path]) -> Content:
        """Read the images of every class."""
        for path in found:
            _check_images(path)
        labels = {name: label for label, name in enumerate(sorted({path.name for path in found}))}
        split = len({path.parent for path in found}) > 1

        def place_of(name: str) -> Place:
            folder = PurePosixPath(name).parent
            return Place(split and folder.parent.name == "test", labels[folder.name], name)

        tree = Tree(found, place_of, tuple(labels))
        form = Form(self.size, grey=self.grey, skip_bad=self.skip_bad)
        return read_tree(tree, form, None if split else self.split_seed)

    def normalisation(self, content: Content) -> Normalisation:
        """Return constants that suit any images."""
        return NORMALISATION

    def _root(self) -> Path:
        if not self.path:
            raise UserError("`dataset.path` is empty; set it to the folder in which each class has a folder of images.")
        root = expand("dataset.path", self.path)
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "does not exist"
            raise UserError(
                f"`dataset.path` is `{root}`, which {what}; name the folder that has the folders of the classes."
            )
        return root


def _class_folders(root: Path, at_least: int) -> list[Path]:
    """Return the folders that are not hidden, by name, or raise `UserError` if they cannot be classes."""
    try:
        found = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise unreadable(root, error) from None
    if len(found) < at_least:
        has = f"`{printable(found[0].name)}` as its only folder" if found else "no folders"
        raise UserError(f"`{root}` has {has}; put images into a folder for each class, two at least.")
    odd = next((path for path in found if path.name != printable(path.name)), None)
    if odd is not None:
        raise UserError(f"`{printable(str(odd))}` names a class, but its name is not plain text; rename it.")
    return found


def _check_images(path: Path) -> None:
    """Raise `UserError` unless images lie directly in the folder of a class."""
    names = [name for name, _ in files_in(path) if not is_hidden(name)]
    images = [name for name in names if is_image(name)]
    deep = next((name for name in images if "/" in name), None)
    if deep is not None:
        raise UserError(
            f"`{path}` has images in further folders, such as `{printable(deep)}`; put images directly into the folder "
            "of their class, and these into `dataset.path`, or into `train` and `test` there."
        )
    if not images:
        has = f"{len(names)} files, but no image ({' '.join(SUFFIXES)})" if names else "no image"
        raise UserError(f"`{path}` has {has}; put images of that class there, or remove it.")
