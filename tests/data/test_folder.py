"""A folder of images is read class by class, split as it says or by a seed, and every mishap is named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedmate.data import DATASETS
from fedmate.data.dataset import Arrays, Samples
from fedmate.data.files import Content
from fedmate.data.folder import Folder
from fedmate.data.images import SUFFIXES
from fedmate.data.partitions import PARTITIONS
from fedmate.errors import UserError
from fedmate.models import MODELS


def put(path: Path, number: int, side: int = 3) -> None:
    """Write an image that tells its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), (number, 255 - number, 7), np.uint8)).save(path)


def numbers(samples: Samples | None) -> list[int]:
    assert samples is not None
    return [int(image[0, 0, 0]) for image in samples.x]


def read(dataset: Folder) -> Content:
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


def test_a_fifth_of_each_class_is_drawn_for_the_test(pool: Path) -> None:
    content = read(Folder(path=str(pool)))
    assert content.test is not None
    assert content.class_names == ("cat", "dog")
    assert np.bincount(content.train.y).tolist() == [12, 8]
    assert np.bincount(content.test.y).tolist() == [3, 2]
    assert sorted(numbers(content.train) + numbers(content.test)) == [*range(15), *range(100, 110)]
    for part in (content.train, content.test):
        assert numbers(part) == sorted(numbers(part))
        assert [number >= 100 for number in numbers(part)] == part.y.astype(bool).tolist()
    assert content.notes == ()


