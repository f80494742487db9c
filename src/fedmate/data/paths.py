"""The folder of data sets."""

from __future__ import annotations

import os
from pathlib import Path

from fedmate.errors import UserError

VARIABLE = "FEDMATE_DATA"
"""The environment variable that names the folder."""


def data_folder(chosen: Path | None = None) -> Path:
    """Return the folder that `--data-dir` or `FEDMATE_DATA` names, which must exist, or the user's cache folder."""
    name, named = ("--data-dir", chosen) if chosen is not None else (VARIABLE, os.environ.get(VARIABLE))
    if not named:
        return user_folder()
    folder = expand(name, named)
    if not folder.is_dir():
        found = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f"`{name}` is `{folder}`, which {found}; make it, or name the folder that holds the data sets.")
    return folder


def expand(name: str, path: str | Path) -> Path:
    """Return a path with a leading `~` expanded; messages call it `name`."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"`{name}` is `{path}`, but there is no such home folder; write the path out.") from None


def user_folder() -> Path:
    """Return this user's cache folder for data sets: `~/.cache/fedmate` on Linux."""
    from platformdirs import user_cache_path

    return user_cache_path("fedmate", appauthor=False, opinion=False)
