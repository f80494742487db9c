"""A folder of images is read class by class, split as it says or by a seed, and every mishap is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmate.data.dataset import Arrays, Normalisation, Samples
from fedmate.data.images import Folder
from fedmate.errors import UserError


def put(path: Path, number: int, side: int = 3) -> None:
    """Write an image that tells its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), (number, 255 - number, 7), np.uint8)).save(path)


def numbers(samples: Samples | None) -> list[int]:
    assert samples is not None
    return [int(image[0, 0, 0]) for image in samples.x]


def read(dataset: Folder) -> Arrays:
    return dataset.read(dataset.find(Path("nowhere")))


def refused(dataset: Folder) -> str:
    with pytest.raises(UserError) as caught:
        read(dataset)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Two classes, 15 cats numbered from 0 and 10 dogs numbered from 100, without a split."""
    for number in range(15):
        put(tmp_path / "pool" / "cat" / f"{number:02}.png", number)
    for number in range(10):
        put(tmp_path / "pool" / "dog" / f"{number:02}.png", 100 + number)
    return tmp_path / "pool"


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """Two classes with an official split."""
    for number, name in enumerate(
        ("train/cat/b", "train/cat/a", "train/dog/a", "test/cat/a", "test/dog/a", "val/emu/a")
    ):
        put(tmp_path / "parted" / f"{name}.png", number)
    return tmp_path / "parted"


# -------------------- what is read


def test_an_official_split_is_kept_and_what_lies_beside_it_left(parted: Path) -> None:
    put(parted / "stray.png", 9)
    for seed in (0, 1):
        content = read(Folder(path=str(parted), split_seed=seed))
        assert content.class_names == ("cat", "dog")
        assert numbers(content.train) == [1, 0, 2]
        assert content.train.y.tolist() == [0, 0, 1]
        assert numbers(content.test) == [3, 4]
        assert content.test is not None
        assert content.test.y.tolist() == [0, 1]


def test_a_folder_is_read_once_and_then_from_the_cache(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pool.parent / "caches"))
    first, second = (Folder(path=str(pool)).load(pool.parent) for _ in range(2))
    assert first.digest == second.digest
    assert first.normalisation == Normalisation((127.5,), (127.5,))
    # What changes below the folder is seen, also behind a link.
    (pool.parent / "way").symlink_to(pool, target_is_directory=True)
    put(pool / "cat" / "99.png", 99)
    for path in (pool, pool.parent / "way"):
        assert len(Folder(path=str(path)).load(pool.parent).train.y) == 21


# -------------------- what is refused


def remove(folder: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(folder / name)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "one class": (lambda root: remove(root, "train", "test"), "has 1 folders; put images into a folder for each class"),
    "no class to train": (lambda root: remove(root, "train/cat"), "train` has 1 folders; put images into a folder"),
    "no class to test": (lambda root: remove(root, "test/cat", "test/dog"), "test` has 0 folders; put images"),
    "a test class too many": (
        lambda root: put(root / "test" / "emu" / "a.png", 1),
        "test` has a folder `emu`, but `{root}/train` has none; add one.",
    ),
    "an empty class": (lambda root: (root / "train/dog/a.png").unlink(), "has no training image of the class `dog`"),
    "half a split": (lambda root: remove(root, "test"), "images in further folders, such as `cat/a.png`; put images"),
    "bad images only": (lambda root: (root / "train/dog/a.png").write_bytes(b""), "cannot be read as an image ("),
}


@pytest.mark.parametrize("case", WRONG)
def test_folders_that_do_not_fit_are_refused(case: str, parted: Path) -> None:
    change, words = WRONG[case]
    change(parted)
    assert words.replace("{root}", str(parted)) in refused(Folder(path=str(parted)))


@pytest.mark.parametrize("path", ["", "gone", "file"])
def test_a_path_that_names_no_folder_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert refused(Folder(path=path)) == (
        f"`dataset.path` is `{path}`, which is no folder; name the folder of your images."
    )
