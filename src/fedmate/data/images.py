"""Images: from the bytes of files to arrays of one size, one image at a time, in one block of memory.

The content of a file tells its format, not its name. Pixels are taken as they are stored: a camera's note on how to
turn the picture (EXIF orientation) is not followed. Of several frames the first counts; what is transparent is laid
over white; of 16 bits the upper eight are kept. What Pillow takes for a decompression bomb is refused.
"""

from __future__ import annotations

import io
import math
import os
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate.data.bundle import open_bundle
from fedmate.data.dataset import Samples, hold_back
from fedmate.data.files import Content
from fedmate.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""What the name of an image ends in, in small letters or capitals."""

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""What is decoded; Pillow knows others, some of which start programs."""

NAMED = 3
"""How many of the files that were left out a note names."""

SLICE = 64
"""Bytes of each image that move at once when images are put in order."""


class Form(NamedTuple):
    """What images become.

    Attributes:
        size: pixels on each side; `None` if all images have one size already, whatever it is.
        resize: whether images of another size are stretched to it, or refused.
        grey: one channel instead of three.
        skip_bad: whether files that cannot be read are left out, or refused.
    """

    size: int | None = None
    resize: bool = True
    grey: bool = False
    skip_bad: bool = False


class Place(NamedTuple):
    """Where an image belongs, in the order in which samples are sorted.

    Attributes:
        test: whether it is one of the test split.
        label: its class.
        name: of its file, for messages, too.
    """

    test: bool
    label: int
    name: str


class Tree(NamedTuple):
    """Images that lie in a folder for each class.

    Attributes:
        found: these folders, or the archive that has them.
        place_of: tells where an image belongs by the path of its file, with slashes; `None` if it is not wanted.
        class_names: one for each label.
    """

    found: Sequence[Path]
    place_of: Callable[[str], Place | None]
    class_names: tuple[str, ...]


class Gallery(NamedTuple):
    """Images that were read.

    Attributes:
        x: their bytes, `[images, channels, height, width]`.
        places: where each belongs.
        bad: the files that were left out.
    """

    x: NDArray[np.uint8]
    places: list[Place]
    bad: list[str]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should read about files that were left out."""
        if not self.bad:
            return ()
        names = ", ".join(f"`{printable(name)}`" for name in sorted(self.bad)[:NAMED])
        more = f" and {len(self.bad) - NAMED} more" if len(self.bad) > NAMED else ""
        return (f"Left out as unreadable: {len(self.bad)} of {len(self.bad) + len(self.x)} images ({names}{more}).",)


class _BadImageError(Exception):
    """Bytes are not an image that can be used; its text says why."""


def is_image(name: str) -> bool:
    """Tell whether a path of slashes names an image that is not hidden.

    Example:
        >>> [is_image(name) for name in ("cat/Tom 1.JPEG", "cat/._1.png", ".trash/1.png", "cat/list.txt")]
        [True, False, False, False]
    """
    return name.lower().endswith(SUFFIXES) and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Tell whether a path of slashes names something in a hidden folder, or hidden itself."""
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def printable(name: str) -> str:
    r"""Return a name with what would spoil a line of text spelled out: control characters and bytes that are no text.

    Example:
        >>> print(printable("José\n.png"))
        José\n.png
    """
    spoilers = ("Cc", "Cs")
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in spoilers else char for char in name
    )


def decode(name: str, data: bytes, form: Form) -> NDArray[np.uint8]:
    """Return an image's bytes `[channels, height, width]`, or raise `UserError`; `name` is for the message."""
    _require_pillow()
    try:
        return _decode(data, form)
    except _BadImageError as error:
        raise UserError(
            f"`{printable(name)}` cannot be read as an image ({error}); mend or remove it, or set `dataset.skip_bad` "
            "to leave such files out."
        ) from None


def present(folders: list[Path]) -> list[Path]:
    """Return the folders of a data set's classes, or raise `UserError` if one is missing."""
    absent = next((path for path in folders if not path.is_dir()), None)
    if absent is not None:
        raise UserError(f"`{absent.parent}` has no folder `{absent.name}`; see whether the data set is complete.")
    return folders


def read_tree(tree: Tree, form: Form, split_seed: int | None = None) -> Content:
    """Read all images of a tree, or raise `UserError`; `split_seed` as in `divide`."""
    gallery = gather(_items(tree), form)
    train, test = divide(gallery, split_seed)
    source = Path(os.path.commonpath(tree.found))
    counts = np.bincount(train.y, minlength=len(tree.class_names))
    if not counts.all():
        absent = tree.class_names[int(counts.argmin())]
        raise UserError(f"`{source}` has no image of the class `{absent}` to train on; see whether it is complete.")
    if not len(test.y):
        raise UserError(f"`{source}` has {len(train.y)} images, but none to test on; add more.")
    untested = sorted({*range(len(tree.class_names))} - {*test.y.tolist()})
    names = ", ".join(f"`{tree.class_names[label]}`" for label in untested)
    notes = (f"There is no image to test on of {names}.",) if untested else ()
    return Content(train, test, tree.class_names, notes=(*gallery.notes, *notes))


