"""The idx format: read as it is announced, whole, and refused in one sentence otherwise."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmate.data.dataset import Samples
from fedmate.data.idx import Named, idx_files, read_idx, read_pair
from fedmate.errors import UserError


def idx(array: NDArray[Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def refused(data: bytes, largest: int = 10**6) -> str:
    with pytest.raises(UserError) as caught:
        read_idx(data, "folder/file", largest)
    assert str(caught.value).startswith("`folder/file` ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


SMALL = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.booleans())
def test_what_is_written_is_read(shape: list[int], compressed: bool) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    data = gzip.compress(idx(array)) if compressed else idx(array)
    found = read_idx(data, "x")
    np.testing.assert_array_equal(found, array)
    assert found.shape == tuple(shape)
    assert found.dtype == np.uint8


def test_lengths_are_big_endian() -> None:
    data = bytes.fromhex("00000803 00000002 00000001 00000102") + bytes(516)
    assert read_idx(data, "x").shape == (2, 1, 258)


def test_more_than_is_read_at_once_is_read() -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 1000, 1000), dtype=np.uint8)
    for data in (idx(array), gzip.compress(idx(array), 1)):
        np.testing.assert_array_equal(read_idx(data, "x", array.size), array)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_anywhere_is_refused(compressed: bool) -> None:
    data = gzip.compress(idx(SMALL)) if compressed else idx(SMALL)
    for cut in range(len(data)):
        assert "fetch it again" in refused(data[:cut])


def test_what_follows_the_numbers_is_refused() -> None:
    assert "announces 24 bytes and has more" in refused(idx(SMALL) + b"\0")
    assert "announces 24 bytes and has more" in refused(gzip.compress(idx(SMALL) + b"\0"))
    assert "fetch it again" in refused(gzip.compress(idx(SMALL)) + b"garbage")
    assert "has only 23" in refused(idx(SMALL)[:-1])


def test_a_wrong_sum_is_noticed() -> None:
    data = bytearray(gzip.compress(idx(SMALL)))
    data[-5] ^= 1
    assert "CRC" in refused(bytes(data)) or "length" in refused(bytes(data))
    data[-5] ^= 1
    data[-8] ^= 1
    assert "CRC" in refused(bytes(data))


@pytest.mark.parametrize(
    "head",
    [
        b"\0\0\x0b\1\0\0\0\1\0\0",
        b"\0\0\x08\0",
        b"\0\0\x08\4" + b"\0\0\0\1" * 4 + b"\0",
        b"\1\0\x08\1\0\0\0\1\0",
        b"<html>Not found</html>",
        b"",
    ],
)
def test_something_else_is_no_idx_file_of_bytes(head: bytes) -> None:
    assert "not an idx file of bytes" in refused(head)
    assert "not an idx file of bytes" in refused(gzip.compress(head))


def test_the_first_bytes_are_shown() -> None:
    assert "begins with the bytes 3c 68 74 6d" in refused(b"<html>")


def test_a_file_that_announces_much_is_refused_before_it_is_read() -> None:
    head = b"\0\0\x08\3" + b"\xff\xff\xff\xff" * 3
    assert "announces 79,228,162,458,924,105,385,300,197,375 bytes" in refused(head)
    assert "at most 23 are read" in refused(idx(SMALL), 23)
    assert read_idx(idx(SMALL), "x", 24).size == 24


def test_a_bomb_is_unpacked_only_as_far_as_announced() -> None:
    bomb = gzip.compress(b"\0\0\x08\1\0\0\0\x0a" + bytes(10**8), 1)
    tracemalloc.start()
    try:
        assert "announces 10 bytes and has more" in refused(bomb)
        assert tracemalloc.get_traced_memory()[1] < 5 * 10**6
    finally:
        tracemalloc.stop()


# -------------------- images with labels


def pair(images: Any, labels: Any, num_classes: int = 10, first: int = 0) -> Samples:
    named = Named("images", idx(np.asarray(images, np.uint8))), Named("labels", idx(np.asarray(labels, np.uint8)))
    return read_pair(*named, num_classes, first)


IMAGES = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)


def test_images_get_a_channel_and_labels_count_from_zero() -> None:
    found = pair(IMAGES, [9, 0, 4])
    np.testing.assert_array_equal(found.x, IMAGES[:, None])
    assert found.y.tolist() == [9, 0, 4]
    assert found.y.dtype == np.int64
    assert pair(IMAGES, [1, 26, 3], num_classes=26, first=1).y.tolist() == [0, 25, 2]


@pytest.mark.parametrize(
    ("images", "labels", "options", "message"),
    [
        (IMAGES[:, :, :27], [0, 1, 2], {}, "`images` has the shape [3, 28, 27], expected [images, 28, 28]"),
        (IMAGES[0], [0] * 28, {}, "`images` has the shape [28, 28]"),
        (IMAGES, [0, 1], {}, "`labels` has the shape [2] for 3 images in `images`"),
        (IMAGES, [[0], [1], [2]], {}, "`labels` has the shape [3, 1]"),
        (IMAGES[:0], [], {}, "`labels` has the shape [0] for 0 images"),
        (IMAGES, [0, 10, 2], {}, "`labels` is 10 at [1], but labels are whole numbers from 0 to 9"),
        (
            IMAGES,
            [1, 2, 0],
            {"num_classes": 26, "first": 1},
            "`labels` is 0 at [2], but labels are whole numbers from 1",
        ),
        (
            IMAGES,
            [27, 2, 0],
            {"num_classes": 26, "first": 1},
            "`labels` is 27 at [0], but labels are whole numbers from 1",
        ),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused(
    images: Any, labels: Any, options: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        pair(images, labels, **options)
    assert message in str(caught.value)


def test_an_unpacked_file_is_taken_before_a_packed_one(tmp_path: Path) -> None:
    for name in ("a", "a.gz", "b.gz"):
        (tmp_path / name).touch()
    assert [path.name for path in idx_files(tmp_path, ("a", "b", "c"))] == ["a", "b.gz", "c.gz"]
