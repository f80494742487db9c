"""Animals-10 is the same from folders, Kaggle's archive and a prepared file, split by a seed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.trees import put, same

from fedmate.data import DATASETS
from fedmate.data.animal10 import CLASSES, Animal10
from fedmate.data.dataset import Samples, hold_back
from fedmate.data.files import Content
from fedmate.errors import UserError
from fedmate.models import MODELS

ITALIAN = ["cane", "cavallo", "elefante", "farfalla", "gallina", "gatto", "mucca", "pecora", "ragno", "scoiattolo"]
ENGLISH = ["dog", "horse", "elephant", "butterfly", "chicken", "cat", "cow", "sheep", "spider", "squirrel"]
NUMBERS = {f"{kind}/OIP-{k}.jpeg": 20 * j + 2 * k for j, kind in enumerate(ITALIAN) for k in range(10)}
"""Ten images of each class, each with its number."""


def picture(number: int, form: str = "JPEG") -> bytes:
    """Return an image of one colour, of a size of its own."""
    buffer = io.BytesIO()
    Image.new("RGB", (40 + number, 300 - number), (number, number, number)).save(buffer, form, quality=100)
    return buffer.getvalue()


FILES = {name: picture(number) for name, number in NUMBERS.items()}


def pack(path: Path, content: dict[str, bytes], prefix: str = "raw-img/") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("translate.py", "translate = {}")
        archive.writestr("__MACOSX/raw-img/cane/._OIP-1.jpeg", b"junk")
        for name in reversed(content):
            archive.writestr(prefix + name, content[name])
    return path


def read(folder: Path, seed: int = 0, skip_bad: bool = False) -> Content:
    dataset = Animal10(split_seed=seed, skip_bad=skip_bad)
    return dataset.read(dataset.find(folder))


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        read(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def numbers(samples: Samples | None) -> list[int]:
    assert samples is not None
    return [int(image[0, 16, 16]) for image in samples.x]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Content:
    return read(put(tmp_path_factory.mktemp("animals") / "animal10", FILES).parent)


# -------------------- what is read


def test_classes_are_the_sorted_folders_by_their_english_names(expected: Content) -> None:
    assert expected.class_names == tuple(ENGLISH)
    assert list(CLASSES) == ITALIAN == sorted(ITALIAN)
    for part in (expected.train, expected.test):
        assert part is not None
        assert part.y.tolist() == [number // 20 for number in numbers(part)]
    assert expected.train.x.shape == (80, 3, 32, 32)
    assert expected.notes == ()


def test_the_split_is_a_fifth_of_each_class_disjoint_and_complete(expected: Content) -> None:
    assert expected.test is not None
    assert np.bincount(expected.test.y).tolist() == [2] * 10
    assert sorted(numbers(expected.train) + numbers(expected.test)) == sorted(NUMBERS.values())


@pytest.mark.parametrize("place", ["animals10", "animals-10", "animal10/raw-img", "animals10/raw-img", "raw-img", "."])
def test_the_folder_has_several_names(tmp_path: Path, expected: Content, place: str) -> None:
    put(tmp_path / place, FILES)
    put(tmp_path, {"translate.py": b"", "readme.txt": b""})
    same(read(tmp_path), expected)


@pytest.mark.parametrize("name", ["archive.zip", "animals10.zip"])
@pytest.mark.parametrize("prefix", ["raw-img/", "", "animals10/raw-img/"])
def test_the_archive_gives_the_same(tmp_path: Path, expected: Content, name: str, prefix: str) -> None:
    pack(tmp_path / name, FILES, prefix)
    same(read(tmp_path), expected)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_prepared_file_is_split_already(tmp_path: Path, expected: Content) -> None:
    assert expected.test is not None
    (train_x, train_y), (test_x, test_y) = expected.train, expected.test
    np.savez(tmp_path / "animal10.npz", train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
    for seed in (0, 1):
        same(read(tmp_path, seed), expected)
    with pytest.raises(UserError, match=r"animal10.npz.* has images of shape \[3, 32, 32\], expected \[3, 16, 16\]"):
        Animal10(size=16).read([tmp_path / "animal10.npz"])


def test_the_seed_draws_the_split(tmp_path: Path, expected: Content) -> None:
    pack(tmp_path / "animals10.zip", FILES)
    assert numbers(read(tmp_path, 0).test) == numbers(expected.test)
    assert numbers(read(tmp_path, 1).test) != numbers(expected.test)


def test_the_size_may_be_chosen(tmp_path: Path) -> None:
    put(tmp_path / "animal10", FILES)
    arrays = Animal10(size=8).load(tmp_path)
    assert arrays.train.x.shape == (80, 3, 8, 8)
    assert Animal10(size=9).load(tmp_path).train.x.shape == (80, 3, 9, 9)
    with pytest.raises(UserError, match=r"`dataset\.size` is 0"):
        Animal10(size=0)


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "BMP"])
def test_misleading_suffixes_do_not_matter(tmp_path: Path, expected: Content, form: str) -> None:
    put(tmp_path / "animal10", FILES | {"cane/OIP-0.jpeg": picture(0, form)})
    content = read(tmp_path)
    assert numbers(content.train) == numbers(expected.train)
    assert numbers(content.test) == numbers(expected.test)


# -------------------- what is refused


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "animal10" / "raw-img").mkdir(parents=True)
    assert refused(tmp_path).startswith(
        f"`dataset.name` is `animal10`, but `{tmp_path}` has no `animal10` or `animals10.zip` or `archive.zip` or "
        "`animal10.npz`; get it with `fedmate data animal10`"
    )


def test_a_folder_that_lacks_a_class(tmp_path: Path) -> None:
    put(tmp_path / "animal10", {name: data for name, data in FILES.items() if "ragno" not in name})
    assert refused(tmp_path) == (
        f"`{tmp_path / 'animal10'}` has no folder `ragno`; see whether the data set is complete."
    )
    (tmp_path / "animal10" / "ragno").mkdir()
    assert refused(tmp_path) == (
        f"`{tmp_path / 'animal10'}` has no image of the class `spider` to train on; see whether it is complete."
    )


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    path = pack(tmp_path / "archive.zip", {"other/a.png": picture(1, "PNG")})
    assert refused(tmp_path) == f"`{path}` has no image of the class `dog` to train on; see whether it is complete."


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_truncated_archive_is_refused(tmp_path: Path, kept: float) -> None:
    path = pack(tmp_path / "animals10.zip", FILES)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    assert str(path) in refused(tmp_path)


def test_a_bad_image_is_named_or_left_out(tmp_path: Path) -> None:
    path = pack(tmp_path / "animals10.zip", FILES | {"gatto/OIP-3.jpeg": FILES["gatto/OIP-3.jpeg"][:300]})
    assert refused(tmp_path).startswith(f"`{path}/raw-img/gatto/OIP-3.jpeg` cannot be read as an image (")
    content = read(tmp_path, skip_bad=True)
    assert sorted(numbers(content.train) + numbers(content.test)) == sorted({*NUMBERS.values()} - {106})
    assert content.notes == (f"Left out as unreadable: 1 of 100 images (`{path}/raw-img/gatto/OIP-3.jpeg`).",)


# -------------------- as a data set


def test_what_an_experiment_starts_from(tmp_path: Path) -> None:
    assert DATASETS["animal10"] is Animal10
    dataset = Animal10()
    assert dataset.defaults == {
        "partition": {"name": "share", "share": 20.0, "examples": 600},
        "model": {"name": "animals_cnn"},
        "training": {"learning_rate": 0.01},
    }
    assert dataset.defaults["model"]["name"] in MODELS.names()
    assert tuple(dataset.augmentation) == (0, True)
    put(tmp_path / "animal10", FILES)
    normalisation = dataset.load(tmp_path).normalisation
    np.testing.assert_allclose(normalisation.mean, 255 * np.array([0.485, 0.456, 0.406]), rtol=1e-12)
    np.testing.assert_allclose(normalisation.std, 255 * np.array([0.229, 0.224, 0.225]), rtol=1e-12)


def test_the_whole_data_set_needs_no_note() -> None:
    """4,863 dogs, 2,623 horses, ...: 26,179 in all, of which a fifth is drawn."""
    counts = [4863, 2623, 1446, 2112, 3098, 1668, 1866, 1820, 4821, 1862]
    labels = np.repeat(np.arange(10), counts)
    for seed in range(3):
        held = hold_back(labels, np.random.default_rng(seed))
        assert (len(labels) - len(held), len(held)) == Animal10().published
