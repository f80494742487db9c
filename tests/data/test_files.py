"""The cache of data sets that lie in files: used while it is right, made again whenever it is not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from fedmate import storage
from fedmate.core import Augmentation, Limits, option
from fedmate.data import files
from fedmate.data.dataset import Arrays, Normalisation, Samples, content_digest
from fedmate.data.files import Content, ImageDataset, check_labels, first_complete, missing, sign
from fedmate.data.paths import user_folder
from fedmate.errors import UserError

READ: list[str] = []
"""A word for every time that a source was read."""


@dataclass(frozen=True, kw_only=True)
class Toy(ImageDataset):
    """Reads a text file of digits, each of which makes an image."""

    shift: int = option(0, "added to all pixels", Limits(at_least=0))
    words: bool = option(False, "whether there are notes, clients and no test split")

    reading: ClassVar[tuple[str, ...]] = ("shift", "words")

    def find(self, folder: Path) -> list[Path]:
        return [folder / "toy.txt"]

    def read(self, found: Sequence[Path]) -> Content:
        READ.append(found[0].name)
        y = np.array([int(digit) for digit in found[0].read_text()], dtype=np.int64)
        x = (np.arange(len(y) * 12, dtype=np.uint8) + self.shift).reshape(-1, 2, 2, 3)
        # As readers do: a view in another order than the bytes lie in.
        samples = Samples(x.transpose(0, 3, 1, 2), y)
        if self.words:
            return Content(samples, None, ("nought", "één"), y + 5, ("A note.", "Another."))
        return Content(samples, Samples(samples.x[:2], y[:2]), tuple("0123456789"))

    def normalisation(self, content: Content) -> Normalisation:
        return Normalisation((float(len(content.class_names)),), (2.0,))


class Floats(Toy):
    """Has numbers of other widths, the widest last by name."""

    kind: ClassVar[str] = "f4"

    def read(self, found: Sequence[Path]) -> Content:
        content = super().read(found)
        x: NDArray[Any] = content.train.x[:, 0, 0, :1].astype(self.kind)
        return content._replace(train=Samples(x, content.train.y), test=None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "caches"))
    place = tmp_path / "data"
    place.mkdir()
    (place / "toy.txt").write_text("0123456789")
    READ.clear()
    yield place
    READ.clear()


def caches(folder: Path) -> list[Path]:
    return sorted((folder / "cached").glob("*"))


def same(one: Arrays, other: Arrays) -> bool:
    return (
        content_digest(one) == content_digest(other) == one.digest == other.digest
        and one.class_names == other.class_names
        and one.normalisation == other.normalisation
        and one.notes == other.notes
        and (one.clients is None) == (other.clients is None)
    )


# -------------------- it is used


@pytest.mark.parametrize("words", [False, True])
def test_the_second_time_nothing_is_read(words: bool, folder: Path) -> None:
    first, second = (Toy(words=words).load(folder) for _ in range(2))
    assert READ == ["toy.txt"]
    assert same(first, second)
    for arrays in (first, second):
        assert arrays.train.x.shape == (10, 3, 2, 2)
        assert isinstance(arrays.train.x, np.memmap)
        assert arrays.train.x[1].ravel().tolist() == [12, 15, 18, 21, 13, 16, 19, 22, 14, 17, 20, 23]
        assert arrays.train.y.tolist() == list(range(10))
        assert arrays.train.y.dtype == np.int64
        assert (arrays.test is None) == words
        assert arrays.class_names == (("nought", "één") if words else tuple("0123456789"))
        assert arrays.normalisation == Normalisation((2.0 if words else 10.0,), (2.0,))
        assert arrays.notes == (("A note.", "Another.") if words else ())
        assert arrays.clients is None or arrays.clients.tolist() == list(range(5, 15))


def test_the_digest_is_the_same_with_and_without_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = Toy(words=True).load(folder)

    def fail(path: Path, parts: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(storage, "replace_by_parts", fail)
    for cache in caches(folder):
        cache.unlink()
    bare = Toy(words=True).load(folder)
    assert not isinstance(bare.train.x, np.memmap)
    assert caches(folder) == []
    assert same(cached, bare)
    plain = Toy(words=True).read([folder / "toy.txt"])
    assert content_digest(Arrays(plain.train, plain.test, plain.class_names, clients=plain.clients)) == cached.digest


@pytest.mark.parametrize("kind", ["u1", "i8", "f4", "f8"])
def test_numbers_of_every_width_come_back(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Floats, "kind", kind)
    first, second = (Floats(words=True).load(folder) for _ in range(2))
    assert same(first, second)
    assert second.train.x.dtype == np.dtype(kind)
    assert second.train.x.flags.aligned
    assert second.train.x.ravel().tolist() == list(range(0, 120, 12))


def test_torch_takes_it_and_nobody_can_change_it(folder: Path) -> None:
    arrays = Toy().load(folder)
    (before,) = (cache.read_bytes() for cache in caches(folder))
    # Warnings are errors: torch warns of memory that cannot be written to.
    torch.from_numpy(arrays.train.x)[:] = 0
    assert [cache.read_bytes() for cache in caches(folder)] == [before]
    assert Toy().load(folder).train.x.any()


def test_it_is_a_file_that_others_can_read(folder: Path) -> None:
    Toy(words=True).load(folder)
    (cache,) = caches(folder)
    assert cache.name.startswith("toy-")
    with safe_open(cache, framework="numpy") as content:
        assert set(content.keys()) == {"train_x", "train_y", "clients"}
        assert content.get_tensor("train_x").shape == (10, 3, 2, 2)
        assert json.loads(content.metadata()["fedmate"])["class_names"] == ["nought", "één"]


def test_numbers_lie_where_they_may(folder: Path) -> None:
    (folder / "toy.txt").write_text("012")
    Toy(words=True).load(folder)
    (whole,) = (cache.read_bytes() for cache in caches(folder))
    length = int.from_bytes(whole[:8], "little")
    entries = json.loads(whole[8 : 8 + length])
    assert length % 8 == 0
    assert {name: entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__"} == {
        "clients": [0, 24],
        "train_y": [24, 48],
        "train_x": [48, 84],
    }
    assert len(whole) == 8 + length + 84


def test_more_samples_than_are_written_at_once_come_back(folder: Path) -> None:
    (folder / "toy.txt").write_text("01" * 1234)
    first, second = (Toy().load(folder) for _ in range(2))
    assert same(first, second)
    assert len(READ) == 1
    assert second.train.y.tolist() == [0, 1] * 1234


# -------------------- it belongs to certain files and options


def test_a_changed_source_is_read_again(folder: Path) -> None:
    source = folder / "toy.txt"
    first = Toy().load(folder)
    source.write_text("01234567890123456789")
    assert len(Toy().load(folder).train.y) == 20
    # The same length, another time.
    source.write_text("98765432109876543210")
    os.utime(source, ns=(0, 10**18))
    third = Toy().load(folder)
    assert third.train.y[0] == 9
    assert len(READ) == 3
    assert first.digest != third.digest
    assert len(caches(folder)) == 1


def test_options_that_change_what_is_read_have_caches_of_their_own(folder: Path) -> None:
    for _ in range(2):
        assert Toy(shift=0).load(folder).train.x[0, 0, 0, 0] == 0
        assert Toy(shift=7).load(folder).train.x[0, 0, 0, 0] == 7
    assert len(READ) == len(caches(folder)) == 2


def test_options_that_do_not_share_one(folder: Path) -> None:
    Toy(crop=1).load(folder)
    Toy(crop=2, flip=True).load(folder)
    assert len(READ) == len(caches(folder)) == 1
    assert Toy(crop=2, flip=True).augmentation == Augmentation(2, True)
    assert Toy().augmentation == Augmentation()


def test_another_class_or_another_place_has_one_of_its_own(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "toy.txt").write_text("01")
    os.utime(other / "toy.txt", ns=(0, 0))
    (folder / "toy.txt").write_text("10")
    os.utime(folder / "toy.txt", ns=(0, 0))
    assert Toy().load(folder).train.y.tolist() == [1, 0]
    (other / "cached").symlink_to(folder / "cached")
    assert Toy().load(other).train.y.tolist() == [0, 1]
    Floats().load(folder)
    assert len(READ) == len(caches(folder)) == 3


def test_an_older_format_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Toy().load(folder)
    monkeypatch.setattr(files, "FORMAT", files.FORMAT + 1)
    Toy().load(folder)
    assert len(READ) == 2


# -------------------- it is made again when it is damaged


def test_a_cache_cut_anywhere_is_made_again(folder: Path) -> None:
    first = Toy().load(folder)
    (cache,) = caches(folder)
    whole = cache.read_bytes()
    for cut in (0, 5, 8, 100, len(whole) // 2, len(whole) - 1):
        cache.unlink()
        cache.write_bytes(whole[:cut])
        assert same(Toy().load(folder), first)
        assert cache.read_bytes() == whole
    assert len(READ) == 7


def test_a_changed_byte_anywhere_is_noticed(folder: Path) -> None:
    first = Toy(words=True).load(folder)
    (cache,) = caches(folder)
    whole = cache.read_bytes()
    for place in range(0, len(whole), 7):
        cache.unlink()
        cache.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        assert same(Toy(words=True).load(folder), first), place


@pytest.mark.parametrize("content", [b"[]", b"null", b"{}", b'{"__metadata__": 3}', b"[" * 10_000, b"\xff" * 100])
def test_something_else_in_its_place_is_replaced(content: bytes, folder: Path) -> None:
    first = Toy().load(folder)
    (cache,) = caches(folder)
    whole = cache.read_bytes()
    cache.unlink()
    cache.write_bytes(len(content).to_bytes(8, "little") + content)
    assert same(Toy().load(folder), first)
    assert cache.read_bytes() == whole


# -------------------- where it lies


def test_a_folder_that_cannot_be_written_to_leaves_it_to_the_users_own(folder: Path) -> None:
    # A file in its place: it works for those who may write anywhere, too.
    (folder / "cached").touch()
    first, second = Toy().load(folder), Toy().load(folder)
    assert READ == ["toy.txt"]
    assert same(first, second)
    assert [path.parent for path in caches(user_folder())] == [user_folder() / "cached"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="may write anywhere")
def test_a_folder_without_the_right_to_write_does_so_too(folder: Path) -> None:
    folder.chmod(0o555)
    try:
        Toy().load(folder)
        Toy().load(folder)
    finally:
        folder.chmod(0o755)
    assert READ == ["toy.txt"]
    assert len(caches(user_folder())) == 1


def test_where_nothing_can_be_written_it_still_works(folder: Path) -> None:
    for place in (folder, user_folder()):
        place.mkdir(parents=True, exist_ok=True)
        (place / "cached").touch()
    assert same(Toy().load(folder), Toy().load(folder))
    assert len(READ) == 2


def test_no_part_is_left_behind_when_writing_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(storage, "flush", fail)
    assert len(Toy().load(folder).train.y) == 10
    assert caches(folder) == caches(user_folder()) == []


def test_a_source_that_cannot_be_read_leaves_no_cache(folder: Path) -> None:
    (folder / "toy.txt").write_text("12x")
    with pytest.raises(ValueError, match="x"):
        Toy().load(folder)
    assert caches(folder) == []


# -------------------- what readers share


def test_a_signature_is_of_names_sizes_and_times(tmp_path: Path) -> None:
    one, other = tmp_path / "a" / "b", tmp_path / "c"
    one.parent.mkdir()
    one.write_text("1")
    other.write_text("1")
    for path in (one, other):
        os.utime(path, ns=(0, 0))
    found = {sign([one]), sign([other]), sign([one, other]), sign([other, one]), sign([tmp_path])}
    assert len(found) == 5
    assert sign([one]) == sign([one])
    before = sign([tmp_path]), sign([tmp_path / "a"])
    os.utime(one, ns=(0, 1))
    after = sign([tmp_path]), sign([tmp_path / "a"])
    assert before[0] != after[0]
    assert before[1] != after[1]
    one.write_text("12")
    os.utime(one, ns=(0, 1))
    assert sign([tmp_path]) != after[0]
    with pytest.raises(UserError, match="does not exist"):
        sign([tmp_path / "d"])


def test_the_first_whole_set_of_files_is_found(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in "abcde"}
    for name in "abd":
        paths[name].touch()

    def find(*sets: str) -> list[str] | None:
        found = first_complete("toy", [[paths[name] for name in names] for names in sets])
        return None if found is None else [path.name for path in found]

    assert find("ab", "d") == ["a", "b"]
    assert find("ac", "d", "ab") == ["d"]
    assert find("c", "ce") is None
    with pytest.raises(UserError) as caught:
        find("c", "ace")
    assert str(caught.value) == (
        f"`dataset.name` is `toy`, but `a` has no `c` beside it in `{tmp_path}`; get it with `fedmate data toy`, or "
        "complete the files."
    )


def test_what_is_missing_is_said_with_the_command(tmp_path: Path) -> None:
    message = str(missing("toy", tmp_path, ["toy.npz", "toy/"]))
    assert (
        f"`dataset.name` is `toy`, but `{tmp_path}` has no `toy.npz` or `toy/`; get it with `fedmate data toy`"
        in message
    )
    assert "`--data-dir`" in message
    assert "`FEDMATE_DATA`" in message


@pytest.mark.parametrize("kind", ["u1", "i2", "i8", "f4", "?"])
def test_labels_become_whole_numbers_from_zero(kind: str) -> None:
    found = check_labels("y", np.array([1, 0, 1], kind), 2)
    assert found.tolist() == [1, 0, 1]
    assert found.dtype == np.int64
    assert check_labels("y", np.array([1, 2], "u1"), 2, first=1).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("labels", "first", "message"),
    [
        (
            np.array([0, 1, 2]),
            0,
            "`y` is 2 at [2], but labels are whole numbers from 0 to 1; mend it, or fetch it again.",
        ),
        (np.array([0, -1]), 0, "`y` is -1 at [1]"),
        (np.array([0.0, 0.5]), 0, "`y` is 0.5 at [1]"),
        (np.array([np.nan]), 0, "`y` is nan at [0]"),
        (np.array([0, 1], np.uint8), 1, "`y` is 0 at [0], but labels are whole numbers from 1 to 2"),
        (np.array(["a"]), 0, "`y` holds <U1 values"),
    ],
)
def test_labels_outside_their_range_are_refused(labels: NDArray[Any], first: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_labels("y", labels, 2, first)
    assert message in str(caught.value)