def test_the_split_is_that_of_its_seed(pool: Path) -> None:
    drawn = [numbers(read(Folder(path=str(pool), split_seed=seed)).test) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


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


def test_a_class_may_be_called_train(pool: Path) -> None:
    (pool / "dog").rename(pool / "train")
    assert read(Folder(path=str(pool))).class_names == ("cat", "train")


def test_a_folder_called_test_is_read_like_any_other(pool: Path) -> None:
    shutil.move(pool, pool.parent / "test")
    content = read(Folder(path=str(pool.parent / "test")))
    assert [len(part.y) for part in (content.train, content.test) if part] == [20, 5]


def test_a_test_may_lack_a_class(parted: Path) -> None:
    shutil.rmtree(parted / "test" / "dog")
    content = read(Folder(path=str(parted)))
    assert content.class_names == ("cat", "dog")
    assert content.notes == ("There is no image to test on of `dog`.",)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_image_is_found_in_small_letters_and_capitals(pool: Path, suffix: str) -> None:
    put(pool / "cat" / f"50{suffix}", 50)
    put(pool / "cat" / f"51{suffix.upper()}", 51)
    content = read(Folder(path=str(pool), grey=True))
    assert content.test is not None
    assert len(content.train.y) + len(content.test.y) == 27


def test_other_and_hidden_files_are_passed_over(pool: Path) -> None:
    expected = read(Folder(path=str(pool)))
    for name in (
        "notes.txt",
        "cat/Thumbs.db",
        "cat/list.csv",
        "cat/.DS_Store",
        "cat/._00.png",
        "cat/.old/x.png",
        ".x/y.png",
    ):
        (pool / name).parent.mkdir(exist_ok=True)
        (pool / name).write_bytes(b"no image")
    (pool / "cat" / "link.png").symlink_to(pool / "gone.png")
    found = read(Folder(path=str(pool)))
    np.testing.assert_array_equal(found.train.x, expected.train.x)


def test_names_with_spaces_and_of_all_languages(tmp_path: Path) -> None:
    for kind in ("Große Katze", "小さい 犬", "👩\u200d🔬"):
        for number in range(5):
            put(tmp_path / kind / f"Bild {number} ü.png", number)
    content = read(Folder(path=str(tmp_path)))
    assert content.class_names == ("Große Katze", "小さい 犬", "👩\u200d🔬")
    assert content.notes == ()


def test_links_are_followed(pool: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(pool, other)
    shutil.rmtree(other / "dog")
    (other / "dog").symlink_to(pool / "dog", target_is_directory=True)
    (other / "cat" / "00.png").unlink()
    (other / "cat" / "00.png").symlink_to(pool / "cat" / "00.png")
    (tmp_path / "way").symlink_to(other, target_is_directory=True)
    expected = read(Folder(path=str(pool)))
    for path in (other, tmp_path / "way"):
        np.testing.assert_array_equal(read(Folder(path=str(path))).train.x, expected.train.x)


def test_a_link_in_a_circle_ends(pool: Path) -> None:
    (pool / "cat" / "back").symlink_to(pool, target_is_directory=True)
    assert len(read(Folder(path=str(pool))).train.y) == 20


def test_relative_paths_begin_where_one_is(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read(Folder(path=str(pool))).train.x
    for place, path in ((pool.parent, "pool"), (pool, "."), (pool / "cat", "..")):
        monkeypatch.chdir(place)
        np.testing.assert_array_equal(read(Folder(path=path)).train.x, expected)
    monkeypatch.setenv("HOME", str(pool.parent))
    np.testing.assert_array_equal(read(Folder(path="~/pool")).train.x, expected)


def test_grey_and_size(pool: Path) -> None:
    put(pool / "cat" / "large.png", 30, side=9)
    plain, grey = (read(Folder(path=str(pool), size=2, grey=grey)).train.x for grey in (False, True))
    assert plain.shape == (21, 3, 2, 2)
    assert grey.shape == (21, 1, 2, 2)
    luma = np.rint(plain.astype(float).transpose(0, 2, 3, 1) @ [0.299, 0.587, 0.114])
    np.testing.assert_allclose(grey[:, 0], luma, atol=1)


# -------------------- what is refused


def test_a_path_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert refused(Folder()) == (
        "`dataset.path` is empty; set it to the folder in which each class has a folder of images."
    )
    for path, what in (("gone", "does not exist"), ("file", "is not a folder")):
        assert refused(Folder(path=path)) == (
            f"`dataset.path` is `{path}`, which {what}; name the folder that has the folders of the classes."
        )
    assert refused(Folder(path="~nobody-of-this-name/x")).startswith("`dataset.path` is `~nobody-of-this-name/x`, but ")


def test_two_classes_are_needed(pool: Path) -> None:
    shutil.rmtree(pool / "cat")
    (pool / ".hidden").mkdir()
    advice = "; put images into a folder for each class, two at least."
    assert refused(Folder(path=str(pool))) == f"`{pool}` has `dog` as its only folder{advice}"
    assert refused(Folder(path=str(pool / "dog"))) == f"`{pool / 'dog'}` has no folders{advice}"


def test_a_split_needs_classes_on_both_sides(parted: Path) -> None:
    shutil.rmtree(parted / "test" / "dog")
    shutil.rmtree(parted / "test" / "cat")
    put(parted / "test" / "1.png", 1)
    assert refused(Folder(path=str(parted))).startswith(f"`{parted / 'test'}` has no folders; ")
    shutil.rmtree(parted / "train" / "dog")
    assert refused(Folder(path=str(parted))).startswith(f"`{parted / 'train'}` has `cat` as its only folder; ")


def test_a_class_of_the_test_must_be_one_of_training(parted: Path) -> None:
    put(parted / "test" / "emu" / "a.png", 1)
    assert refused(Folder(path=str(parted))) == (
        f"`{parted / 'test'}` has a folder `emu`, but `{parted / 'train'}` has none; give it one, too."
    )


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_empty_class_is_named(parted: Path, part: str) -> None:
    (parted / part / "dog" / "a.png").unlink()
    (parted / part / "dog" / ".a.png").write_bytes(b"")
    place = parted / part / "dog"
    assert refused(Folder(path=str(parted))) == (
        f"`{place}` has no image; put images of that class there, or remove it."
    )


def test_files_that_are_no_images_are_counted(pool: Path) -> None:
    (pool / "emu").mkdir()
    for name in ("a.txt", "b.npy"):
        (pool / "emu" / name).write_bytes(b"")
    assert refused(Folder(path=str(pool))) == (
        f"`{pool / 'emu'}` has 2 files, but no image ({' '.join(SUFFIXES)}); put images of that class there, or remove "
        "it."
    )


def test_half_a_split_is_not_taken_for_classes(parted: Path) -> None:
    shutil.rmtree(parted / "test")
    assert refused(Folder(path=str(parted))) == (
        f"`{parted / 'train'}` has images in further folders, such as `cat/a.png`; put images directly into the folder "
        "of their class, and these into `dataset.path`, or into `train` and `test` there."
    )


def test_too_few_images_for_a_test(tmp_path: Path) -> None:
    put(tmp_path / "a" / "1.png", 1)
    put(tmp_path / "b" / "1.png", 1)
    assert refused(Folder(path=str(tmp_path))) == f"`{tmp_path}` has 2 images, but none to test on; add more."


def test_an_image_of_another_size_is_named(pool: Path) -> None:
    put(pool / "dog" / "05 b.png", 1, side=4)
    for skip_bad in (False, True):
        assert refused(Folder(path=str(pool), skip_bad=skip_bad)) == (
            f"`{pool / 'dog' / '05 b.png'}` has 4 x 4 pixels, those before it have 3 x 3; set `dataset.size` to "
            "stretch all images to one size."
        )


def test_a_bad_image_is_named_or_left_out(pool: Path) -> None:
    whole = (pool / "cat" / "03.png").read_bytes()
    (pool / "cat" / "03.png").write_bytes(whole[: len(whole) // 2])
    (pool / "dog" / "04.png").write_bytes(b"")
    assert refused(Folder(path=str(pool))).startswith(f"`{pool / 'cat' / '03.png'}` cannot be read as an image (")
    content = read(Folder(path=str(pool), skip_bad=True))
    left = {*range(15), *range(100, 110)} - {3, 104}
    assert {*numbers(content.train), *numbers(content.test)} == left
    assert content.notes == (
        f"Left out as unreadable: 2 of 25 images (`{pool / 'cat' / '03.png'}`, `{pool / 'dog' / '04.png'}`).",
    )


def test_a_class_of_bad_images_only_is_named(pool: Path) -> None:
    for file in (pool / "dog").iterdir():
        file.write_bytes(b"bad")
    assert refused(Folder(path=str(pool), skip_bad=True)) == (
        f"`{pool}` has no image of the class `dog` to train on; see whether it is complete."
    )


@pytest.mark.parametrize("name", [b"caf\xe9", b"a\nb"])
def test_a_class_needs_a_name_that_is_text(pool: Path, name: bytes) -> None:
    try:
        (pool / os.fsdecode(name)).mkdir()
    except OSError:
        pytest.skip("this file system takes text only")
    assert refused(Folder(path=str(pool))).endswith("` names a class, but its name is not plain text; rename it.")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="may read everything")
def test_what_must_not_be_read_is_named(pool: Path) -> None:
    (pool / "cat" / "00.png").chmod(0)
    assert "cannot be read" in refused(Folder(path=str(pool)))


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 5000}, {"split_seed": -1}, {"crop": -1}])
def test_options_have_limits(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match=f"`dataset.{next(iter(options))}` is "):
        Folder(path="x", **options)  # type: ignore[arg-type]


# -------------------- as a data set


def load(pool: Path, data: Path, size: int | None = None) -> Arrays:
    return Folder(path=str(pool), size=size).load(data)


def test_loading_again_gives_the_same_out_of_the_cache(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(pool, tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "read", lambda *_: pytest.fail("read again"))
        second = load(pool, tmp_path / "data")
    assert first.digest == second.digest
    np.testing.assert_array_equal(first.train.x, second.train.x)
    assert second.class_names == ("cat", "dog")


def test_a_changed_folder_is_read_again(pool: Path, tmp_path: Path) -> None:
    def total() -> int:
        arrays = load(pool, tmp_path / "data")
        return len(arrays.train.y) + len(arrays.test.y if arrays.test else [])

    assert total() == 25
    put(pool / "cat" / "99.png", 99)
    assert total() == 26
    put(pool / "emu" / "1.png", 1)
    assert total() == 27
    assert load(pool, tmp_path / "data", size=2).train.x.shape[1:] == (3, 2, 2)


def test_a_changed_folder_behind_a_link_is_read_again(pool: Path, tmp_path: Path) -> None:
    (pool / "dog").rename(tmp_path / "dogs")
    (pool / "dog").symlink_to(tmp_path / "dogs", target_is_directory=True)
    before = load(pool, tmp_path / "data").digest
    put(tmp_path / "dogs" / "99.png", 99)
    assert load(pool, tmp_path / "data").digest != before


def test_bytes_go_from_minus_one_to_one(pool: Path, tmp_path: Path) -> None:
    normalisation = load(pool, tmp_path / "data").normalisation
    pixels: NDArray[np.float64] = (np.array([0, 127.5, 255]) - normalisation.mean[0]) / normalisation.std[0]
    np.testing.assert_allclose(pixels, [-1, 0, 1])


def test_the_defaults_exist() -> None:
    assert DATASETS["folder"] is Folder
    defaults = Folder(path="x").defaults
    assert defaults["partition"]["name"] in PARTITIONS.names()
    assert defaults["model"]["name"] in MODELS.names()
    assert tuple(Folder(path="x").augmentation) == (0, False)
