"""Image files in one folder per class: decoded one at a time into one array.

The content of a file tells its format, not its name. Pixels are taken as stored: EXIF orientation is ignored. The first
frame counts, transparency is laid over white, and 16 bits are cut to the upper eight.
"""

from __future__ import annotations

import io
import os
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate.data.archives import read_members
from fedmate.data.dataset import Arrays, Samples, hold_back
from fedmate.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""The formats that are decoded: Pillow knows others, some of which start programs."""

NAMED = 3
"""How many of the unreadable files a warning names."""


class ImageFormat(NamedTuple):
    """How files become arrays.

    Attributes:
        size: pixels on each side; `None` if all images have one size already.
        resize: whether images of another size are stretched to `size`, or are unreadable.
        grey: one channel instead of three.
        skip_bad: whether unreadable files are left out, or an error.
    """

    size: int | None = None
    resize: bool = True
    grey: bool = False
    skip_bad: bool = False


class _BadImageError(Exception):
    """Bytes are no usable image; its text says why."""


def is_image(name: str) -> bool:
    """Whether a path of slashes names an image that is not hidden.

    Example:
        >>> [is_image(name) for name in ("cat/Tom 1.JPEG", "cat/._1.png", ".trash/1.png", "cat/list.txt")]
        [True, False, False, False]
    """
    is_hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
    return name.lower().endswith(SUFFIXES) and not is_hidden


def printable(name: str) -> str:
    r"""Return a name with control characters and undecodable bytes escaped.

    Example:
        >>> print(printable("José\n.png"))
        José\n.png
    """
    spoilers = ("Cc", "Cs")
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in spoilers else char for char in name
    )


def read_images(
    found: Sequence[Path],
    locate: Callable[[PurePosixPath], tuple[bool, int] | None],
    class_names: tuple[str, ...],
    form: ImageFormat,
    split_seed: int | None = None,
) -> Arrays:
    """Read the images of some folders or of an archive, ordered by class and name, or raise `UserError`.

    Args:
        found: the folders, or the archive.
        locate: tells from the path of a file whether it is a test image, and its label; `None` skips the file.
        class_names: one for each label.
        form: how files become arrays.
        split_seed: if given, a random fifth of each class becomes the test split.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise UserError("Images are read with Pillow, which is missing; run `pip install 'fedmate[images]'`.") from None
    # One growing block of bytes: a list of arrays would have to be copied as a whole in the end.
    pixels, places, bad = bytearray(), list[tuple[bool, int, str]](), list[str]()
    shape: tuple[int, ...] = (1 if form.grey else 3, 1, 1)
    for top in found:

        def is_wanted(name: str, top: Path = top) -> bool:
            return is_image(name) and locate(PurePosixPath(top.as_posix(), name)) is not None

        for name, data in read_members(top, is_wanted):
            path = PurePosixPath(top.as_posix(), name)
            try:
                image = _decode(data, form)
            except _BadImageError as error:
                if not form.skip_bad:
                    raise UserError(
                        f"`{printable(str(path))}` cannot be read as an image ({error}); repair or remove it, or set "
                        "`dataset.skip_bad` to leave such files out."
                    ) from None
                bad.append(str(path))
                continue
            if places and image.shape != shape:
                sizes = [f"{width} x {height}" for _, height, width in (image.shape, shape)]
                raise UserError(
                    f"`{printable(str(path))}` has {sizes[0]} pixels, those before it have {sizes[1]}; set "
                    "`dataset.size` to stretch all images to one size."
                )
            shape = image.shape
            places.append((*(locate(path) or (False, 0)), str(path)))
            pixels += image.tobytes()
    x = np.frombuffer(pixels, np.uint8).reshape(len(places), *shape)
    train, test = _divide(x, places, split_seed)
    return Arrays(train, test, class_names, notes=_check(found, train, test, class_names, bad))


def _divide(
    x: NDArray[np.uint8], places: Sequence[tuple[bool, int, str]], split_seed: int | None
) -> tuple[Samples, Samples]:
    """Sort images by label and name, and return training and test samples."""
    order = np.array(sorted(range(len(places)), key=places.__getitem__), dtype=np.int64)
    labels = np.array([places[row][1] for row in order], dtype=np.int64)
    test = np.array([places[row][0] for row in order], dtype=np.bool_)
    if split_seed is not None:
        test[hold_back(labels, np.random.default_rng([split_seed, *b"split"]))] = True
    train_part, test_part = (Samples(x[order[part]], labels[part]) for part in (~test, test))
    return train_part, test_part


def _check(
    found: Sequence[Path], train: Samples, test: Samples, class_names: tuple[str, ...], bad: Sequence[str]
) -> tuple[str, ...]:
    """Return warnings about images that are missing, or raise `UserError` where nothing can be trained or tested."""
    source, notes = Path(os.path.commonpath(found)), []
    counts = np.bincount(train.y, minlength=len(class_names))
    if not counts.all():
        absent = class_names[int(counts.argmin())]
        raise UserError(f"`{source}` has no training image of the class `{absent}`; check whether it is complete.")
    if not len(test.y):
        raise UserError(f"`{source}` has {len(train.y)} images, but none to test on; add more.")
    if bad:
        names = ", ".join(f"`{printable(name)}`" for name in sorted(bad)[:NAMED])
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        total = len(bad) + len(train.y) + len(test.y)
        notes.append(f"Left out as unreadable: {len(bad)} of {total} images ({names}{more}).")
    untested = sorted({*range(len(class_names))} - {*test.y.tolist()})
    if untested:
        notes.append(f"There is no image to test on of {', '.join(f'`{class_names[label]}`' for label in untested)}.")
    return tuple(notes)


def _decode(data: bytes, form: ImageFormat) -> NDArray[np.uint8]:
    """Return an image's bytes `[channels, height, width]`, or raise `_BadImageError`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Pillow only warns of what may be a decompression bomb, and refuses twice that size.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return _pixels(image, form)
    except _BadImageError:
        raise
    except UnidentifiedImageError:
        raise _BadImageError(f"none of {', '.join(FORMATS)}") from None
    # Decoders of broken files raise almost anything.
    except Exception as error:
        raise _BadImageError(printable(str(error)) or type(error).__name__) from None


def _pixels(image: Image.Image, form: ImageFormat) -> NDArray[np.uint8]:
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise _BadImageError("32 bits for a pixel; save it with 8 or 16")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB").convert("L" if form.grey else "RGB")
    if form.size is not None and image.size != (form.size, form.size):
        if not form.resize:
            raise _BadImageError(f"{image.width} x {image.height} pixels instead of {form.size} x {form.size}")
        image = image.resize((form.size, form.size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(image).reshape(image.height, image.width, -1).transpose(2, 0, 1))
