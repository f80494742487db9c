"""The cache of data sets in files: used while it fits, written again when it does not."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from fedmate.core import Limits, option
from fedmate.data.dataset import Arrays, Normalisation, Samples, content_digest
from fedmate.data.files import FileDataset
from fedmate.data.sources import read_members, user_folder

READ: list[str] = []
"""A word for every time that a source was read."""


@dataclass(frozen=True, kw_only=True)
class Toy(FileDataset):
    """Reads a text file of digits, each of which makes an image."""

    normalisation: ClassVar[Normalisation] = Normalisation((3.0,), (2.0,))
    reading: ClassVar[tuple[str, ...]] = ("shift", "words", "kind")

    shift: int = option(0, "added to all pixels", Limits(at_least=0))
    words: bool = option(False, "whether there are notes, clients and no test split")
    kind: str = option("u1", "type of the numbers")

    def find(self, folder: Path) -> list[Path]:
        return [folder / "toy.txt"]

    def read(self, found: Sequence[Path]) -> Arrays:
        READ.append(found[0].name)
        y = np.array([int(digit) for digit in found[0].read_text()], dtype=np.int64)
        x = (np.arange(len(y) * 12, dtype=np.uint8) + self.shift).reshape(-1, 2, 2, 3).astype(self.kind)
        # As readers do: a view in another order than the bytes lie in.
        samples = Samples(x.transpose(0, 3, 1, 2), y)
        if self.words:
            return Arrays(samples, None, ("nought", "één"), clients=y + 5, notes=("A note.",), client_names=("ü",))
        return Arrays(samples, Samples(samples.x[:2], y[:2]), tuple("0123456789"))


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
        and one[2:4] == other[2:4]
        and (one.notes, one.client_names) == (other.notes, other.client_names)
        and (one.clients is None) == (other.clients is None)
    )


@pytest.mark.parametrize("kind", ["u1", "i8", "f4", "f8"])
@pytest.mark.parametrize("words", [False, True])
def test_the_second_time_nothing_is_read(words: bool, kind: str, folder: Path) -> None:
    first, second = (Toy(words=words, kind=kind).load(folder) for _ in range(2))
    assert READ == ["toy.txt"]
    assert same(first, second)
    for arrays in (first, second):
        assert arrays.train.x.dtype == np.dtype(kind)
        assert arrays.train.x[1].ravel().tolist() == [12, 15, 18, 21, 13, 16, 19, 22, 14, 17, 20, 23]
        assert arrays.train.y.tolist() == list(range(10))
        assert arrays.train.y.dtype == np.int64
        assert (arrays.test is None) == words
        assert arrays.class_names == (("nought", "één") if words else tuple("0123456789"))
        assert arrays.normalisation == (Normalisation((3.0,), (2.0,)) if kind == "u1" else Normalisation())
        assert arrays.notes == (("A note.",) if words else ())
        assert arrays.clients is None or arrays.clients.tolist() == list(range(5, 15))


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


def test_a_cache_that_is_cut_or_changed_anywhere_is_made_again(folder: Path) -> None:
    first = Toy(words=True).load(folder)
    (cache,) = caches(folder)
    whole = cache.read_bytes()
    damaged = [whole[:cut] for cut in (0, 5, 8, 100, len(whole) - 1)]
    damaged += [whole[:i] + bytes([whole[i] ^ 0x41]) + whole[i + 1 :] for i in range(0, len(whole), 7)]
    for content in damaged:
        cache.unlink()
        cache.write_bytes(content)
        # Notes and names of clients are not part of the digest.
        assert content_digest(Toy(words=True).load(folder)) == first.digest


def test_a_folder_that_cannot_be_written_to_leaves_it_to_the_users_own(folder: Path) -> None:
    # A file in its place: it works for those who may write anywhere, too.
    (folder / "cached").touch()
    first, second = Toy().load(folder), Toy().load(folder)
    assert READ == ["toy.txt"]
    assert same(first, second)
    assert [path.parent for path in caches(user_folder())] == [user_folder() / "cached"]


def test_links_in_archives_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("link")
            link.type, link.linkname = kind, str(tmp_path / "secret")
            archive.addfile(link)
        archive.add(tmp_path / "secret", "file")
    assert list(read_members(tmp_path / "x.tar", lambda name: True)) == [("file", b"secret")]
