"""Images become exactly the bytes they hold, of whatever kind they are, and what cannot be read is named."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.data.official import png as encoded
from tests.data.official import put

from fedmate.data.arrays import Npz
from fedmate.data.dataset import Arrays, Normalisation, Samples
from fedmate.data.images import Folder, decode, read_images
from fedmate.errors import UserError

RNG = np.random.default_rng(0)
PIXELS: NDArray[np.uint8] = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)
"""A picture 6 wide and 4 high."""

GREYS: NDArray[np.uint8] = RNG.integers(0, 256, (4, 6), dtype=np.uint8)


def flat(colour: int, side: int = 2) -> bytes:
    return encoded(np.full((side, side, 3), colour, np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "GIF"])
def test_grey_images_have_three_equal_channels_or_one(kind: str) -> None:
    data = encoded(GREYS, kind)
    np.testing.assert_array_equal(decode(data), np.stack([GREYS] * 3))
    np.testing.assert_array_equal(decode(data, grey=True), GREYS[None])


def test_colours_become_grey_by_their_brightness() -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    # ITU-R 601: 0.299 red, 0.587 green, 0.114 blue.
    assert decode(encoded(colours), grey=True).tolist() == [[[76, 150, 29, 255]]]


def test_transparency_is_laid_over_white() -> None:
    pixels = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 200, 128]]], np.uint8)
    # 128 of 255 parts of the colour, 127 of white.
    assert decode(encoded(pixels))[:, 0].T.tolist() == [[10, 20, 30], [255, 255, 255], [127, 127, 227]]
    grey = Image.new("LA", (2, 1))
    grey.putdata([(9, 255), (9, 0)])
    assert decode(encoded(grey), grey=True).tolist() == [[[9, 255]]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_of_sixteen_bits_the_upper_eight_are_used(kind: str) -> None:
    data = encoded(Image.fromarray(np.array([[0, 255, 256, 65535]], np.uint16)), kind)
    np.testing.assert_array_equal(decode(data, grey=True), [[[0, 0, 1, 255]]])
    np.testing.assert_array_equal(decode(data), [[[0, 0, 1, 255]]] * 3)


KINDS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


@pytest.mark.parametrize("kind", KINDS)
def test_half_an_image_is_refused(kind: str, tmp_path: Path) -> None:
    data = encoded(RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8), kind)
    found = grow(tmp_path, *(f"{kind}/{i}.png" for kind in "ab" for i in range(5)))
    put(tmp_path, {"a/0.png": data[: len(data) // 2]})
    with pytest.raises(UserError, match=r"/a/0.png` cannot be read as an image \("):
        tree(found, split_seed=0)


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(UserError, match=r"which is missing; run `pip install 'fedmate\[images\]'`"):
        tree([tmp_path])


def grow(root: Path, *names: str) -> list[Path]:
    """Write an image for each name, which holds its number, and return the folders."""
    for number, name in enumerate(names):
        put(root, {name: flat(number)})
    return sorted({(root / name).parent for name in names})


def tree(found: list[Path], **options: Any) -> Arrays:
    return read_images(found, {"a": "one", "b": "two"}, **options)


def numbers(samples: Samples | None) -> list[int]:
    assert samples is not None
    return [int(image[0, 0, 0]) for image in samples.x]


def test_all_must_have_one_size(tmp_path: Path) -> None:
    found = grow(tmp_path, *(f"{kind}/{i}.png" for kind in "ab" for i in range(5)))
    (tmp_path / "a" / "2.png").write_bytes(encoded(PIXELS))
    with pytest.raises(UserError, match=r"`.*/a/2.png` has 6 x 4 pixels, `.*/a/0.png` 2 x 2; set `dataset.size`"):
        tree(found, skip_bad=True, split_seed=0)


def test_damaged_files_are_left_out_whatever_the_damage(tmp_path: Path) -> None:
    sound = [encoded(PIXELS, kind) for kind in KINDS]
    sound.append(encoded(Image.fromarray(PIXELS).convert("P"), "PNG", transparency=b"\x00\x80"))
    sound.append(encoded(Image.fromarray(PIXELS).convert("CMYK"), "TIFF"))
    for i in range(180):
        data = np.frombuffer(sound[i % len(sound)], np.uint8).copy()
        data[RNG.integers(len(data), size=1 + i % 8)] = RNG.integers(256)
        put(tmp_path, {f"{'ab'[i % 2]}/{i:03}.png": data.tobytes()})
    arrays = tree([tmp_path / "a", tmp_path / "b"], size=8, skip_bad=True, split_seed=0)
    assert arrays.train.x.shape[1:] == (3, 8, 8)
    assert "Left out as unreadable" in arrays.notes[0]


def test_unreadable_files_are_named_or_left_out(tmp_path: Path) -> None:
    found = grow(tmp_path, *(f"{part}/{kind}/{i}.png" for part in ("train", "test") for kind in "ab" for i in range(3)))
    for i in range(4):
        put(tmp_path, {f"train/a/bad{i}.png": b""})
    with pytest.raises(UserError, match=r"^`.*/train/a/bad0.png` cannot be read as an image \(none of .*; repair or"):
        tree(found)
    arrays = tree(found, skip_bad=True)
    (note,) = arrays.notes
    assert numbers(arrays.train) == list(range(6))
    assert note.startswith("Left out as unreadable: 4 of 16 images (`")
    assert note.endswith("/bad2.png` and 1 more).")


def numbered(root: Path) -> Path:
    """Write two classes with an official split, and what does not belong to them."""
    names = ("train/cat/b", "train/cat/a", "train/dog/a", "test/cat/a", "test/dog/a", "val/emu/a", "stray")
    grow(root, *(f"{name}.png" for name in names))
    return root


def test_an_official_split_is_kept_and_what_lies_beside_it_left(tmp_path: Path) -> None:
    arrays = Folder(path=str(numbered(tmp_path / "own")), split_seed=1).load(tmp_path)
    assert arrays.class_names == ("cat", "dog")
    assert (numbers(arrays.train), arrays.train.y.tolist()) == ([1, 0, 2], [0, 0, 1])
    assert numbers(arrays.test) == [3, 4]
    assert arrays.normalisation == Normalisation((127.5,), (127.5,))


def test_a_drawn_split_is_a_fifth_of_each_class_and_follows_the_seed(tmp_path: Path) -> None:
    own = tmp_path / "own"
    grow(own, *(f"{'ab'[i % 3 == 0]}/{i:02}.png" for i in range(60)))
    drawn = []
    for seed in (0, 0, 1):
        arrays = Folder(path=str(own), split_seed=seed).load(tmp_path)
        assert arrays.test is not None
        assert sorted(numbers(arrays.train) + numbers(arrays.test)) == list(range(60))
        assert np.bincount(arrays.test.y).tolist() == [8, 4]
        drawn.append(numbers(arrays.test))
    assert drawn[0] == drawn[1] != drawn[2]
    # The cache notices what changes below the folder, also behind a link.
    (tmp_path / "way").symlink_to(own, target_is_directory=True)
    put(own, {"a/99.png": flat(99)})
    for path in (own, tmp_path / "way"):
        assert len(Folder(path=str(path)).load(tmp_path).train.y) == 49


def test_a_path_that_is_not_set_says_which_option_to_set(tmp_path: Path) -> None:
    for dataset, kind in ((Folder(), "folder of your images"), (Npz(), "file of your arrays")):
        with pytest.raises(UserError, match=rf"`dataset\.path` is not set; set it to the {kind}, such as by `--set"):
            dataset.find(tmp_path)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "`dataset.path` is `{root}`, which is no folder; name the folder of your images."),
    "one class": (lambda root: list(map(shutil.rmtree, root.glob("*/cat"))), "has less than two folders of"),
    "a test class too many": (lambda root: (root / "test/emu").mkdir(), "has no training image of the class `emu`"),
    "an empty class": (lambda root: (root / "train/dog/a.png").unlink(), "has no training image of the class `dog`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_folders_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    change, words = WRONG[case]
    change(numbered(tmp_path / "own"))
    with pytest.raises(UserError) as caught:
        Folder(path=str(tmp_path / "own")).load(tmp_path)
    assert words.replace("{root}", str(tmp_path / "own")) in str(caught.value)
