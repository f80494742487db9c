"""Files arrive whole or not at all, go on from where they stopped, and are never put in the place of a user's."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.site import SOURCE, Site, serving

from fedmate import storage
from fedmate.data import download
from fedmate.data.download import DownloadError, check, checksum, fetch
from fedmate.data.sources import File
from fedmate.errors import FedmateError, UserError

NAME = "archive.tar.gz"
PART = f"{NAME}.part"
LOCK = ".tiny.lock"
CONTENT = bytes(range(256)) * 1000
HALF = len(CONTENT) // 2


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with serving(monkeypatch) as site:
        yield site


class Reports(list[tuple[str, int, int | None]]):
    """What was told while files arrived."""

    def __call__(self, file: File, have: int, total: int | None) -> None:
        self.append((file.name, have, total))


def get(folder: Path, *files: File, name: str = "tiny") -> Reports:
    reports = Reports()
    fetch(name, files, folder, reports)
    return reports


def fail(folder: Path, *files: File) -> str:
    """Return the sentence about what went wrong on the way."""
    with pytest.raises(DownloadError) as caught:
        get(folder, *files)
    sentence = str(caught.value)
    assert re.fullmatch(r"`[^`]+` .+; .+`[^`]+` as `[^`]+`", sentence), sentence
    return sentence


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder but the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# -------------------- what works


def test_a_file_arrives_and_its_bytes_are_told(tmp_path: Path, site: Site) -> None:
    reports = get(tmp_path, site.file())
    assert contents(tmp_path) == {NAME: CONTENT}
    assert reports[0] == (NAME, 0, len(CONTENT))
    assert reports[-1] == (NAME, len(CONTENT), len(CONTENT))
    counts = [have for _, have, _ in reports]
    assert counts == sorted(counts)
    assert len(counts) > 2
    assert site.requests == [("whole", None, "fedmate")]


def test_several_files_go_into_folders_that_are_made(tmp_path: Path, site: Site) -> None:
    folder = tmp_path / "new" / "data"
    get(folder, site.file(name="digits/a.gz"), site.file(name="digits/b.gz"), site.file(name="c.gz"))
    assert contents(folder) == {"digits/a.gz": CONTENT, "digits/b.gz": CONTENT, "c.gz": CONTENT}


def test_a_file_without_a_length_arrives(tmp_path: Path, site: Site) -> None:
    reports = get(tmp_path, site.file("chunked"))
    assert contents(tmp_path) == {NAME: CONTENT}
    assert {total for _, _, total in reports} == {None}


def test_a_file_of_a_few_bytes_arrives(tmp_path: Path, site: Site) -> None:
    get(tmp_path, site.file("status/200", content=b"nothing"))
    assert contents(tmp_path) == {NAME: b"nothing"}


@pytest.mark.parametrize("way", ["moved/whole", "moved/moved/whole"])
def test_redirections_are_followed(tmp_path: Path, site: Site, way: str) -> None:
    get(tmp_path, site.file(way))
    assert contents(tmp_path) == {NAME: CONTENT}


def test_permissions_are_those_of_any_new_file(tmp_path: Path, site: Site) -> None:
    get(tmp_path, site.file())
    (tmp_path / "other").touch()
    assert (tmp_path / NAME).stat().st_mode == (tmp_path / "other").stat().st_mode


# -------------------- on from where it stopped


def test_a_dropped_connection_leaves_what_arrived_and_the_rest_follows(tmp_path: Path, site: Site) -> None:
    sentence = fail(tmp_path, site.file("dropped"))
    assert f"the connection ended after {HALF} of {len(CONTENT)} bytes" in sentence
    assert "try again, which goes on from where it stopped" in sentence
    assert contents(tmp_path) == {PART: CONTENT[:HALF]}
    reports = get(tmp_path, site.file())
    assert contents(tmp_path) == {NAME: CONTENT}
    assert reports[0] == (NAME, HALF, len(CONTENT))
    assert site.ranges() == [None, f"bytes={HALF}-"]


def test_a_redirected_request_asks_for_the_rest_as_well(tmp_path: Path, site: Site) -> None:
    (tmp_path / PART).write_bytes(CONTENT[:9])
    get(tmp_path, site.file("moved/whole"))
    assert contents(tmp_path) == {NAME: CONTENT}
    assert site.ranges() == ["bytes=9-"] * 2


def test_several_drops_come_to_an_end(tmp_path: Path, site: Site) -> None:
    for _ in range(5):
        fail(tmp_path, site.file("dropped"))
    assert len(contents(tmp_path)[PART]) == len(CONTENT) * 31 // 32
    get(tmp_path, site.file())
    assert contents(tmp_path) == {NAME: CONTENT}


@pytest.mark.parametrize("way", ["plain", "shifted"])
def test_a_server_that_does_not_send_the_rest_sends_all(tmp_path: Path, site: Site, way: str) -> None:
    (tmp_path / PART).write_bytes(b"x" * HALF)
    reports = get(tmp_path, site.file(way))
    assert contents(tmp_path) == {NAME: CONTENT}
    assert reports[0] == (NAME, 0, len(CONTENT))


def test_a_part_that_is_too_long_is_begun_again(tmp_path: Path, site: Site) -> None:
    (tmp_path / PART).write_bytes(CONTENT + b"more")
    get(tmp_path, site.file())
    assert contents(tmp_path) == {NAME: CONTENT}
    assert site.ranges() == [f"bytes={len(CONTENT) + 4}-", None]


def test_a_part_that_is_whole_takes_its_name_without_the_network(tmp_path: Path, site: Site) -> None:
    (tmp_path / PART).write_bytes(CONTENT)
    get(tmp_path, site.file())
    assert contents(tmp_path) == {NAME: CONTENT}
    assert site.requests == []


def test_an_answer_that_is_no_file_leaves_the_part(tmp_path: Path, site: Site) -> None:
    (tmp_path / PART).write_bytes(CONTENT[:HALF])
    for way in ("status/500", "status/404", "page", "ftp"):
        fail(tmp_path, site.file(way))
    assert contents(tmp_path) == {PART: CONTENT[:HALF]}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_who_is_stopped_goes_on_later(tmp_path: Path, site: Site, stop: type[BaseException]) -> None:
    def interrupt(file: File, have: int, total: int | None) -> None:
        if have:
            raise stop

    with pytest.raises(stop):
        fetch("tiny", [site.file()], tmp_path, interrupt)
    assert contents(tmp_path) == {PART: CONTENT[: download.AT_ONCE]}
    get(tmp_path, site.file())
    assert contents(tmp_path) == {NAME: CONTENT}
    assert site.ranges() == [None, f"bytes={download.AT_ONCE}-"]


FETCH = """
import sys
from pathlib import Path
from fedmate.data.download import fetch
from fedmate.data.sources import File
fetch("tiny", [File(sys.argv[1], "archive.tar.gz", 0, sys.argv[2], "")], Path(sys.argv[3]),
      lambda file, have, total: print(have, flush=True))
