"""Files that survive being killed: all of it or nothing, never over another, and nothing left lying about."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedmate import storage
from fedmate.storage import BusyError, lock


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return everything below a folder, with the contents of files."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# -------------------- one file


@pytest.mark.parametrize(
    ("write", "synced"), [(storage.write, 1), (storage.write_new, 2), (storage.replace, 2), (storage.append, 0)]
)
def test_what_is_promised_to_be_on_the_disk_is_brought_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None], synced: int
) -> None:
    """The file, and its folder where a name has changed."""
    fsync, found = os.fsync, list[bool]()

    def noted(descriptor: int) -> None:
        found.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write(tmp_path / "file", b"a\r\nb\x00\xff")
    assert tree(tmp_path) == {"file": b"a\r\nb\x00\xff"}
    assert found == [False, True][:synced]


# -------------------- never over another


def take(place: Path) -> None:
    """Let a folder take a name."""
    with storage.staged(place) as stage:
        fill(stage)


@pytest.mark.parametrize("write", [lambda place: storage.write_new(place, b"theirs"), take], ids=["file", "folder"])
@pytest.mark.parametrize("kind", ["file", "full folder", "dangling link"])
def test_nothing_is_written_over_something(tmp_path: Path, write: Callable[[Path], None], kind: str) -> None:
    place = tmp_path / "taken"
    match kind:
        case "file":
            place.write_bytes(b"mine")
        case "full folder":
            fill(place)
        case "dangling link":
            place.symlink_to("nowhere")
    before = tree(tmp_path)
    with pytest.raises(OSError, match="taken"):
        write(place)
    assert tree(tmp_path) == before
    assert not (tmp_path / "nowhere").exists()


def test_a_file_system_without_links_gets_its_files_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    storage.write_new(tmp_path / "file", b"content")
    with pytest.raises(FileExistsError):
        storage.write_new(tmp_path / "file", b"other")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"content"}


# -------------------- replace


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "replace"])
def test_an_interrupted_replacement_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, operation, fail)
    with pytest.raises(KeyboardInterrupt):
        storage.replace(tmp_path / "file", b"new")
    monkeypatch.undo()
    assert tree(tmp_path) == {"file": b"old"}


# -------------------- folders


def fill(stage: Path) -> None:
    (stage / "deep" / "down").mkdir(parents=True)
    storage.write(stage / "deep" / "down" / "file", b"content")


def test_a_folder_takes_its_name_when_all_is_there(tmp_path: Path) -> None:
    # As long as a name may nearly be: 249 bytes of 255.
    name = "東" * 83
    with storage.staged(tmp_path / "new" / name) as stage:
        assert stage.parent == tmp_path / "new"
        fill(stage)
        assert not (tmp_path / "new" / name).exists()
    assert tree(tmp_path / "new") == {
        name: None,
        f"{name}/deep": None,
        f"{name}/deep/down": None,
        f"{name}/deep/down/file": b"content",
    }


def test_an_exception_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    def fail(stage: Path) -> None:
        fill(stage)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), storage.staged(tmp_path / "folder") as stage:
        fail(stage)
    assert tree(tmp_path) == {}


# -------------------- locks

HOLD = """
import errno, fcntl, sys, time
from pathlib import Path
from fedmate import storage
if len(sys.argv) > 2:
    def fail(descriptor, operation):
        raise OSError(int(sys.argv[2]), "no locks here")
    fcntl.flock, storage.LEASE = fail, 1.0
with storage.lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def held_elsewhere(path: Path, *number: int) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a lock, on a file system whose `flock` answers with an error's number."""
    command = [sys.executable, "-c", HOLD, str(path), *map(str, number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def flock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let `flock` answer with an error's number, and leases be short."""

    def answer(number: int) -> None:
        def fail(descriptor: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", fail)
        monkeypatch.setattr(storage, "LEASE", 1.0)

    return answer


@pytest.mark.parametrize("number", [None, errno.ENOLCK])
def test_a_lock_another_process_holds_is_busy_until_that_process_is_killed(
    tmp_path: Path, flock: Callable[[int], None], number: int | None
) -> None:
    path = tmp_path / "lock"
    if number is not None:
        flock(number)
    with held_elsewhere(path, *([] if number is None else [number])) as process:
        for _ in range(2):
            with pytest.raises(BusyError, match="lock"):
                lock(path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock(path):
            pass


def test_a_lease_that_nobody_renews_is_taken_over(tmp_path: Path, flock: Callable[[int], None]) -> None:
    """As of a machine that is gone: its process cannot be asked for."""
    flock(errno.ENOLCK)
    with held_elsewhere(tmp_path / "lock", errno.ENOLCK) as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        with lock(tmp_path / "lock"):
            pass


@pytest.mark.parametrize("number", [None, errno.ENOLCK])
def test_a_lock_is_held_once_until_it_is_released(
    tmp_path: Path, flock: Callable[[int], None], number: int | None
) -> None:
    if number is not None:
        flock(number)
    with lock(tmp_path / "lock"), pytest.raises(BusyError):
        lock(tmp_path / "lock")
    with pytest.raises(ValueError, match="inside"), lock(tmp_path / "lock"):
        raise ValueError("inside")
    with lock(tmp_path / "lock"):
        pass
