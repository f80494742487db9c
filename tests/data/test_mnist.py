"""MNIST and Fashion-MNIST out of their idx files or a prepared one."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmate.core import Augmentation
from fedmate.data.dataset import Arrays
from fedmate.data.mnist import FashionMnist, Mnist
from fedmate.errors import UserError

RNG = np.random.default_rng(0)
TRAIN, TEST = (RNG.integers(0, 256, (size, 28, 28), dtype=np.uint8) for size in (7, 4))
TRAIN_LABELS, TEST_LABELS = np.array([0, 9, 3, 3, 1, 2, 8], np.uint8), np.array([5, 0, 9, 1], np.uint8)

KINDS: dict[str, tuple[type[Mnist] | type[FashionMnist], str]] = {
    "mnist": (Mnist, "MNIST/raw"),
    "fashion_mnist": (FashionMnist, "FashionMNIST/raw"),
}


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


FILES = {
    "train-images-idx3-ubyte": idx(TRAIN),
    "train-labels-idx1-ubyte": idx(TRAIN_LABELS),
    "t10k-images-idx3-ubyte": idx(TEST),
    "t10k-labels-idx1-ubyte": idx(TEST_LABELS),
}


def write(place: Path, *, packed: bool) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (place / f"{name}.gz" if packed else place / name).write_bytes(gzip.compress(content) if packed else content)
    return place


def load(name: str, folder: Path) -> Arrays:
    return KINDS[name][0]().load(folder)


def refused(name: str, folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(name, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check(arrays: Arrays) -> None:
    assert arrays.test is not None
    np.testing.assert_array_equal(arrays.train.x, TRAIN[:, None])
    np.testing.assert_array_equal(arrays.test.x, TEST[:, None])
    assert arrays.train.y.tolist() == TRAIN_LABELS.tolist()
    assert arrays.test.y.tolist() == TEST_LABELS.tolist()
    assert arrays.train.y.dtype == arrays.test.y.dtype == np.int64
    np.testing.assert_allclose(np.array(arrays.normalisation) / 255, [[0.1307], [0.3081]])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_from_either_folder(name: str, packed: bool, tmp_path: Path) -> None:
    for number, place in enumerate((name, KINDS[name][1])):
        folder = tmp_path / str(number)
        write(folder / place, packed=packed)
        check(load(name, folder))


@pytest.mark.parametrize("name", KINDS)
def test_some_files_may_be_unpacked(name: str, tmp_path: Path) -> None:
    place = write(tmp_path / name, packed=True)
    (place / "t10k-labels-idx1-ubyte.gz").unlink()
    (place / "t10k-labels-idx1-ubyte").write_bytes(FILES["t10k-labels-idx1-ubyte"])
    check(load(name, tmp_path))


@pytest.mark.parametrize("name", KINDS)
def test_a_prepared_file_is_read_first(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, packed=True)
    np.savez(tmp_path / f"{name}.npz", train_x=TRAIN[:2], train_y=TRAIN_LABELS[:2], test_x=TEST, test_y=TEST_LABELS)
    arrays = load(name, tmp_path)
    np.testing.assert_array_equal(arrays.train.x, TRAIN[:2, None])


def test_files_of_one_are_not_taken_for_the_other(tmp_path: Path) -> None:
    write(tmp_path / "mnist", packed=True)
    assert "fedmate data fashion_mnist" in refused("fashion_mnist", tmp_path)


def test_classes_have_their_names(tmp_path: Path) -> None:
    write(tmp_path / "mnist", packed=True)
    write(tmp_path / "fashion_mnist", packed=True)
    assert load("mnist", tmp_path).class_names == tuple("0123456789")
    names = load("fashion_mnist", tmp_path).class_names
    assert len(names) == 10
    assert (names[0], names[6], names[9]) == ("T-shirt/top", "Shirt", "Ankle boot")


@pytest.mark.parametrize("name", KINDS)
def test_an_experiment_starts_from_the_papers_setting_for_such_images(name: str) -> None:
    dataset = KINDS[name][0]()
    assert dataset.augmentation == Augmentation()
    assert dataset.defaults == {
        "partition": {"name": "share", "examples": 600},
        "model": {"name": "emnist_cnn"},
        "training": {"learning_rate": 0.01},
    }


# -------------------- what is refused


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_data_set_says_what_would_do_and_how_to_get_it(name: str, tmp_path: Path) -> None:
    message = refused(name, tmp_path)
    assert f"`{tmp_path}` has no `{name}.npz` or `{name}/train-images-idx3-ubyte.gz`" in message
    assert f"`{KINDS[name][1]}/train-images-idx3-ubyte.gz`" in message
    assert f"`fedmate data {name}`" in message


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    place = write(tmp_path / name, packed=True)
    (place / "t10k-images-idx3-ubyte.gz").unlink()
    message = refused(name, tmp_path)
    assert f"has no `t10k-images-idx3-ubyte.gz` beside it in `{place}`" in message
    assert f"`fedmate data {name}`" in message


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("file", FILES)
def test_a_truncated_file_is_said(file: str, packed: bool, tmp_path: Path) -> None:
    place = write(tmp_path / "mnist", packed=packed)
    path = place / f"{file}.gz" if packed else place / file
    path.write_bytes(path.read_bytes()[:-1])
    message = refused("mnist", tmp_path)
    assert f"`{path}` is damaged or not complete" in message
    assert "fetch it again" in message


def test_images_of_another_size_are_said(tmp_path: Path) -> None:
    place = write(tmp_path / "mnist", packed=False)
    (place / "train-images-idx3-ubyte").write_bytes(idx(TRAIN[:, 1:]))
    assert "has the shape [7, 27, 28], expected [images, 28, 28]" in refused("mnist", tmp_path)


def test_a_label_that_names_no_class_is_said(tmp_path: Path) -> None:
    place = write(tmp_path / "mnist", packed=False)
    (place / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([1, 2, 10, 3], np.uint8)))
    message = refused("mnist", tmp_path)
    assert "t10k-labels-idx1-ubyte` is 10 at [2], but labels are whole numbers from 0 to 9" in message


def test_images_and_labels_that_are_exchanged_are_said(tmp_path: Path) -> None:
    place = write(tmp_path / "mnist", packed=False)
    images, labels = (place / f"train-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    images.write_bytes(FILES[labels.name])
    assert "has the shape [7], expected [images, 28, 28]" in refused("mnist", tmp_path)


def test_a_prepared_file_of_another_size_is_said(tmp_path: Path) -> None:
    images = np.zeros((2, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "mnist.npz", train_x=images, train_y=TEST_LABELS[:2], test_x=images, test_y=TEST_LABELS[:2])
    assert "mnist.npz[train_x]` has images of shape [32, 32, 3], expected [1, 28, 28]" in refused("mnist", tmp_path)
