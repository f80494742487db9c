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
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from fedmate.errors import FedmateError, UserError

MODE, PRIVATE = 0o666, 0o600
"""Who may do what with a file, before the umask: of an ordinary one, and of its owner's alone, such as a key."""

NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""What `flock` answers where it does not work: on Lustre without `-o flock`, or on NFS without its lock daemon."""

LEASE = 30.0
"""Seconds without renewal after which a lease may be taken over."""


class BusyError(FedmateError):
    """Another process holds the lock."""


def write(path: Path, data: bytes, mode: int = MODE) -> None:
    """Write a file that nobody refers to yet, over a torn one that an earlier attempt may have left."""
    _put(path, data, os.O_TRUNC, durable=True, mode=mode)


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
            _put(path, data, os.O_EXCL, durable=True, mode=mode)
    finally:
        remove(temporary)
    flush(path.parent)


def replace(path: Path, data: bytes, *, is_shared: bool = False) -> None:
    """Put `data` in the place of what a file held, in one instant; several processes may do so if it `is_shared`."""
    temporary = _temporary(path) if is_shared else path.with_name(f"{path.name}.new")
    try:
        write(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    flush(path.parent)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it, if they are missing; `mode` says who may do what in it, less the umask."""
    folder.mkdir(mode, parents=True, exist_ok=True)


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file; `flush` brings it to the disk."""
    _put(path, data, os.O_APPEND, durable=False)


def truncate(path: Path, size: int) -> None:
    """Cut a file to its first `size` bytes."""
    os.truncate(path, size)
    flush(path)


def flush(path: Path) -> None:
    """Bring what was appended to a file to the disk, or the names in a folder: a crash may undo a rename otherwise."""
    is_folder = path.is_dir()
    if is_folder and sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Give a folder to fill beside `folder`; it takes that name when all is there, or disappears.

    Raises `OSError` if `folder` exists and is not empty.
    """
    stage = _temporary(folder)
    make_folder(stage)
    try:
        yield stage
        for each in (stage, *(path for path in stage.rglob("*") if path.is_dir())):
            flush(each)
        os.rename(stage, folder)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    flush(folder.parent)


def lock(path: Path) -> AbstractContextManager[object]:
    """Hold a file, which stays, until the lock is released or this process ends, however it ends.

    Where the file system has no `flock`, as some shared folders, a lease file beside it does the same: its holder
    renews it, and another process takes it over once nobody has renewed it for `LEASE` seconds.

    Raises:
        BusyError: another process holds it.
    """
    from filelock import FileLock, SoftFileLease, Timeout

    # Not of one thread: a run may be released by another one than took it.
    try:
        try:
            return FileLock(path, fallback_to_soft=False, thread_local=False).acquire(blocking=False)
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
        place, age = path.with_name(f"{path.name}.lease"), 0.0
        lease = SoftFileLease(place, lease_duration=LEASE, thread_local=False)
        with suppress(FileNotFoundError):
            age = time.time() - place.stat().st_mtime
        # Clocks of machines may differ, so a lease that looks old is watched for as long as it takes to be sure.
        return lease.acquire(timeout=2 * LEASE if age > LEASE else 0)
    except Timeout:
        raise BusyError(str(path)) from None


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


def _put(path: Path, data: bytes, how: int, *, durable: bool, mode: int = MODE) -> None:
    # Neither a buffer nor an implicit flush: what a kill leaves behind is what was written until then.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how | getattr(os, "O_BINARY", 0), mode)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path) -> Path:
    # Threads, and machines that share a folder, may be at it at once. A character may take four of a name's 255 bytes.
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}")