"""


def test_who_is_killed_goes_on_later(tmp_path: Path, site: Site) -> None:
    file = site.file("endless")
    arguments = [sys.executable, "-c", FETCH, file.url, file.checksum, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        assert process.stdout.readline() == f"{download.AT_ONCE}\n"
        with pytest.raises(UserError, match="another process"):
            get(tmp_path, site.file())
        process.kill()
    get(tmp_path, site.file())
    assert contents(tmp_path) == {NAME: CONTENT}
    assert site.ranges() == [None, f"bytes={download.AT_ONCE}-"]


# -------------------- what goes wrong on the way


def test_every_failure_is_one_of_the_surroundings() -> None:
    """The command gives these the status 1, and mistakes of users 2."""
    assert issubclass(DownloadError, OSError)
    assert not issubclass(DownloadError, FedmateError)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("status/404", "the server answers 404 Not Found"),
        ("status/503", "the server answers 503 Service Unavailable"),
        ("status/204", "the server answers 204 No Content"),
        ("status/206", "the server answers 206 Partial Content"),
        ("status/416", "the server answers 416 "),
        ("page", "the server answers with a web page instead of the file"),
        ("loop", "the server answers 302 "),
        ("ftp", "unknown url type: ftp"),
        ("local", "the server answers 302 "),
    ],
)
def test_a_server_that_has_no_file_is_told_with_what_to_do(tmp_path: Path, site: Site, way: str, reason: str) -> None:
    sentence = fail(tmp_path, site.file(way, name="deep/a.gz"))
    assert sentence.startswith(f"`{site.address}/{way}` cannot be fetched ({reason}")
    by_hand = f"fetch it by other means and put it into `{tmp_path / 'deep'}` as `a.gz`"
    assert sentence.endswith(f"; try again, or {by_hand}")
    assert contents(tmp_path) == {}


def test_a_server_that_is_not_there_is_told(tmp_path: Path, site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        sentence = fail(tmp_path, replace(site.file(), url=f"http://127.0.0.1:{port}/x"))
    assert f"`http://127.0.0.1:{port}/x` cannot be fetched (Connection refused)" in sentence
    assert contents(tmp_path) == {}


def test_a_server_that_falls_silent_is_given_up(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    sentence = fail(tmp_path, site.file("endless"))
    assert "timed out" in sentence
    assert contents(tmp_path)[PART] == CONTENT[: HALF // download.AT_ONCE * download.AT_ONCE]


def test_chunks_that_end_too_early_are_noticed(tmp_path: Path, site: Site) -> None:
    sentence = fail(tmp_path, site.file("torn"))
    assert "IncompleteRead" in sentence
    assert NAME not in contents(tmp_path)
    assert CONTENT.startswith(contents(tmp_path)[PART])


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:text/plain,x"])
def test_only_the_web_is_asked(tmp_path: Path, site: Site, url: str) -> None:
    sentence = fail(tmp_path, replace(site.file(), url=url))
    assert f"`{url}` cannot be fetched (unknown url type: {url.partition(':')[0]})" in sentence
    assert contents(tmp_path) == {}


def test_what_arrived_wrong_is_thrown_away_and_both_sums_are_told(tmp_path: Path, site: Site) -> None:
    wanted = "0" * 32
    (tmp_path / PART).write_bytes(b"x" * HALF)
    sentence = fail(tmp_path, replace(site.file(), checksum=wanted))
    (found,) = {*re.findall(r"[0-9a-f]{32}", sentence)} - {wanted}
    assert found == hashlib.md5(b"x" * HALF + CONTENT[HALF:]).hexdigest()
    assert f"md5 checksum {found}, but {wanted} is published ({SOURCE})" in sentence
    assert "; try again, or " in sentence
    assert contents(tmp_path) == {}
    get(tmp_path, site.file())
    assert contents(tmp_path) == {NAME: CONTENT}


def full_disk(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let the disk hold `room` more bytes."""
    write = os.write

    def limited(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, bytes(data[:room]))
        room -= written
        return written

    monkeypatch.setattr(os, "write", limited)


