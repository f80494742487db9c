"""The named data sets: the same samples out of every published form, and one sentence for files that are wrong."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.official import Small, idx, pack, pixels, put

from fedmate.core import Augmentation
from fedmate.data import DATASETS, Arrays
from fedmate.data.files import PublishedDataset
from fedmate.data.mnist import Emnist
from fedmate.errors import UserError

SMALL = {
    **{name: Small(name) for name in ("cifar10", "cifar100", "mnist", "fashion_mnist", "cinic10", "animal10")},
    **{split: Small("emnist", split=split) for split in ("byclass", "balanced", "letters")},
}
Writer = Callable[[Path, Small], object]


def folder_of(name: str) -> Writer:
    return lambda folder, small: put(folder / name, small.files)


def archive_of(name: str, top: str = "") -> Writer:
    return lambda folder, small: pack(folder / name, {f"{top}{key}": data for key, data in small.files.items()})


def unpacked_idx(name: str) -> Writer:
    return lambda folder, small: put(
        folder / name, {key.removesuffix(".gz"): gzip.decompress(data) for key, data in small.files.items()}
    )


def prepared(folder: Path, small: Small) -> None:
    small.prepare(folder / f"{small.name}.npz")


FORMS: dict[str, list[Writer]] = {
    "cifar10": [folder_of("."), archive_of("cifar-10-binary.tar.gz"), prepared],
    "cifar100": [folder_of("."), archive_of("cifar-100-binary.tar.gz"), prepared],
    "mnist": [folder_of("mnist"), unpacked_idx("MNIST/raw"), prepared],
    "fashion_mnist": [folder_of("fashion_mnist"), unpacked_idx("FashionMNIST/raw"), prepared],
    "emnist": [folder_of("emnist"), unpacked_idx("EMNIST/raw"), archive_of("gzip.zip", "gzip/")],
    "cinic10": [folder_of("CINIC-10"), folder_of("."), archive_of("CINIC-10.tar.gz", "./"), prepared],
    "animal10": [folder_of("animal10"), folder_of("."), archive_of("archive.zip"), archive_of("animals10.zip", "a/")],
}
CASES = [(key, i) for key, small in SMALL.items() for i in range(len(FORMS[small.name]))]


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def load(small: Small, folder: Path, **options: Any) -> Arrays:
    arrays: Arrays = DATASETS[small.name](**{**small.options, **options}).load(folder)
    return arrays


def refused(small: Small, folder: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(small, folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def images(arrays: Arrays) -> list[tuple[int, bytes]]:
    """Return all images with their labels, in an order of their own."""
    assert arrays.test is not None
    parts = (arrays.train, arrays.test)
    return sorted((int(y), x.tobytes()) for part in parts for x, y in zip(part.x, part.y, strict=True))


@pytest.mark.parametrize(("key", "form"), CASES)
def test_every_form_gives_the_same_samples_twice(key: str, form: int, tmp_path: Path) -> None:
    small = SMALL[key]
    FORMS[small.name][form](tmp_path, small)
    # Read, then out of the cache.
    first, second = (load(small, tmp_path) for _ in range(2))
    assert first.digest == second.digest
    for arrays in (first, second):
        assert arrays.test is not None
        if small.name == "animal10":
            # Its split is drawn: a fifth of each class.
            everything = Arrays(arrays.train._replace(x=small.train[0], y=small.train[1]), arrays.test, ())
            both = everything._replace(test=arrays.test._replace(x=small.test[0], y=small.test[1]))
            assert images(arrays) == images(both)
            assert np.bincount(arrays.test.y).tolist() == [1] * 10
        else:
            for part, (x, y) in ((arrays.train, small.train), (arrays.test, small.test)):
                np.testing.assert_array_equal(part.x, x)
                assert part.y.tolist() == y.tolist()
        assert arrays.train.x.dtype == np.uint8
        assert arrays.train.y.dtype == arrays.test.y.dtype == np.int64
        (note,) = arrays.notes
        assert note.startswith("the data set is published with ")


GREY = ((0.1307,), (0.3081,), (0, False))
COLOUR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), (4, True))
FINE = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), (4, True))
CINIC = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835), (4, True))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), (0, True))


@pytest.mark.parametrize(
    ("key", "names", "mean", "std", "augmentation"),
    [
        ("cifar10", (10, "airplane", "truck"), *COLOUR),
        ("cifar100", (100, "apple", "worm"), *FINE),
        ("cinic10", (10, "airplane", "truck"), *CINIC),
        ("animal10", (10, "dog", "squirrel"), *IMAGENET),
        ("fashion_mnist", (10, "T-shirt/top", "Ankle boot"), *GREY),
        ("byclass", (62, "0", "z"), *GREY),
        ("balanced", (47, "0", "t"), *GREY),
        ("letters", (26, "A", "Z"), *GREY),
    ],
)
def test_classes_constants_and_augmentation(
    key: str, names: tuple[int, str, str], mean: Any, std: Any, augmentation: Any
) -> None:
    dataset = DATASETS[SMALL[key].name](**SMALL[key].options)
    assert isinstance(dataset, PublishedDataset)
    found = dataset.class_names
    assert (len(set(found)), found[0], found[-1]) == names
    np.testing.assert_allclose(dataset.normalisation, np.array([mean, std]) * 255)
    assert dataset.augmentation == Augmentation(*augmentation)


def test_groups_of_dominant_classes() -> None:
    assert DATASETS["cifar100"]().groups[3] == tuple(range(30, 40))
    assert [len(group) for group in Emnist().groups] == [10, 26, 26]
    assert [group[0] for group in Emnist(split="balanced").groups] == [0, 10, 36]
    assert Emnist(split="letters").groups == DATASETS["cifar10"]().groups == ()


def test_a_missing_data_set_says_how_to_get_it(tmp_path: Path) -> None:
    """CIFAR's archives for Python hold pickles, and are not looked at."""
    put(tmp_path, {"cifar-10-python.tar.gz": b"x", "cifar-10-batches-py/data_batch_1": b"x"})
    assert refused(SMALL["cifar10"], tmp_path) == (
        f"`dataset.name` is `cifar10`, but `{tmp_path}` has no `cifar-10-batches-bin` or `cifar-10-binary.tar.gz` or "
        "`cifar10.npz`; get it with `fedmate data cifar10`, or name the folder that has it with `--data-dir` or "
        "`FEDMATE_DATA`."
    )


