"""Files that belong together, read where they lie: in a folder, a tar archive or a zip archive.

Nothing is ever unpacked to the disk. A name inside an archive is only a word to choose by, so it does not matter where
it points to; links, devices and sparse files are passed over; a member too large for memory is refused unread.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Self, cast, final

from fedmate.errors import UserError

LARGEST = 2**30
"""The most bytes a member may have."""

LONGEST_NAME = 2**20
"""The most bytes a tar archive may spend on the name of a member."""

READ_AT_ONCE = 2**20

ENCRYPTED = 1
"""The flag of a member of a zip archive that needs a password."""

_LONG_NAMES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Entries of a tar archive that are read with the header of the next one."""

LONGEST = 200
"""How many characters of a reason a sentence quotes."""


class Bundle(ABC):
    """A read-only view of files that belong together.

    Args:
        path: the folder or the archive.
    """

    def __init__(self, path: Path) -> None:
        """Remember where it lies; it is opened when asked for its content."""
        self.path = path

    @abstractmethod
    def items(self, wanted: Callable[[str], bool], largest: int = LARGEST) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of regular files, one at a time: of a folder in order of names, else as they come.

        Args:
            wanted: tells by its name, with slashes and relative to the top, whether a file is to be read.
            largest: the most bytes one may have.

        Raises:
            UserError: something is damaged, too large or cannot be read.
        """


@final
class Folder(Bundle):
    """The files in a folder and in the folders inside it."""

    def items(self, wanted: Callable[[str], bool], largest: int = LARGEST) -> Iterator[tuple[str, bytes]]:
        """Yield name and content, in order of names."""
        for name, file in files_in(self.path):
            if wanted(name):
                yield name, read_file(file, largest)


@final
class Tar(Bundle):
    """A tar archive, compressed by gzip or not."""

    def items(self, wanted: Callable[[str], bool], largest: int = LARGEST) -> Iterator[tuple[str, bytes]]:
        """Yield name and content, in the order of the archive, which is read through to its end."""
        compressed = _starts_with(self.path, b"\x1f\x8b")
        with _damage_told(self.path), gzip.open(self.path) if compressed else self.path.open("rb") as stream:
            with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:", tarinfo=_Header) as archive:
                while (member := archive.next()) is not None:
                    # It keeps a list of all members, of which there may be hundreds of thousands.
                    archive.members.clear()  # type: ignore[attr-defined]
                    if member.size < 0:
                        raise tarfile.ReadError("a size is negative")
                    name = _plain(member.name)
                    if member.isreg() and not member.issparse() and wanted(name):
                        _check_size(self.path, name, member.size, largest)
                        content = archive.extractfile(member)
                        yield name, content.read() if content else b""
            # The end of a compressed stream holds the sum that shows whether all of it was right.
            while stream.read(READ_AT_ONCE):
                pass


@final
class Zip(Bundle):
    """A zip archive."""

    def items(self, wanted: Callable[[str], bool], largest: int = LARGEST) -> Iterator[tuple[str, bytes]]:
        """Yield name and content, in the order of the archive's own list."""
        with _damage_told(self.path), zipfile.ZipFile(self.path) as archive:
            for member in archive.infolist():
                name = _plain(member.filename)
                # Archives made on Windows do not say what kind of file a member is.
                kind = stat.S_IFMT(member.external_attr >> 16)
                if not member.is_dir() and kind in (0, stat.S_IFREG) and wanted(name):
                    if member.flag_bits & ENCRYPTED:
                        raise UserError(f"`{self.path}` is locked by a password; pack it again without one.")
                    _check_size(self.path, name, member.file_size, largest)
                    with archive.open(member) as content:
                        # No more is unpacked than was announced, whatever the compressed bytes hold.
                        yield name, content.read(member.file_size)


@final
class _Header(tarfile.TarInfo):
    """The header of a member: `tarfile` takes a damaged one in the middle for the end of the archive, this does not."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        """Read the next header; where it is not one, raise what ends the reading with an error."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            # A block of zeros is the mark of the end.
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None

    def _proc_member(self, tarfile_: tarfile.TarFile) -> Self:
        """Look at a header before what it announces is read."""
        if self.size < 0 or (self.type in _LONG_NAMES and self.size > LONGEST_NAME):
            raise tarfile.ReadError("a size is impossible")
        return cast(Self, super()._proc_member(tarfile_))  # type: ignore[misc]


def open_bundle(path: Path) -> Bundle:
    """Return the view that fits a folder or, by its content, an archive; raise `UserError` if nothing is there."""
    if path.is_dir():
        return Folder(path)
    return Zip(path) if _starts_with(path, b"PK") else Tar(path)


def files_in(folder: Path) -> list[tuple[str, Path]]:
    """Return the regular files in a folder and in those inside it, by name relative to it, in order of names."""
    found = [Path(place, name) for place, _, names in os.walk(folder, onerror=_raise) for name in names]
    return sorted((file.relative_to(folder).as_posix(), file) for file in found if file.is_file())


def read_file(path: Path, largest: int = LARGEST) -> bytes:
    """Return the content of a file, or raise `UserError`."""
    try:
        _check_size(path.parent, path.name, path.stat().st_size, largest)
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> UserError:
    """Return what to say about a file that the system does not let us read."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"`{path}` does not exist; put it there, or name the place where it is.")
    return UserError(f"`{path}` cannot be read ({error.strerror or error}); see who may read it.")


def damaged(path: Path | str, reason: str) -> UserError:
    """Return what to say about a file that is not what its name says; what a reader said of it may be long."""
    return UserError(f"`{path}` is damaged or not complete ({reason[:LONGEST]}); delete it and fetch it again.")


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Turn what a damaged archive makes its readers raise into one sentence."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        # What gzip finds wrong is such an error, too, but not one of the system.
        raise (damaged(path, str(error)) if error.errno is None else unreadable(path, error)) from None
    except Exception as error:
        # Bytes that somebody changed make the readers of archives raise almost anything.
        raise damaged(path, " ".join(str(error).split()) or type(error).__name__) from None


def _check_size(place: Path, name: str, size: int, largest: int) -> None:
    if size > largest:
        raise UserError(
            f"`{place}` has a file `{name}` of {size:,} bytes, of which at most {largest:,} are read; see whether "
            "it is the right one."
        )


def _starts_with(path: Path, mark: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(mark)) == mark
    except OSError as error:
        raise unreadable(path, error) from None


def _plain(name: str) -> str:
    """Return a name without the `./` that some archives put before it."""
    return str(PurePosixPath(name))


def _raise(error: OSError) -> None:
    raise unreadable(Path(error.filename or ""), error) from None
