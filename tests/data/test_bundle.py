"""Folders and archives look alike, nothing reaches the disk, and no archive is bad enough for a traceback."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from fedmate.data.bundle import LONGEST_NAME, open_bundle, read_file
from fedmate.errors import UserError

FILES = {"top.txt": b"1", "b/two.bin": b"22" * 700, "a/deep/three": b"", "b.txt": b"4444"}
"""Neither in order of names nor with the order of archives the same as that of folders."""


def everything(name: str) -> bool:
    return True


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_folder(path: Path) -> Path:
    for name, content in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def write_tar(path: Path, mode: str = "w", prefix: str = "") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in FILES.items():
            add(archive, prefix + name, content)
    return path


def write_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("b")
        for name, content in FILES.items():
            archive.writestr(name, content)
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "folder": write_folder,
    "x.tar": write_tar,
    "x.tar.gz": lambda path: write_tar(path, "w:gz"),
    "x.tgz": lambda path: write_tar(path, "w:gz", "./"),
    "x.zip": write_zip,
    "without_a_suffix": lambda path: write_tar(path, "w:gz"),
}


def refused(path: Path, largest: int = 10**6) -> str:
    with pytest.raises(UserError) as caught:
        list(open_bundle(path).items(everything, largest))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


# -------------------- what is read


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_gives_the_same_files(name: str, tmp_path: Path) -> None:
    found = list(open_bundle(WRITERS[name](tmp_path / name)).items(everything))
    assert dict(found) == FILES
    assert [name for name, _ in found] == (sorted(FILES) if name == "folder" else list(FILES))


@pytest.mark.parametrize("name", WRITERS)
def test_only_what_is_wanted_is_read(name: str, tmp_path: Path) -> None:
    bundle = open_bundle(WRITERS[name](tmp_path / name))
    # What is not wanted may be as large as it likes.
    assert list(bundle.items(lambda name: name.endswith(".txt"), 4)) == [
        (key, FILES[key]) for key in (("b.txt", "top.txt") if name == "folder" else ("top.txt", "b.txt"))
    ]
    assert list(bundle.items(lambda name: False)) == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_view_can_be_read_again_and_left_in_the_middle(name: str, tmp_path: Path) -> None:
    bundle = open_bundle(WRITERS[name](tmp_path / name))
    next(bundle.items(everything))
    assert dict(bundle.items(everything)) == FILES


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "C:\\out"])
def test_a_name_that_points_elsewhere_is_only_a_name(name: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with tarfile.open(inside / "x.tar", "w") as archive:
        add(archive, name, b"content")
    with zipfile.ZipFile(inside / "x.zip", "w") as packed:
        packed.writestr(name, b"content")
    for path in (inside / "x.tar", inside / "x.zip"):
        assert [content for _, content in open_bundle(path).items(everything)] == [b"content"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inside", "x.tar", "x.zip"]


def test_links_devices_and_sparse_files_in_a_tar_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
        for kind in (*kinds, tarfile.GNUTYPE_SPARSE):
            member = tarfile.TarInfo(f"kind{kind.decode()}")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        add(archive, "file", b"content")
    assert list(open_bundle(path).items(everything)) == [("file", b"content")]


def test_links_in_a_zip_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        plain = zipfile.ZipInfo("file")
        plain.external_attr = (stat.S_IFREG | 0o644) << 16
        archive.writestr(plain, b"content")
    assert list(open_bundle(path).items(everything)) == [("file", b"content")]


def test_a_folder_may_have_links_to_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    (folder / "link").symlink_to(folder / "b.txt")
    (folder / "broken").symlink_to(folder / "nowhere")
    assert dict(open_bundle(folder).items(everything)) == {**FILES, "link": b"4444"}


# -------------------- what is damaged


def test_a_tar_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar").read_bytes()
    path = tmp_path / "x.tar"
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    for cut in (*range(0, end, 256), end):
        path.write_bytes(whole[:cut])
        assert "fetch it again" in refused(path)
    path.write_bytes(whole[: end + 512])
    assert dict(open_bundle(path).items(everything)) == FILES


@pytest.mark.parametrize("name", ["x.tgz", "x.zip"])
def test_a_compressed_archive_cut_anywhere_is_refused(name: str, tmp_path: Path) -> None:
    whole = WRITERS[name](tmp_path / "whole").read_bytes()
    path = tmp_path / name
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert "fetch it again" in refused(path)


@pytest.mark.parametrize("name", ["x.tar", "x.tgz", "x.zip"])
def test_a_changed_byte_is_refused_or_makes_no_difference(name: str, tmp_path: Path) -> None:
    whole = WRITERS[name](tmp_path / "whole").read_bytes()
    path = tmp_path / name
    told = 0
    for place in range(0, len(whole), 1 if len(whole) < 2000 else 31):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            found = dict(open_bundle(path).items(everything))
        except UserError:
            told += 1
        else:
            # A plain tar has sums of its headers only; names in a zip are told by nothing.
            assert name != "x.tgz" or found == FILES
    assert told > 20


def test_a_damaged_header_in_the_middle_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar")
    whole = bytearray(path.read_bytes())
    whole[1024 + 150] ^= 1
    path.write_bytes(whole)
    assert "bad checksum" in refused(path)


def test_a_wrong_sum_at_the_end_of_the_stream_is_noticed(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tgz", "w:gz")
    whole = bytearray(path.read_bytes())
    whole[-8] ^= 1
    path.write_bytes(whole)
    assert "CRC" in refused(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\3\4", b"\x1f\x8b", b"<html>Not found</html>", b"\0" * 100])
def test_something_else_is_no_archive(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    assert "fetch it again" in refused(path)


def test_an_archive_without_members_is_empty(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w"):
        pass
    with zipfile.ZipFile(tmp_path / "x.zip", "w"):
        pass
    assert [list(open_bundle(tmp_path / name).items(everything)) for name in ("x.tar", "x.zip")] == [[], []]


def test_a_missing_archive_is_said(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "x.zip")


def test_a_zip_with_a_password_is_said(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip")
    whole = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        for start in (i for i in range(len(whole)) if whole[i : i + 4] == mark):
            whole[start + flags] |= 1
    path.write_bytes(whole)
    assert "is locked by a password; pack it again without one" in refused(path)


# -------------------- what would fill the memory


@pytest.mark.parametrize("name", WRITERS)
def test_a_member_above_the_limit_is_refused(name: str, tmp_path: Path) -> None:
    message = refused(WRITERS[name](tmp_path / name), 1399)
    assert "two.bin" in message
    assert "1,400 bytes" in message
    assert dict(open_bundle(tmp_path / name).items(everything, 1400)) == FILES


def test_a_tar_that_announces_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    member = tarfile.TarInfo("huge")
    member.size = 2**60
    path = tmp_path / "x.tgz"
    path.write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT)))
    with pytest.raises(UserError, match="`huge` of 1,152,921,504,606,846,976 bytes"):
        list(open_bundle(path).items(everything))


def test_a_zip_that_unpacks_to_more_than_it_announces_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(10**7))
    whole = path.read_bytes().replace((10**7).to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    path.write_bytes(whole)
    tracemalloc.start()
    try:
        assert "CRC" in refused(path)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_a_name_that_takes_the_memory_is_refused(tmp_path: Path) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        member = tarfile.TarInfo("long")
        member.type, member.size = kind, LONGEST_NAME + 1
        path = tmp_path / "x.tgz"
        path.write_bytes(gzip.compress(member.tobuf() + bytes(2 * LONGEST_NAME)))
        assert "impossible" in refused(path)


def test_a_negative_size_does_not_go_round_in_circles(tmp_path: Path) -> None:
    member = tarfile.TarInfo("back")
    member.size = -1024
    path = tmp_path / "x.tar"
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert "impossible" in refused(path)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "first", b"content")
        member = tarfile.TarInfo("back")
        # To the beginning: past this header, the two of its size, and the first file.
        member.pax_headers = {"size": str(-5 * 512)}
        archive.addfile(member)
    with pytest.raises(UserError, match=r"a size is negative|invalid offset"):
        list(islice(open_bundle(path).items(lambda name: name == "first"), 10))


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    with pytest.raises(UserError, match="`x` of 5 bytes"):
        read_file(path, 4)
    with pytest.raises(UserError, match="does not exist"):
        read_file(tmp_path / "y")
    with pytest.raises(UserError, match="cannot be read"):
        read_file(tmp_path)
