"""Fetching published files.

A file grows as `NAME.part` beside its place, goes on from where it stopped, and takes its name only when its checksum
is the published one. What a user has put there is checked, never changed.
"""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TypeAlias
from urllib.error import HTTPError, URLError

from fedmate import storage
from fedmate.data.sources import File
from fedmate.errors import UserError

TIMEOUT = 30.0
"""Seconds of silence after which a server counts as gone."""

AT_ONCE = 2**16
"""Bytes that are read before they are written: what an interruption loses."""

OK, PARTIAL, NOT_SATISFIABLE = 200, 206, 416
"""Answers of servers: the whole file; the rest that was asked for; there is no such rest."""

Report: TypeAlias = Callable[[File, int, int | None], None]
"""What is told while a file arrives: which one, how many bytes are there, and how many it has if the server says."""


class DownloadError(OSError):
    """The network, a server or the disk failed, which is no mistake of the user: one sentence, exit status 1."""


def fetch(name: str, files: Sequence[File], folder: Path, report: Report) -> None:
    """Bring files into a folder, those that are missing, and check those that are not.

    Args:
        name: of the data set, for messages.
        files: all of its files.
        folder: where data sets lie; it is made if it is missing.
        report: called while bytes arrive.
    """
    with _alone(name, folder):
        missing = [file for file in files if not _there(folder / file.name)]
        # Before hours of waiting, not after.
        for file in files:
            if file not in missing:
                check(file, folder / file.name)
        for file in missing:
            target = folder / file.name
            _make_folder(target.parent)
            _fetch_one(file, target, report)


def check(file: File, path: Path) -> None:
    """Raise `UserError` if a user's file is not the published one."""
    try:
        found = checksum(path, file.algorithm)
    except OSError as error:
        raise UserError(
            f"`{path}` cannot be read ({error.strerror}); mend that, or move it away to have it fetched."
        ) from None
    if found != file.checksum:
        raise UserError(
            f"`{path}` has the {file.algorithm} checksum {found}, but {file.checksum} is published ({file.source}): it "
            "is damaged, or another file; move it away, and the same command fetches it."
        )


def checksum(path: Path, algorithm: str) -> str:
    """Return what the content of a file comes to, in hexadecimal digits."""
    with path.open("rb") as content:
        # It guards against accidents. Without this word, systems of strict rules refuse MD5.
        return hashlib.file_digest(content, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


@contextmanager
def _alone(name: str, folder: Path) -> Iterator[None]:
    """Keep other processes from fetching the same into the same folder."""
    _make_folder(folder)
    try:
        lock = storage.Lock(folder / f".{name}.lock")
    except storage.BusyError:
        raise UserError(
            f"`{name}` is being fetched into `{folder}` by another process; wait for it, or stop it first."
        ) from None
    except OSError as error:
        raise _not_writable(folder, error) from None
    with lock:
        yield


def _make_folder(folder: Path) -> None:
    try:
        storage.make_folder(folder)
    except OSError as error:
        raise _not_writable(folder, error) from None


def _not_writable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"`{folder}` cannot be written to ({error.strerror}); give yourself the right to, or name another folder with "
        "`--data-dir`."
    )


def _there(path: Path) -> bool:
    # A link that leads nowhere is a user's, too.
    return path.exists() or path.is_symlink()


def _fetch_one(file: File, target: Path, report: Report) -> None:
    part = target.with_name(f"{target.name}.part")
    # A process that was killed may have left all of it.
    if not _is_whole(file, part):
        try:
            _receive(file, part, report)
        except (OSError, HTTPException) as error:
            raise _failed(file, target, part, error) from None
        found = checksum(part, file.algorithm)
        if found != file.checksum:
            storage.remove(part)
            raise DownloadError(
                f"`{file.url}` gave a file with the {file.algorithm} checksum {found}, but {file.checksum} is "
                f"published ({file.source}), so it was thrown away; try again, or {_by_hand(target)}"
            )
    try:
        storage.take_name(part, target)
    except FileExistsError:
        # Somebody has put it there in the meantime: it stays, and is looked at like any other.
        storage.remove(part)
        check(file, target)
    except OSError as error:
        raise _failed(file, target, part, _DiskError(part, error)) from None


def _is_whole(file: File, part: Path) -> bool:
    return part.is_file() and checksum(part, file.algorithm) == file.checksum


def _receive(file: File, part: Path, report: Report) -> None:
    """Make a part longer until the server has no more, or begin it."""
    response, have = _ask(file.url, part.stat().st_size if part.is_file() else 0)
    with response:
        total = None if response.length is None else have + response.length
        if not have:
            _write(storage.write, part, b"")
        report(file, have, total)
        while data := response.read(AT_ONCE):
            _write(storage.append, part, data)
            have += len(data)
            report(file, have, total)
    if total is not None and have < total:
        raise URLError(f"the connection ended after {have} of {total} bytes")


def _ask(url: str, have: int) -> tuple[HTTPResponse, int]:
    """Ask for what follows the first `have` bytes; return the answer, and the byte that it begins with."""
    headers = {"User-Agent": "fedmate", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response: HTTPResponse = _opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == NOT_SATISFIABLE and have:
            return _ask(url, 0)
        raise
    if response.headers.get_content_type() == "text/html":
        response.close()
        raise URLError("the server answers with a web page instead of the file")
    if response.status == OK:
        return response, 0
    if response.status == PARTIAL and response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        return response, have
    response.close()
    if have:
        return _ask(url, 0)
    raise URLError(f"the server answers {response.status} {response.reason}")


def _opener() -> urllib.request.OpenerDirector:
    """Return what follows redirections and knows HTTP alone; urllib's own would read files of this machine as well."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


class _DiskError(OSError):
    """A part could not be written."""

    def __init__(self, part: Path, error: OSError) -> None:
        super().__init__(f"`{part}` cannot be written: {error.strerror}")


def _write(how: Callable[[Path, bytes], None], part: Path, data: bytes) -> None:
    try:
        how(part, data)
    except OSError as error:
        raise _DiskError(part, error) from None


def _failed(file: File, target: Path, part: Path, error: OSError | HTTPException) -> DownloadError:
    again = "see to that and try again" if isinstance(error, _DiskError) else "try again"
    if part.is_file() and part.stat().st_size:
        again = f"{again}, which goes on from where it stopped"
    return DownloadError(f"`{file.url}` cannot be fetched ({_reason(error)}); {again}, or {_by_hand(target)}")


def _by_hand(target: Path) -> str:
    return f"fetch it by other means and put it into `{target.parent}` as `{target.name}`"


def _reason(error: BaseException) -> str:
    """Say in a few words what went wrong."""
    if isinstance(error, HTTPError):
        # Python's own words about redirections have several lines.
        return f"the server answers {error.code} {str(error.reason).splitlines()[0] if error.reason else ''}".strip()
    if isinstance(error, URLError):
        return _reason(error.reason) if isinstance(error.reason, BaseException) else str(error.reason)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
