"""Files that survive being killed: every byte that fedmate keeps is written here, and nowhere else.

Three promises, each as far as the operating system keeps its own: what `write` and `replace` have returned from is on
the disk; a reader of a replaced file sees the old content or the new one, never a part; what exists is not overwritten
unless `replace` is asked to.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from fedmate.errors import FedmateError, UserError

if TYPE_CHECKING:
    from filelock import BaseFileLock

SHOWN = 40
"""How many characters of a name a temporary name shows: each may take four of the 255 bytes that a name has."""

MODE = 0o666
"""Who may do what with a file, before the umask: what a program gives that has nothing to hide."""

PRIVATE = 0o600
"""The same for what is its owner's alone, such as a key."""

NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""What `flock` answers where it does not work: on Lustre without `-o flock`, or on NFS without its lock daemon."""

LEASE = 30.0
"""Seconds without renewal after which a lease may be taken over."""


class BusyError(FedmateError):
    """Another process holds the lock."""


def write(path: Path, data: bytes, mode: int = MODE) -> None:
    """Write a file that nobody refers to yet, over a torn one that an earlier attempt may have left."""
    _put(path, data, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, durable=True, mode=mode)


def write_new(path: Path, data: bytes, mode: int = MODE) -> None:
    """Write a file for the user: all of it or nothing, and never over another one (`FileExistsError`).

    At no instant may others do more with it than `mode` says.
    """
    temporary = _temporary(path)
    try:
        write(temporary, data, mode)
        try:
            # A link, unlike a rename, fails where something exists.
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:
            # A file system without links, such as a memory stick's: a kill may leave a part here, but nothing is lost.
            _put(path, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL, durable=True, mode=mode)
    finally:
        remove(temporary)
    sync_folder(path.parent)


def replace(path: Path, data: bytes) -> None:
    """Put `data` in the place of what a file held, in one instant."""
    with _replacing(path, path.with_name(f"{path.name}.new")) as temporary:
        write(temporary, data)


def replace_by_parts(path: Path, parts: Iterable[bytes]) -> None:
    """Put a file that is too large for memory in the place of what was there, in one instant."""
    with _replacing(path, _temporary(path)) as temporary:
        write(temporary, b"")
        for part in parts:
            append(temporary, part)
        flush(temporary)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it, if they are missing; `mode` says who may do what in it, less the umask."""
    folder.mkdir(mode, parents=True, exist_ok=True)


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file; `flush` brings it to the disk."""
    _put(path, data, os.O_WRONLY | os.O_CREAT | os.O_APPEND, durable=False)


def flush(path: Path) -> None:
    """Bring what was appended to a file to the disk."""
    _sync(path, os.O_RDWR)


def truncate(path: Path, size: int) -> None:
    """Cut a file to its first `size` bytes."""
    os.truncate(path, size)
    flush(path)


def remove(path: Path) -> None:
    """Delete a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Give a folder to fill beside `folder`; it takes that name when all is there, or disappears.

    Raises `OSError` if `folder` exists and is not empty.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{folder.name[:SHOWN]}.", dir=folder.parent))
    # A temporary folder is its owner's alone; this one is going to be an ordinary folder.
    os.umask(mask := os.umask(0))
    os.chmod(stage, 0o777 & ~mask)
    try:
        yield stage
        for each in (stage, *(path for path in stage.rglob("*") if path.is_dir())):
            sync_folder(each)
        os.rename(stage, folder)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    sync_folder(folder.parent)


@final
class Lock:
    """Holds a file for this process until it is released or the process ends, however it ends.

    Where the file system has no `flock`, as some shared folders, a lease file beside it does the same: its holder
    renews it, and another process takes it over once nobody has renewed it for `LEASE` seconds.

    Args:
        path: the lock file; it is made if it is missing, and stays.

    Raises:
        BusyError: another process holds it.
    """

    def __init__(self, path: Path) -> None:
        from filelock import FileLock, Timeout

        # Not of one thread: a run may be released by another one than took it.
        self._lock: BaseFileLock = FileLock(path, fallback_to_soft=False, thread_local=False)
        try:
            try:
                self._lock.acquire(blocking=False)
            except OSError as error:
                if error.errno not in NO_FLOCK:
                    raise
                self._lock = _lease(path.with_name(f"{path.name}.lease"))
        except Timeout:
            raise BusyError(str(path)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _lease(path: Path) -> BaseFileLock:
    from filelock import SoftFileLease

    lease = SoftFileLease(path, lease_duration=LEASE, thread_local=False)
    try:
        is_stale = time.time() - path.stat().st_mtime > LEASE
    except FileNotFoundError:
        is_stale = False
    # Clocks of machines may differ, so a lease that looks old is watched for as long as it takes to be sure.
    lease.acquire(timeout=2 * LEASE if is_stale else 0)
    return lease


def _put(path: Path, data: bytes, flags: int, *, durable: bool, mode: int = MODE) -> None:
    # Neither a buffer nor an implicit flush: what a kill leaves behind is what was written until then.
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), mode)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _replacing(path: Path, temporary: Path) -> Iterator[Path]:
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    sync_folder(path.parent)


def _temporary(path: Path) -> Path:
    # Threads, and machines that share a folder, may be at it at once; processes may have one number there.
    return path.with_name(f".{path.name[:SHOWN]}.{secrets.token_hex(8)}")


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk; a renamed file is otherwise found under its old name after a crash."""
    if sys.platform != "win32":
        _sync(folder, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_links(folder: Path) -> None:
    """Raise `UserError` if anything in a folder is a symbolic link; the folder itself may be one."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (path := Path(place, name)).is_symlink():
                raise UserError(f"`{path}` is a link; replace it by the file or folder it names, or resume a copy.")


def check_new(path: Path) -> None:
    """Raise `UserError` unless `path` names a file that does not exist in a folder that does."""
    if path.exists() or path.is_symlink():
        raise UserError(f"`{path}` exists already and is not overwritten; choose another name.")
    if not path.parent.is_dir():
        raise UserError(f"`{path}` lies in the folder `{path.parent}`, which does not exist; make it first.")


def write_for_user(path: Path, data: bytes) -> None:
    """Write a new file, or raise `UserError`."""
    try:
        write_new(path, data)
    except OSError as error:
        check_new(path)
        raise UserError(f"`{path}` cannot be written ({error.strerror}); choose another place.") from None
