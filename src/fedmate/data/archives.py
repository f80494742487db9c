"""Files that belong together, read from a folder, a tar archive or a zip archive.

Nothing is unpacked to the disk, so names inside an archive cannot point anywhere. Links and devices are skipped.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from fedmate.errors import UserError

LARGEST = 2**30
"""The most bytes that a file may have; more is refused before it is read."""


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of files in a folder or an archive, one at a time, or raise `UserError`.

    Args:
        path: of the folder or archive.
        wanted: whether a file is to be read, by its name relative to the top, with slashes.
    """
    if path.is_dir():
        yield from ((name, read_file(file)) for name, file in files_in(path) if wanted(name))
        return
    try:
        yield from (_read_zip if zipfile.is_zipfile(path) else _read_tar)(path, wanted)
    except UserError:
        raise
    except OSError as error:
        # Errors of decompression are `OSError` as well, without a number.
        raise (damaged(path, str(error)) if error.errno is None else unreadable(path, error)) from None
    except Exception as error:
        # Readers of archives raise almost anything on damaged bytes.
        raise damaged(path, str(error) or type(error).__name__) from None


def read_all(found: Sequence[Path], members: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return name and content of files: of those that were found, or of the members of the one archive found."""
    if len(found) > 1:
        return [(str(path), read_file(path)) for path in found]
    content = dict(read_members(found[0], members.__contains__))
    lacking = next((name for name in members if name not in content), None)
    if lacking is not None:
        raise damaged(found[0], f"it has no `{lacking}`")
    return [(f"{found[0]}/{name}", content[name]) for name in members]


def files_in(folder: Path) -> list[tuple[str, Path]]:
    """Return all regular files below a folder with their names relative to it, in order of names."""

    def fail(error: OSError) -> None:
        raise unreadable(Path(error.filename or folder), error) from None

    found = [Path(place, name) for place, _, names in os.walk(folder, onerror=fail) for name in names]
    return sorted((file.relative_to(folder).as_posix(), file) for file in found if file.is_file())


def read_file(path: Path) -> bytes:
    """Return the content of a file, or raise `UserError`."""
    try:
        _check_size(path, path.name, path.stat().st_size)
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> UserError:
    """Return the message for a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"`{path}` does not exist; put the file there, or name another folder.")
    return UserError(f"`{path}` cannot be read ({error.strerror or error}); check its permissions.")


def damaged(path: Path | str, reason: str) -> UserError:
    """Return the message for a file whose content is wrong."""
    reason = " ".join(reason.split())[:200]
    return UserError(f"`{path}` is damaged or not complete ({reason}); delete it and download it again.")


def _read_tar(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        while (member := archive.next()) is not None:
            # tarfile keeps a list of all members, of which there may be hundreds of thousands.
            archive.members.clear()  # type: ignore[attr-defined]
            name = str(PurePosixPath(member.name))
            content = archive.extractfile(member) if member.isreg() and wanted(name) else None
            if content is not None:
                _check_size(path, name, member.size)
                yield name, content.read()
        # The checksum of a compressed archive stands at its end.
        while archive.fileobj is not None and archive.fileobj.read(2**20):
            pass


def _read_zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = str(PurePosixPath(member.filename))
            if not member.is_dir() and wanted(name):
                _check_size(path, name, member.file_size)
                yield name, archive.read(member)


def _check_size(place: Path, name: str, size: int) -> None:
    if size > LARGEST:
        raise UserError(f"`{place}` has a file `{name}` of {size:,} bytes, more than {LARGEST:,}; check the file.")