def _items(tree: Tree) -> Iterator[tuple[Place, bytes]]:
    for path in tree.found:
        top = path.as_posix()

        def wanted(name: str, top: str = top) -> bool:
            return is_image(name) and tree.place_of(f"{top}/{name}") is not None

        for name, data in open_bundle(path).items(wanted):
            place = tree.place_of(f"{top}/{name}")
            if place is not None:
                yield place, data


def gather(items: Iterable[tuple[Place, bytes]], form: Form) -> Gallery:
    """Read images one after the other, or raise `UserError` for the first that cannot be used."""
    _require_pillow()
    # Bytes that grow at their end: a list of arrays would have to be copied as a whole in the end.
    pixels, places, bad = bytearray(), list[Place](), list[str]()
    shape: tuple[int, ...] = (1 if form.grey else 3, 1, 1)
    for place, data in items:
        try:
            image = _decode(data, form) if form.skip_bad else decode(place.name, data, form)
        except _BadImageError:
            bad.append(place.name)
            continue
        if places and image.shape != shape:
            raise UserError(
                f"`{printable(place.name)}` has {_size(image.shape)} pixels, those before it have {_size(shape)}; set "
                "`dataset.size` to stretch all images to one size."
            )
        shape = image.shape
        places.append(place)
        pixels += image.tobytes()
    return Gallery(np.frombuffer(pixels, np.uint8).reshape(len(places), *shape), places, bad)


def divide(gallery: Gallery, split_seed: int | None = None) -> tuple[Samples, Samples]:
    """Sort images by class and name and return those to train on and those to test on.

    Args:
        gallery: the images; they are put in order where they are, and used up.
        split_seed: with it a fifth of each class is drawn for the test, without it the places tell.
    """
    order = np.array(sorted(range(len(gallery.places)), key=gallery.places.__getitem__), dtype=np.int64)
    labels = np.array([gallery.places[row].label for row in order], dtype=np.int64)
    test = np.array([gallery.places[row].test for row in order], dtype=np.bool_)
    if split_seed is not None:
        test[hold_back(labels, np.random.default_rng([split_seed, *b"split"]))] = True
    ranks = np.argsort(test, kind="stable")
    _reorder(gallery.x, order[ranks])
    labels, end = labels[ranks], len(test) - int(test.sum())
    return Samples(gallery.x[:end], labels[:end]), Samples(gallery.x[end:], labels[end:])


def _reorder(x: NDArray[np.uint8], order: NDArray[np.int64]) -> None:
    """Put rows in order in place; some bytes of each at a time, so that a small copy is enough."""
    flat = x.reshape(len(x), math.prod(x.shape[1:]))
    for start in range(0, flat.shape[1], SLICE):
        flat[:, start : start + SLICE] = flat[order, start : start + SLICE]


def _require_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise UserError("Images are read with Pillow, which is missing; run `pip install 'fedmate[images]'`.") from None


def _decode(data: bytes, form: Form) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Pillow warns of what may be a bomb, and refuses what is twice as large.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return _pixels(image, form)
    except _BadImageError:
        raise
    # Decoders of broken files raise whatever they stumble over.
    except Exception as error:
        raise _BadImageError(_reason(error)) from None


def _pixels(image: Image.Image, form: Form) -> NDArray[np.uint8]:
    from PIL import Image

    image = _over_white(_of_eight_bits(image)).convert("RGB").convert("L" if form.grey else "RGB")
    if form.size is not None and image.size != (form.size, form.size):
        if not form.resize:
            raise _BadImageError(f"{image.width} x {image.height} pixels instead of {form.size} x {form.size}")
        image = image.resize((form.size, form.size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(image).reshape(image.height, image.width, -1).transpose(2, 0, 1))


def _of_eight_bits(image: Image.Image) -> Image.Image:
    """Return an image whose channels have eight bits."""
    from PIL import Image

    wide = image.mode == "I" and image.format in ("PNG", "PPM")
    if image.mode.startswith("I;16") or wide:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise _BadImageError("32 bits for a pixel; save it with 8 or 16")
    return image


def _over_white(image: Image.Image) -> Image.Image:
    """Return an image without transparency."""
    from PIL import Image

    if "A" not in image.getbands() and "transparency" not in image.info:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def _reason(error: Exception) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return f"none of {', '.join(FORMATS)}"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"over {Image.MAX_IMAGE_PIXELS} pixels, as a decompression bomb has"
    return printable(str(error)) or type(error).__name__


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[2]} x {shape[1]}"
