"""EMNIST upright and with the right characters, out of idx files, the official archive or a prepared file."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmate.core import Augmentation
from fedmate.data.dataset import Arrays
from fedmate.data.emnist import SPLITS, Emnist
from fedmate.errors import UserError

CLASSES = {"byclass": 62, "balanced": 47, "letters": 26}
FIRST = {"byclass": 0, "balanced": 0, "letters": 1}
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def dataset(split: str, **options: Any) -> Emnist:
    return Emnist(split=split, **options)  # type: ignore[arg-type]


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = RNG.integers(0, 256, (70, 28, 28), dtype=np.uint8)
"""As they look: rows from top to bottom."""


def labels(split: str) -> NDArray[np.uint8]:
    """Return a label for each image, every class among the first."""
    return (np.arange(70) % CLASSES[split]).astype(np.uint8)


def files(split: str, *, train: int = 64) -> dict[str, bytes]:
    """Return the official files: images lie on their side, and some labels count from 1."""
    stored, numbers = IMAGES.swapaxes(1, 2), labels(split) + FIRST[split]
    return {
        f"emnist-{split}-train-images-idx3-ubyte": idx(stored[:train]),
        f"emnist-{split}-train-labels-idx1-ubyte": idx(numbers[:train]),
        f"emnist-{split}-test-images-idx3-ubyte": idx(stored[train:]),
        f"emnist-{split}-test-labels-idx1-ubyte": idx(numbers[train:]),
    }


def write(split: str, place: Path, *, packed: bool) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files(split).items():
        (place / f"{name}.gz" if packed else place / name).write_bytes(gzip.compress(content) if packed else content)
    return place


def write_archive(path: Path, *splits: str, leave_out: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for split in splits:
            for name, content in reversed(files(split).items()):
                if name != leave_out:
                    archive.writestr(f"gzip/{name}.gz", gzip.compress(content))
    return path


def prepare(path: Path, split: str, first: int = 0) -> Path:
    numbers = labels(split) + first
    np.savez(path, train_x=IMAGES[:64], train_y=numbers[:64], test_x=IMAGES[64:], test_y=numbers[64:])
    return path


def check(arrays: Arrays, split: str) -> None:
    assert arrays.test is not None
    np.testing.assert_array_equal(arrays.train.x, IMAGES[:64, None])
    np.testing.assert_array_equal(arrays.test.x, IMAGES[64:, None])
    assert arrays.train.y.tolist() == labels(split)[:64].tolist()
    assert arrays.test.y.tolist() == labels(split)[64:].tolist()
    assert arrays.train.y.dtype == arrays.test.y.dtype == np.int64
    assert len(arrays.class_names) == CLASSES[split]
    np.testing.assert_allclose(np.array(arrays.normalisation) / 255, [[0.1307], [0.3081]])


def refused(split: str, folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        dataset(split).load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -------------------- what is read


@pytest.mark.parametrize("split", CLASSES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["emnist", "EMNIST/raw"])
def test_idx_files_are_read_upright(split: str, packed: bool, place: str, tmp_path: Path) -> None:
    write(split, tmp_path / place, packed=packed)
    check(dataset(split).load(tmp_path), split)
    # And again, out of the cache.
    check(dataset(split).load(tmp_path), split)


@pytest.mark.parametrize("split", CLASSES)
@pytest.mark.parametrize("place", ["emnist/gzip.zip", "EMNIST/raw/gzip.zip", "gzip.zip"])
def test_the_official_archive_is_read(split: str, place: str, tmp_path: Path) -> None:
    write_archive(tmp_path / place, *CLASSES)
    check(dataset(split).load(tmp_path), split)


@pytest.mark.parametrize("split", CLASSES)
def test_a_prepared_file_is_upright_and_counts_from_zero(split: str, tmp_path: Path) -> None:
    prepare(tmp_path / "emnist.npz", split)
    check(dataset(split).load(tmp_path), split)


def test_every_split_has_a_cache_of_its_own(tmp_path: Path) -> None:
    write_archive(tmp_path / "gzip.zip", *CLASSES)
    for _ in range(2):
        for split in CLASSES:
            check(dataset(split).load(tmp_path), split)
    assert len(list((tmp_path / "cached").iterdir())) == 3


def test_files_that_name_their_split_come_before_a_prepared_file(tmp_path: Path) -> None:
    prepare(tmp_path / "emnist.npz", "balanced")
    write_archive(tmp_path / "gzip.zip", "byclass")
    check(dataset("byclass").load(tmp_path), "byclass")
    assert [path.name for path in dataset("byclass").find(tmp_path)] == ["gzip.zip"]
    write("byclass", tmp_path / "emnist", packed=True)
    assert len(dataset("byclass").find(tmp_path)) == 4


# -------------------- what belongs to it


def test_classes_are_characters_in_the_official_order() -> None:
    assert Emnist().split == "byclass"
    assert "".join(Emnist().class_names) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    assert "".join(dataset("balanced").class_names) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
    assert "".join(dataset("letters").class_names) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert {split: len("".join(groups)) for split, groups in SPLITS.items()} == CLASSES


def test_digits_capitals_and_small_letters_dominate_together() -> None:
    assert [len(group) for group in dataset("byclass").groups] == [10, 26, 26]
    assert [len(group) for group in dataset("balanced").groups] == [10, 26, 11]
    assert dataset("letters").groups == ()
    for split in ("byclass", "balanced"):
        groups = dataset(split).groups
        assert [label for group in groups for label in group] == list(range(CLASSES[split]))
        assert all(isinstance(label, int) for group in groups for label in group)


@pytest.mark.parametrize(("split", "examples"), [("byclass", 1000), ("balanced", 320), ("letters", 1000)])
def test_an_experiment_starts_from_the_papers_setting(split: str, examples: int) -> None:
    assert dataset(split).augmentation == Augmentation()
    assert dataset(split).defaults == {
        "partition": {"name": "share", "examples": examples},
        "model": {"name": "emnist_cnn"},
        "training": {"learning_rate": 0.01},
    }


# -------------------- what is refused


@pytest.mark.parametrize("split", CLASSES)
def test_a_missing_data_set_says_what_would_do_and_how_to_get_it(split: str, tmp_path: Path) -> None:
    message = refused(split, tmp_path)
    assert f"`{tmp_path}` has no `emnist/gzip.zip`" in message
    assert f"`emnist/emnist-{split}-train-images-idx3-ubyte.gz`" in message
    assert "`emnist.npz`" in message
    assert "`fedmate data emnist`" in message


def test_files_of_another_split_are_not_enough(tmp_path: Path) -> None:
    write("letters", tmp_path / "emnist", packed=True)
    assert "has no `emnist/gzip.zip`" in refused("byclass", tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    place = write("letters", tmp_path / "emnist", packed=True)
    (place / "emnist-letters-test-labels-idx1-ubyte.gz").unlink()
    message = refused("letters", tmp_path)
    assert f"has no `emnist-letters-test-labels-idx1-ubyte.gz` beside it in `{place}`" in message
    assert "`fedmate data emnist`" in message


def test_an_archive_without_the_split_is_said(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "gzip.zip", "letters", leave_out="emnist-letters-test-images-idx3-ubyte")
    assert f"`{path}` is damaged or not complete (it has no `gzip/emnist-letters-test-images" in refused(
        "letters", tmp_path
    )
    assert "(it has no `gzip/emnist-byclass-train-images" in refused("byclass", tmp_path)


def test_a_truncated_archive_is_said(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "gzip.zip", "letters")
    whole = path.read_bytes()
    for cut in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert f"`{path}` is damaged or not complete" in refused("letters", tmp_path)


def test_a_truncated_member_is_said_by_its_name(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "gzip.zip", "letters", leave_out="emnist-letters-test-images-idx3-ubyte")
    name = "gzip/emnist-letters-test-images-idx3-ubyte.gz"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, gzip.compress(files("letters")[name[5:-3]])[:-20])
    assert f"`{path}/{name}` is damaged or not complete" in refused("letters", tmp_path)


@pytest.mark.parametrize("split", CLASSES)
def test_a_label_that_names_no_class_is_said(split: str, tmp_path: Path) -> None:
    place = write(split, tmp_path / "emnist", packed=False)
    first, last = FIRST[split], FIRST[split] + CLASSES[split] - 1
    (place / f"emnist-{split}-test-labels-idx1-ubyte").write_bytes(
        idx(np.array([first, last, last + 1, *[last] * 3], np.uint8))
    )
    message = refused(split, tmp_path)
    assert f"labels-idx1-ubyte` is {last + 1} at [2], but labels are whole numbers from {first} to {last}" in message


def test_images_of_another_size_are_said(tmp_path: Path) -> None:
    place = write("letters", tmp_path / "emnist", packed=False)
    (place / "emnist-letters-test-images-idx3-ubyte").write_bytes(idx(IMAGES[64:, :, 1:]))
    assert "has the shape [6, 28, 27], expected [images, 28, 28]" in refused("letters", tmp_path)


@pytest.mark.parametrize("split", CLASSES)
@pytest.mark.parametrize("held", CLASSES)
def test_a_prepared_file_of_another_split_is_refused_with_the_one_that_fits(
    split: str, held: str, tmp_path: Path
) -> None:
    path = prepare(tmp_path / "emnist.npz", held)
    if split == held:
        dataset(split).load(tmp_path)
        return
    message = refused(split, tmp_path)
    assert f"`dataset.split` is `{split}` with {CLASSES[split]} classes, but `{path}` has {CLASSES[held]}" in message
    assert f"set `dataset.split` to `{held}`" in message


def test_a_prepared_file_that_fits_no_split_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path / "emnist.npz", "letters", first=1)
    message = refused("letters", tmp_path)
    assert "has 27; no split has as many" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_x": IMAGES[:64, 1:]}, "[train_x]` has images of shape [27, 28], expected [1, 28, 28]"),
        ({"test_y": labels("byclass")[64:].astype(float) + 0.5}, "[test_y]` is 2.5 at [0]"),
        ({"test_y": labels("byclass")[64:].astype(int) * 0 - 1}, "[test_y]` is -1 at [0]"),
        ({"train_y": labels("byclass")[:3]}, "has 64 samples in `train_x` for `train_y` of shape [3]"),
        ({"train_y": np.array([], np.uint8)}, "has 64 samples in `train_x` for `train_y` of shape [0]"),
    ],
)
def test_a_prepared_file_that_does_not_fit_is_said(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    numbers = labels("byclass")
    given = {"train_x": IMAGES[:64], "train_y": numbers[:64], "test_x": IMAGES[64:], "test_y": numbers[:6] + 56}
    np.savez(tmp_path / "emnist.npz", **{**given, **change})
    assert message in refused("byclass", tmp_path)


def test_a_prepared_file_without_labels_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "emnist.npz", train_x=IMAGES)
    assert "has no `train_y`, but `train_x`" in refused("byclass", tmp_path)
