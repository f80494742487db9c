"""Where the files of data sets lie, how they are downloaded, and what is in them.

Members of archives are read one by one into memory. Nothing is unpacked to the disk, so names inside an archive cannot
point anywhere. Links and devices are skipped.
"""

from __future__ import annotations

import os
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate.errors import UserError

VARIABLE = "FEDMATE_DATA"
"""The environment variable that names the folder of data sets."""

LARGEST, MOST_GROWTH = 2**30, 100
"""A compressed file that has over so many bytes when it is read, and grows by this factor, is meant to fill memory."""


class RemoteFile(NamedTuple):
    """A published file: its address, its place in the folder of data sets, its size in bytes and its checksum."""

    url: str
    path: str
    size: int
    md5: str


class DownloadError(OSError):
    """The network or a server failed, which is no mistake of the user: one sentence, exit status 1."""


def data_folder(chosen: Path | None = None) -> Path:
    """Return the folder that `--data-dir` or `FEDMATE_DATA` names, which must exist, or the user's cache folder."""
    name, named = ("--data-dir", chosen) if chosen is not None else (VARIABLE, os.environ.get(VARIABLE))
    if not named:
        return user_folder()
    folder = expand(named)
    if not folder.is_dir():
        found = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"`{name}` is `{folder}`, which {found}; make it, or name the folder that holds the data sets.")
    return folder


def user_folder() -> Path:
    """Return this user's cache folder for data sets: `~/.cache/fedmate` on Linux."""
    from platformdirs import user_cache_path

    return user_cache_path("fedmate", appauthor=False, opinion=False)


def expand(path: str | Path) -> Path:
    """Return a path with a leading `~` expanded, if there is such a home folder."""
    return Path(os.path.expanduser(path))


def download(files: Sequence[RemoteFile], folder: Path) -> None:
    """Download files into the folder of data sets if they are missing, and check those that are there.

    A file takes its name only after its checksum was verified. An existing file is never replaced.
    """
    import pooch
    import requests

    for file in files:
        target = folder / file.path
        if target.exists():
            check(file, target)
            continue
        fetch = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), headers={"User-Agent": "fedmate"})
        try:
            pooch.retrieve(file.url, f"md5:{file.md5}", target.name, target.parent, downloader=fetch)
        except (requests.RequestException, ValueError) as error:
            # A wrong checksum is a `ValueError`; the file is deleted then.
            reason = "no connection" if isinstance(error, requests.ConnectionError) else error
            raise DownloadError(
                f"`{file.url}` cannot be downloaded ({reason}); try again, or download it by other means and put it "
                f"into `{target.parent}` as `{target.name}`"
            ) from None
        except OSError as error:
            raise UserError(
                f"`{target.parent}` cannot be written to ({error.strerror or 'permission denied'}); choose another "
                f"folder with `--data-dir` or `{VARIABLE}`."
            ) from None


def check(file: RemoteFile, path: Path) -> None:
    """Raise `UserError` if an existing file is not the published one."""
    import pooch

    try:
        found = pooch.file_hash(path, alg="md5")
    except OSError as error:
        raise unreadable(path, error) from None
    if found != file.md5:
        raise UserError(
            f"`{path}` has the md5 checksum {found}, but {file.md5} is published: it is damaged, or another file; move "
            "it away, and the same command downloads it."
        )


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the wanted files in a folder or an archive, one at a time, or raise `UserError`.

    Names are relative to the top, with slashes.
    """
    if path.is_dir():
        yield from ((name, read_file(file)) for name, file in files_in(path) if wanted(name))
        return
    try:
        yield from (_read_zip if zipfile.is_zipfile(path) else _read_tar)(path, wanted)
    # Readers of archives raise almost anything on damaged bytes, also `OSError` without a number.
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from None
        raise damaged(path, str(error) or type(error).__name__) from None


def _read_tar(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        while (member := archive.next()) is not None:
            # tarfile keeps a list of all members, of which there may be hundreds of thousands.
            archive.members.clear()  # type: ignore[attr-defined]
            name = str(PurePosixPath(member.name))
            content = archive.extractfile(member) if member.isreg() and wanted(name) else None
            if content is not None:
                yield name, content.read()
        # The checksum of a compressed archive stands at its end.
        while archive.fileobj is not None and archive.fileobj.read(2**20):
            pass


def _read_zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = str(PurePosixPath(member.filename))
            if not member.is_dir() and wanted(name):
                yield name, archive.read(member)


def read_all(found: Sequence[Path], members: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return name and content of files: of those that were found, or of the members of the one archive found."""
    if len(found) > 1:
        return [(str(path), read_file(path)) for path in found]
    content = dict(read_members(found[0], members.__contains__))
    lacking = next((name for name in members if name not in content), None)
    if lacking is not None:
        raise damaged(found[0], f"it has no `{lacking}`")
    return [(f"{found[0]}/{name}", content[name]) for name in members]


def read_numpy(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file of numpy by name, or raise `UserError`; the one of an `.npy` file has the name ""."""
    try:
        # Opened here: numpy leaves a damaged file open.
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return {"": found}
            size = sum(info.file_size for info in found.zip.infolist())
            if size > max(LARGEST, MOST_GROWTH * path.stat().st_size):
                raise ValueError(f"it expands to {size:,} bytes")
            return {name: found[name] for name in found.files}
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from None
        kind = "save" if path.suffix.lower() == ".npy" else "savez"
        advice = f"write plain numbers, and words with `.astype(str)`, with `numpy.{kind}`"
        if str(error).startswith("Object arrays"):
            raise UserError(f"`{path}` holds Python objects, which are not read; {advice}.") from None
        # numpy takes any unknown content for pickled objects, and recommends to read them.
        unknown = "allow_pickle" in str(error) or not str(error)
        reason = "unknown content" if unknown else str(error).partition("\n")[0][:200]
        raise UserError(f"`{path}` is not a file of numpy's numbers ({reason}); {advice}.") from None


def files_in(folder: Path) -> list[tuple[str, Path]]:
    """Return all regular files below a folder with their names relative to it, in order of names."""

    def fail(error: OSError) -> None:
        raise unreadable(Path(error.filename or folder), error) from None

    found = [Path(place, name) for place, _, names in os.walk(folder, onerror=fail) for name in names]
    return sorted((file.relative_to(folder).as_posix(), file) for file in found if file.is_file())


def read_file(path: Path) -> bytes:
    """Return the content of a file, or raise `UserError`."""
    try:
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