def test_a_full_disk_leaves_the_part(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch, 100_000)
    sentence = fail(tmp_path, site.file())
    monkeypatch.undo()
    assert f"`{tmp_path / PART}` cannot be written: No space left on device); see to that and try again" in sentence
    assert contents(tmp_path) == {PART: CONTENT[:100_000]}
    get(tmp_path, site.file())
    assert contents(tmp_path) == {NAME: CONTENT}
    assert site.ranges() == [None, "bytes=100000-"]


def test_a_disk_that_fails_at_the_end_leaves_the_part(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(storage, "flush", refuse)
    assert "see to that and try again" in fail(tmp_path, site.file())
    assert contents(tmp_path) == {PART: CONTENT}


# -------------------- a user's own


def test_a_file_that_is_there_is_checked_and_not_fetched(tmp_path: Path, site: Site) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    before = (tmp_path / NAME).stat()
    assert get(tmp_path, site.file()) == []
    assert (tmp_path / NAME).stat() == before
    assert site.requests == []


def test_a_wrong_file_stays_and_nothing_is_fetched_beside_it(tmp_path: Path, site: Site) -> None:
    """Not even those that are missing: what follows could not be used."""
    (tmp_path / NAME).write_bytes(b"mine")
    with pytest.raises(UserError) as caught:
        get(tmp_path, site.file(name="first.gz"), site.file())
    mine = checksum(tmp_path / NAME, "md5")
    wanted = site.file().checksum
    assert str(caught.value).startswith(
        f"`{tmp_path / NAME}` has the md5 checksum {mine}, but {wanted} is published ({SOURCE})"
    )
    assert "move it away" in str(caught.value)
    assert contents(tmp_path) == {NAME: b"mine"}
    assert site.requests == []


@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_what_is_no_file_is_left_alone(tmp_path: Path, site: Site, kind: str) -> None:
    if kind == "folder":
        (tmp_path / NAME).mkdir()
    else:
        (tmp_path / NAME).symlink_to("nowhere")
    with pytest.raises(UserError, match=f"`{tmp_path / NAME}` cannot be read .+; "):
        get(tmp_path, site.file())
    assert site.requests == []
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("theirs", [CONTENT, b"another"], ids=["right", "wrong"])
def test_what_appears_in_the_meantime_stays(tmp_path: Path, site: Site, theirs: bytes) -> None:
    def put(file: File, have: int, total: int | None) -> None:
        (tmp_path / NAME).write_bytes(theirs)

    if theirs == CONTENT:
        fetch("tiny", [site.file()], tmp_path, put)
    else:
        with pytest.raises(UserError, match="md5 checksum"):
            fetch("tiny", [site.file()], tmp_path, put)
    assert contents(tmp_path) == {NAME: theirs}


def test_only_one_process_fetches_a_data_set(tmp_path: Path, site: Site) -> None:
    sentences = []

    def meanwhile(file: File, have: int, total: int | None) -> None:
        if not have:
            with pytest.raises(UserError) as caught:
                get(tmp_path, site.file())
            sentences.append(str(caught.value))
            # Another data set is another matter.
            get(tmp_path, site.file(name="other.gz"), name="other")

    fetch("tiny", [site.file()], tmp_path, meanwhile)
    assert sentences == [
        f"`tiny` is being fetched into `{tmp_path}` by another process; wait for it, or stop it first."
    ]
    assert (tmp_path / NAME).read_bytes() == (tmp_path / "other.gz").read_bytes() == CONTENT


@pytest.mark.parametrize("name", [NAME, "deep/a.gz"])
def test_a_folder_that_cannot_be_written_to_is_told(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Root may write anywhere, so the refusal is made here."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    if name == NAME:
        monkeypatch.setattr(storage, "Lock", refuse)
        place = tmp_path
    else:
        (tmp_path / "deep").write_bytes(b"a file of that name")
        place = tmp_path / "deep"
    with pytest.raises(UserError, match=rf"`{place}` cannot be written to \(.+\); .+ `--data-dir`\."):
        get(tmp_path, site.file(name=name))
    assert site.requests == []


# -------------------- checksums


@pytest.mark.parametrize(
    ("algorithm", "digits"),
    [
        ("md5", "900150983cd24fb0d6963f7d28e17f72"),
        ("sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ],
)
def test_checksums_are_those_of_the_standards(tmp_path: Path, algorithm: str, digits: str) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert checksum(tmp_path / "abc", algorithm) == digits
    check(File("", "abc", 3, digits, SOURCE, algorithm), tmp_path / "abc")
    with pytest.raises(UserError, match=f"the {algorithm} checksum {digits}, but 1{digits[1:]} is published"):
        check(File("", "abc", 3, f"1{digits[1:]}", SOURCE, algorithm), tmp_path / "abc")
