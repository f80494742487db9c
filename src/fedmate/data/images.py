"""Image files in one folder per class: a user's own, and what published data sets share.

The content of a file tells its format, not its name. Pixels are taken as stored: EXIF orientation is ignored. The first
frame counts, transparency is laid over white, and 16 bits are cut to the upper eight.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from fedmate.core import Limits, option
from fedmate.data.dataset import OWN_DEFAULTS, Arrays, Samples, hold_back
from fedmate.data.files import FileDataset, own_path
from fedmate.data.sources import files_in, read_members, unreadable
from fedmate.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""The formats that are decoded: Pillow knows others, some of which start programs."""

NAMED = 3
"""How many of the unreadable files a warning names."""


def is_image(name: str) -> bool:
    """Whether a path of slashes names an image that is not hidden.

    Example:
        >>> [is_image(name) for name in ("cat/Tom 1.JPEG", "cat/._1.png", ".trash/1.png", "cat/list.txt")]
        [True, False, False, False]
    """
    return name.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in PurePosixPath(name).parts)


def read_images(
    found: Sequence[Path],
    classes: Mapping[str, str],
    *,
    size: int | None = None,
    grey: bool = False,
    skip_bad: bool = False,
    split_seed: int | None = None,
) -> Arrays:
    """Read the images of some folders or of an archive, ordered by class and name, or raise `UserError`.

    `classes` are the folders and their names; images elsewhere are skipped. `split_seed` draws a fifth of each class as
    the test split; if left out, the folders lie in `train` and `test`.
    """
    try:
        from PIL import UnidentifiedImageError
    except ImportError:
        raise UserError("Images are read with Pillow, which is missing; run `pip install 'fedmate[images]'`.") from None
    labels = {folder: label for label, folder in enumerate(classes)}
    images, bad = list[tuple[bool, int, str, NDArray[np.uint8]]](), list[str]()
    for path, data in _files(found, labels, is_split=split_seed is None):
        try:
            image = decode(data, size, grey)
        # Decoders of broken files raise almost anything.
        except Exception as error:
            if not skip_bad:
                unknown = isinstance(error, UnidentifiedImageError)
                reason = f"none of {', '.join(FORMATS)}" if unknown else str(error) or type(error).__name__
                raise UserError(
                    f"`{path}` cannot be read as an image ({reason}); repair or remove it, or set `dataset.skip_bad` "
                    "to leave such files out."
                ) from None
            bad.append(str(path))
        else:
            is_test = split_seed is None and path.parent.parent.name == "test"
            images.append((is_test, labels[path.parent.name], str(path), image))
    images.sort(key=lambda image: image[:3])
    test, y = np.array([image[0] for image in images], np.bool_), np.array([image[1] for image in images], np.int64)
    if split_seed is not None and len(y):
        test[hold_back(y, np.random.default_rng([split_seed, *b"split"]))] = True
    notes = _check_classes(os.path.commonpath(found), y[~test], y[test], tuple(classes.values()))
    if bad:
        names = ", ".join(f"`{name}`" for name in sorted(bad)[:NAMED])
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        notes = (f"Left out as unreadable: {len(bad)} of {len(bad) + len(y)} images ({names}{more}).", *notes)
    shape = images[0][3].shape
    other = next((image for image in images if image[3].shape != shape), None)
    if other is not None:
        raise UserError(
            f"`{other[2]}` has {other[3].shape[2]} x {other[3].shape[1]} pixels, `{images[0][2]}` {shape[2]} x "
            f"{shape[1]}; set `dataset.size` to stretch all images to one size."
        )
    parts = [Samples(np.stack([images[row][3] for row in np.flatnonzero(rows)]), y[rows]) for rows in (~test, test)]
    return Arrays(parts[0], parts[1], tuple(classes.values()), notes=notes)


def _files(found: Sequence[Path], labels: Mapping[str, int], is_split: bool) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield path and content of the images in folders of the classes."""
    for top in found:

        def is_wanted(name: str, top: Path = top) -> bool:
            folders = PurePosixPath(top.as_posix(), name).parts[:-1]
            return is_image(name) and folders[-1] in labels and (not is_split or folders[-2] in ("train", "test"))

        yield from ((PurePosixPath(top.as_posix(), name), data) for name, data in read_members(top, is_wanted))


def _check_classes(
    source: str, train: NDArray[np.int64], test: NDArray[np.int64], class_names: Sequence[str]
) -> tuple[str, ...]:
    """Return warnings about missing images, or raise `UserError` where labels leave nothing to train or test on."""
    counts = np.bincount(train, minlength=len(class_names))
    if not counts.all():
        absent = class_names[int(counts.argmin())]
        raise UserError(f"`{source}` has no training image of the class `{absent}`; check whether it is complete.")
    if not len(test):
        raise UserError(f"`{source}` has {len(train)} images, but none to test on; add more.")
    untested = [f"`{name}`" for label, name in enumerate(class_names) if label not in test]
    return (f"There is no image to test on of {', '.join(untested)}.",) if untested else ()


def decode(data: bytes, size: int | None = None, grey: bool = False) -> NDArray[np.uint8]:
    """Return an image's bytes `[channels, height, width]`; bytes that are no usable image raise almost anything."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Pillow only warns of what may be a decompression bomb, and refuses twice that size.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            image: Image.Image = opened
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if image.mode in ("I", "F"):
                raise ValueError("32 bits for a pixel; save it with 8 or 16")
            if "A" in image.getbands() or "transparency" in image.info:
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            image = image.convert("RGB").convert("L" if grey else "RGB")
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(image).reshape(image.height, image.width, -1).transpose(2, 0, 1))


@final
@dataclass(frozen=True, kw_only=True)
class Folder(FileDataset):
    """Your own images, in a folder for each class.

    `path` holds the folders of the classes, or the folders `train` and `test`, which hold them. Without these two a
    fifth of each class is drawn as the test split. Hidden files, and files whose names do not end as those of images,
    are skipped.
    """

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
        root = own_path(self.path, "folder", "images")
        parts = [root / "train", root / "test"]
        try:
            places = [sorted(part.iterdir()) for part in (parts if all(part.is_dir() for part in parts) else [root])]
        except OSError as error:
            raise unreadable(root, error) from None
        found = [path for place in places for path in place if path.is_dir() and not path.name.startswith(".")]
        if len({path.name for path in found}) < 2:
            raise UserError(f"`{root}` has less than two folders of classes; put images into a folder for each class.")
        return found

    def read(self, found: Sequence[Path]) -> Arrays:
        """Read the images of every class."""
        for path in found:
            deep = next((name for name, _ in files_in(path) if is_image(name) and "/" in name), None)
            if deep is not None:
                raise UserError(
                    f"`{path}` has images in further folders, such as `{deep}`; put images directly into "
                    "the folder of their class."
                )
        names = sorted({path.name for path in found})
        is_split = len({path.parent for path in found}) > 1
        options = {key: getattr(self, key) for key in ("size", "grey", "skip_bad")}
        classes = dict(zip(names, names, strict=True))
        return read_images(found, classes, **options, split_seed=None if is_split else self.split_seed)
