"""Download published files, and check those that are there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedmate.data.dataset import RemoteFile
from fedmate.errors import UserError


class DownloadError(OSError):
    """The network or a server failed, which is no mistake of the user: one sentence, exit status 1."""


def download(files: Sequence[RemoteFile], folder: Path) -> None:
    """Download files into the folder of data sets if they are missing, and check those that are there.

    A file takes its name only after its checksum was verified. An existing file is never replaced.
    """
    import pooch
    import requests

    missing = [file for file in files if not (folder / file.path).exists()]
    # Before a long download, not after it.
    for file in files:
        if file not in missing:
            check(file, folder / file.path)
    for file in missing:
        target = folder / file.path
        fetch = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), headers={"User-Agent": "fedmate"})
        try:
            pooch.retrieve(file.url, f"md5:{file.md5}", target.name, target.parent, downloader=fetch)
        except PermissionError:
            raise UserError(
                f"`{target.parent}` cannot be written to; change its permissions, or name another folder with "
                "`--data-dir`."
            ) from None
        except (OSError, ValueError) as error:
            # A wrong checksum is a `ValueError`; the file is deleted then.
            reason = "no connection" if isinstance(error, requests.ConnectionError) else error
            raise DownloadError(
                f"`{file.url}` cannot be downloaded ({reason}); try again, or download it by other means and put it "
                f"into `{target.parent}` as `{target.name}`"
            ) from None


def check(file: RemoteFile, path: Path) -> None:
    """Raise `UserError` if an existing file is not the published one."""
    import pooch

    try:
        found = pooch.file_hash(path, alg="md5")
    except OSError as error:
        raise UserError(f"`{path}` cannot be read ({error.strerror}); check its permissions.") from None
    if found != file.md5:
        raise UserError(
            f"`{path}` has the md5 checksum {found}, but {file.md5} is published: it is damaged, or another file; move "
            "it away, and the same command downloads it."
        )
