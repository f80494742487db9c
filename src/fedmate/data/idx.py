"""The idx format of MNIST and its kin: four bytes that tell type and number of axes, their lengths, then the numbers.

LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998, describe it. Here the numbers are bytes, and
a file may be compressed by gzip, whatever its name.
"""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedmate.data.bundle import LARGEST, READ_AT_ONCE, damaged
from fedmate.data.dataset import Samples
from fedmate.data.files import check_labels
from fedmate.errors import UserError

BYTES = 8
"""The type of number that is read."""

AXES = (1, 2, 3)

SIDE = 28
"""Pixels of an image, high and wide."""


class Named(NamedTuple):
    """The content of a file, and what to call it in messages."""

    name: str
    data: bytes


def read_idx(data: bytes, name: str, largest: int = LARGEST) -> NDArray[np.uint8]:
    """Return the array in an idx file, compressed or not, or raise `UserError`.

    Args:
        data: the file's content.
        name: what to call it in messages.
        largest: the most bytes that the array may have.
    """
    plain = io.BytesIO(data)
    compressed = data[:2] == b"\x1f\x8b"
    try:
        return _read(cast(IO[bytes], gzip.GzipFile(fileobj=plain)) if compressed else plain, name, largest)
    except UserError:
        raise
    except Exception as error:
        # Whatever the decompression of changed bytes stumbles over.
        raise damaged(name, str(error) or type(error).__name__) from None


def read_pair(images: Named, labels: Named, num_classes: int, first: int = 0) -> Samples:
    """Return images of 28 x 28 pixels `[images, 1, 28, 28]` with their labels, or raise `UserError`.

    Args:
        images: an idx file of three axes.
        labels: an idx file of one axis.
        num_classes: how many classes there are.
        first: the number of the first.
    """
    y = read_idx(labels.data, labels.name)
    x = read_idx(images.data, images.name)
    if x.ndim != 3 or x.shape[1:] != (SIDE, SIDE):
        raise UserError(
            f"`{images.name}` has the shape {list(x.shape)}, expected [images, {SIDE}, {SIDE}]; see whether it is the "
            "right file."
        )
    if y.shape != (len(x),) or not len(y):
        raise UserError(
            f"`{labels.name}` has the shape {list(y.shape)} for {len(x)} images in `{images.name}`; see whether both "
            "are of one data set."
        )
    return Samples(x[:, None], check_labels(labels.name, y, num_classes, first))


def idx_files(place: Path, names: Sequence[str]) -> list[Path]:
    """Return the paths of idx files in a folder: `NAME` if it is there, else `NAME.gz`."""
    return [place / name if (place / name).is_file() else place / f"{name}.gz" for name in names]


def _read(file: IO[bytes], name: str, largest: int) -> NDArray[np.uint8]:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] != BYTES or head[3] not in AXES:
        raise UserError(
            f"`{name}` begins with the bytes {head.hex(' ') or '(none)'}, not with 00 00 08 and a number of axes: it "
            "is not an idx file of bytes; fetch it again."
        )
    lengths = file.read(4 * head[3])
    shape = [int.from_bytes(lengths[i : i + 4], "big") for i in range(0, len(lengths), 4)]
    size = math.prod(shape)
    if size > largest:
        raise UserError(f"`{name}` announces {size:,} bytes, of which at most {largest:,} are read; fetch it again.")
    content = bytearray()
    # No more is unpacked than was announced, and one more piece to see that nothing follows.
    while len(content) <= size and (piece := file.read(min(READ_AT_ONCE, size + 1 - len(content)))):
        content += piece
    if len(content) != size or len(lengths) < 4 * head[3]:
        what = "more" if len(content) > size else f"only {len(content):,}"
        raise damaged(name, f"it announces {size:,} bytes and has {what}")
    return np.frombuffer(content, np.uint8).reshape(shape)
