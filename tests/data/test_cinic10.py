"""CINIC-10 is the same from folders, the official archive and a prepared file; its validation folder is not read."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.data.trees import put, same

from fedmate.data import DATASETS
from fedmate.data.cinic10 import CLASSES, Cinic10
from fedmate.data.dataset import Samples
from fedmate.data.files import Content
from fedmate.errors import UserError
from fedmate.models import MODELS

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NUMBERS = {
    f"{part}/{kind}/{name}.png": 100 * i + 10 * j + k
    for i, part in enumerate(("train", "test"))
    for j, kind in enumerate(CIFAR10)
    for k, name in enumerate(("cifar10-train-9", "n02007558_7", "n02007558_8")[: 3 - i])
}
"""Three images of each class to train on, two to test on, each with its number."""

NOTE = "the data set is published with 90,000 + 90,000 samples, here are 30 + 20."


def picture(number: int, side: int = 32) -> bytes:
    buffer = io.BytesIO()
    pixels: NDArray[np.uint8] = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    pixels[0, 0] = number
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def files() -> dict[str, bytes]:
    """Return the content of a small CINIC-10, with what else lies there."""
    found = {name: picture(number) for name, number in NUMBERS.items()}
    others = {"README.md": b"hello", "imagenet-contributors.csv": b"1", "train/cat/._x.png": b"junk"}
    return found | {f"valid/{kind}/a.png": b"not even an image" for kind in CIFAR10} | others


def pack(path: Path, content: dict[str, bytes], prefix: str = "./") -> Path:
    """Write an archive whose order is not that of names."""
    with tarfile.open(path, "w:gz") as archive:
        for name in sorted(content, key=lambda name: name[::-1]):
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content[name])
            archive.addfile(member, io.BytesIO(content[name]))
    return path


def read(folder: Path, skip_bad: bool = False) -> Content:
    dataset = Cinic10(skip_bad=skip_bad)
    return dataset.read(dataset.find(folder))


def refused(folder: Path, skip_bad: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        read(folder, skip_bad)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def numbers(samples: Samples | None) -> list[int]:
    assert samples is not None
    return [int(image[0, 0, 0]) for image in samples.x]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Content:
    return read(put(tmp_path_factory.mktemp("cinic"), files()))


# -------------------- what is read


def test_train_and_test_in_the_order_of_cifar10(expected: Content) -> None:
    assert expected.class_names == CLASSES == CIFAR10
    assert numbers(expected.train) == [10 * j + k for j in range(10) for k in range(3)]
    assert expected.train.y.tolist() == [j for j in range(10) for _ in range(3)]
    assert numbers(expected.test) == [100 + 10 * j + k for j in range(10) for k in range(2)]
    assert expected.test is not None
    assert expected.test.y.tolist() == [j for j in range(10) for _ in range(2)]
    assert expected.train.x.shape == (30, 3, 32, 32)
    assert expected.train.x.dtype == np.uint8
    assert expected.notes == ()


def test_pixels_are_exact(expected: Content) -> None:
    for number, image in zip(numbers(expected.train), expected.train.x, strict=True):
        with Image.open(io.BytesIO(picture(number))) as original:
            np.testing.assert_array_equal(image, np.asarray(original).transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["CINIC-10", "cinic10", "cinic-10", "."])
def test_the_folder_has_several_names(tmp_path: Path, expected: Content, name: str) -> None:
    put(tmp_path / name, files())
    same(read(tmp_path), expected)


@pytest.mark.parametrize("prefix", ["./", "", "CINIC-10/"])
def test_the_archive_gives_the_same(tmp_path: Path, expected: Content, prefix: str) -> None:
    pack(tmp_path / "CINIC-10.tar.gz", files(), prefix)
    same(read(tmp_path), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["CINIC-10.tar.gz"]


def test_a_prepared_file_gives_the_same(tmp_path: Path, expected: Content) -> None:
    assert expected.test is not None
    (train_x, train_y), (test_x, test_y) = expected.train, expected.test
    np.savez(tmp_path / "cinic10.npz", train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
    same(read(tmp_path), expected)


def test_the_full_number_needs_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {name: data for name, data in files().items() if "_8" not in name})
    monkeypatch.setattr("fedmate.data.cinic10.IMAGES", 20)
    assert read(tmp_path).notes == ()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "CMYK"])
def test_odd_images_become_colours(tmp_path: Path, mode: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), (255, 255, 255)).convert(mode).save(buffer, "TIFF" if mode == "CMYK" else "PNG")
    put(tmp_path, files() | {"train/airplane/a.png": buffer.getvalue()})
    assert np.unique(read(tmp_path).train.x[0]).tolist() == [255]


# -------------------- what is refused


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "CINIC-10").mkdir()
    (tmp_path / "train" / "airplane").mkdir(parents=True)
    assert refused(tmp_path).startswith(
        f"`dataset.name` is `cinic10`, but `{tmp_path}` has no `CINIC-10` or `CINIC-10.tar.gz` or `cinic10.npz`; get it"
    )


def test_an_empty_folder_does_not_hide_the_archive(tmp_path: Path, expected: Content) -> None:
    (tmp_path / "CINIC-10").mkdir()
    pack(tmp_path / "CINIC-10.tar.gz", files())
    same(read(tmp_path), expected)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_folder_that_lacks_a_class(tmp_path: Path, part: str) -> None:
    put(tmp_path / "CINIC-10", {name: data for name, data in files().items() if f"{part}/frog" not in name})
    assert refused(tmp_path) == (
        f"`{tmp_path / 'CINIC-10' / part}` has no folder `frog`; see whether the data set is complete."
    )


def test_a_class_without_images(tmp_path: Path) -> None:
    put(tmp_path, {name: data for name, data in files().items() if "train/frog" not in name})
    (tmp_path / "train" / "frog").mkdir()
    assert refused(tmp_path) == (
        f"`{tmp_path}` has no image of the class `frog` to train on; see whether it is complete."
    )


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    path = pack(tmp_path / "CINIC-10.tar.gz", {"a.txt": b"1"})
    assert (
        refused(tmp_path) == f"`{path}` has no image of the class `airplane` to train on; see whether it is complete."
    )


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_truncated_archive_is_refused(tmp_path: Path, kept: float, skip_bad: bool) -> None:
    path = pack(tmp_path / "CINIC-10.tar.gz", files())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    assert str(path) in refused(tmp_path, skip_bad)


def test_a_bad_image_is_named_or_left_out(tmp_path: Path) -> None:
    bad = "train/bird/n02007558_7.png"
    path = pack(tmp_path / "CINIC-10.tar.gz", files() | {bad: picture(21)[:-50]})
    assert refused(tmp_path).startswith(f"`{path}/{bad}` cannot be read as an image (")
    content = read(tmp_path, skip_bad=True)
    assert numbers(content.train) == [10 * j + k for j in range(10) for k in range(3) if (j, k) != (2, 1)]
    assert content.notes == (f"Left out as unreadable: 1 of 50 images (`{path}/{bad}`).",)


def test_another_size_is_a_bad_image(tmp_path: Path) -> None:
    put(tmp_path, files() | {"test/cat/a.png": picture(1, side=33)})
    assert refused(tmp_path) == (
        f"`{tmp_path}/test/cat/a.png` cannot be read as an image (33 x 33 pixels instead of 32 x 32); mend or remove "
        "it, or set `dataset.skip_bad` to leave such files out."
    )
    assert len(numbers(read(tmp_path, skip_bad=True).test)) == 20


# -------------------- as a data set


def test_what_an_experiment_starts_from() -> None:
    assert DATASETS["cinic10"] is Cinic10
    dataset = Cinic10()
    assert dataset.defaults == {"partition": {"name": "share", "examples": 600}, "model": {"name": "cifar_cnn"}}
    assert dataset.defaults["model"]["name"] in MODELS.names()
    assert tuple(dataset.augmentation) == (4, True)
    assert tuple(Cinic10(crop=0, flip=False).augmentation) == (0, False)


def test_loading_normalises_and_keeps_the_folder_out_of_the_validation(tmp_path: Path, expected: Content) -> None:
    put(tmp_path / "CINIC-10", files())
    first = Cinic10().load(tmp_path)
    np.testing.assert_allclose(
        first.normalisation.mean, 255 * np.array([0.47889522, 0.47227842, 0.43047404]), rtol=1e-12
    )
    np.testing.assert_allclose(
        first.normalisation.std, 255 * np.array([0.24205776, 0.23828046, 0.25874835]), rtol=1e-12
    )
    np.testing.assert_array_equal(first.train.x, expected.train.x)
    assert first.notes == (NOTE,)
    assert Cinic10().load(tmp_path).digest == first.digest
    put(tmp_path / "CINIC-10", {"train/cat/new.png": picture(1)})
    assert len(Cinic10().load(tmp_path).train.y) == 31