@pytest.mark.parametrize("key", ["cifar10", "byclass", "cinic10", "animal10"])
def test_a_damaged_archive_is_refused(key: str, tmp_path: Path) -> None:
    small = SMALL[key]
    write = FORMS[small.name][{"cifar10": 1, "byclass": 2, "cinic10": 2, "animal10": 2}[key]]
    write(tmp_path, small)
    (path,) = [path for path in tmp_path.rglob("*") if path.suffix in (".gz", ".zip")]
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-30], b"", b"<html>moved</html>"):
        path.write_bytes(content)
        assert f"`{path}` is damaged or not complete (" in refused(small, tmp_path)
    # A changed byte in the middle: bytes are compressed, or have a checksum.
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0x55]) + whole[middle + 1 :])
    refused(small, tmp_path)


BATCH = "cifar-10-batches-bin/data_batch_2.bin"
LABELS, IMAGES = "mnist/train-labels-idx1-ubyte", "mnist/train-images-idx3-ubyte"
X, Y = pixels(12, 28, 28), np.arange(12) % 10
WRONG: list[tuple[str, str, bytes, str]] = [
    ("cifar10", BATCH, b"0" * 3074, "it has 3,074 bytes, no multiple of 3,073"),
    ("cifar10", BATCH, b"\x0a" + bytes(3072), "is 10 at [0], but labels are whole numbers from 0 to 9"),
    ("mnist", LABELS, b"<html>", "begins with the bytes `3c 68 74 6d`, so it is no idx file of bytes"),
    ("mnist", IMAGES, idx(X)[:-1], "it announces 9,408 bytes and has 9,407"),
    ("mnist", IMAGES, idx(X[:, 1:]), "has the shape [12, 27, 28]"),
    ("mnist", LABELS, idx(Y[1:]), "[11], expected [images, 28, 28] and [images]"),
]


@pytest.mark.parametrize(("name", "file", "content", "words"), WRONG)
def test_wrong_files_are_refused(name: str, file: str, content: bytes, words: str, tmp_path: Path) -> None:
    small = SMALL[name]
    (unpacked_idx("mnist") if name == "mnist" else folder_of("."))(tmp_path, small)
    sentence = refused(small, put(tmp_path, {file: content}))
    assert words in sentence
    assert str(tmp_path) in sentence
