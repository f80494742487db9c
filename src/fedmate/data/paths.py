"""Where data sets lie: the folder a user names, or one of the user's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedmate.errors import UserError

VARIABLE = "FEDMATE_DATA"
"""The variable of the environment that names the folder."""


def data_folder(chosen: Path | None = None) -> Path:
    """Return where data sets lie: `--data-dir`, or `FEDMATE_DATA`, or `user_folder`.

    A folder that was named has to exist; the user's own is made when something is put there.
    """
    name, named = ("--data-dir", chosen) if chosen is not None else (VARIABLE, os.environ.get(VARIABLE))
    if not named:
        return user_folder()
    folder = expand(name, named)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"`{name}` is `{folder}`, which {what}; make it, or name the folder that holds the data sets.")
    return folder


def expand(name: str, path: str | Path) -> Path:
    """Return a path with a leading `~` spelled out, or raise `UserError` about what is called `name`."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"`{name}` is `{path}`, but there is no such home folder; write the path out.") from None


def user_folder() -> Path:
    """Return the folder for this user's data sets, where the system keeps what can be fetched again."""
    if sys.platform == "win32":
        caches = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        caches = "~/Library/Caches"
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(caches).expanduser() / "fedmate"
    except RuntimeError:
        # Nobody in particular, as in some containers: what is at hand then is the working folder.
        return Path.cwd() / ".fedmate"
