"""The idx format of MNIST and its relatives: type and number of axes, their lengths, then the numbers (here bytes)."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmate.data.archives import damaged
from fedmate.data.dataset import Samples, check_labels
from fedmate.errors import UserError

SIDE = 28
"""Pixels of an image, high and wide."""


def idx_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the paths of idx files in a folder: `NAME` if it exists, else `NAME.gz`."""
    return [folder / name if (folder / name).is_file() else folder / f"{name}.gz" for name in names]


def read_splits(files: Sequence[tuple[str, bytes]], num_classes: int, first: int = 0) -> tuple[Samples, Samples]:
    """Return training and test samples of 28 x 28 pixels, or raise `UserError`.

    Args:
        files: name and content: training images, their labels, test images, their labels.
        num_classes: how many classes there are.
        first: the number of the first class.
    """
    train_x, train_y, test_x, test_y = files
    return _read_pair(train_x, train_y, num_classes, first), _read_pair(test_x, test_y, num_classes, first)


def _read_pair(images: tuple[str, bytes], labels: tuple[str, bytes], num_classes: int, first: int) -> Samples:
    x, y = read_idx(*images), read_idx(*labels)
    if x.ndim != 3 or x.shape[1:] != (SIDE, SIDE) or y.shape != (len(x),) or not len(y):
        raise UserError(
            f"`{images[0]}` has the shape {list(x.shape)} and `{labels[0]}` {list(y.shape)}, expected [images, {SIDE}, "
            f"{SIDE}] and [images]; check whether they are the right files."
        )
    return Samples(x[:, None], check_labels(labels[0], y, num_classes, first))


def read_idx(name: str, data: bytes) -> NDArray[np.uint8]:
    """Return the array in an idx file, compressed by gzip or not, or raise `UserError`."""
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(name, str(error)) from None
    if data[:3] != b"\0\0\x08" or len(data) < 4:
        raise UserError(
            f"`{name}` begins with the bytes `{data[:4].hex(' ')}`, so it is no idx file of bytes; download it again."
        )
    start = 4 + 4 * data[3]
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    if len(data) != start + math.prod(shape):
        raise damaged(name, f"it announces {math.prod(shape):,} bytes and has {len(data) - start:,}")
    # A copy that can be written to, as torch wants it.
    return np.frombuffer(bytearray(data), np.uint8, offset=start).reshape(shape)
