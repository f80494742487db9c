"""A folder of finished cells, and of the runs that have not become one yet.

cells/NAME.json         what is kept of a finished run; `kept` says what that is
cells/NAME.safetensors  arrays that belong to it, where an experiment needs some
runs/NAME/              the run itself, an ordinary record: `fedmate export` and `fedmate run --resume` know it
locks/NAME              held by the process that runs the cell
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedmate import storage
from fedmate.errors import UserError
from fedmate.studies.kept import Kept

CELLS = "cells"
"""The folder of what is kept."""


class Merged(NamedTuple):
    """What came of merging: a name is in one of the first three, or a sentence says why it is in none.

    Attributes:
        new: the cells that were not here.
        same: those that were.
        unlike: those that are here with other figures, and were left alone.
        refused: what is wrong with the files that were left out.
    """

    new: list[str]
    same: list[str]
    unlike: list[str]
    refused: list[str]


@final
class Store:
    """Finished cells by name.

    Args:
        folder: where they are; it need not exist before something is put there.
    """

    def __init__(self, folder: Path) -> None:
        """Look at a folder."""
        self.folder, self.cells = folder, folder / CELLS

    def has(self, name: str) -> bool:
        """Tell whether a cell is finished."""
        return (self.cells / f"{name}.json").is_file()

    def has_arrays(self, name: str) -> bool:
        """Tell whether a file of arrays is beside a cell."""
        return os.path.lexists(self._arrays_path(name))

    def find(self, name: str) -> Kept | None:
        """Return a finished cell, if there is one."""
        path = self.cells / f"{name}.json"
        # Whatever has the name is in the way of the cell: it is read, or refused in a sentence.
        return Kept.read(path) if os.path.lexists(path) else None

    def arrays(self, name: str) -> dict[str, Tensor] | None:
        """Return a cell's arrays, if it has some."""
        return _read_arrays(self._arrays_path(name))

    def _arrays_path(self, name: str) -> Path:
        return self.cells / f"{name}.safetensors"

    def keep(self, name: str, content: Mapping[str, Any], arrays: Mapping[str, Tensor] | None = None) -> None:
        """Put a finished cell in; one that is there stays as it is, and gets what was measured since."""
        storage.make_folder(self.cells)
        if arrays:
            self._keep_arrays(name, arrays)
        # Whoever was quicker, since or just now, has put the same experiment there.
        old = self.find(name) or self._put(name, content)
        if old is not None and not set(content.get("measures", [])) <= set(old.measures):
            measures = sorted({*old.measures, *content["measures"]})
            everything = {**old.content, **content, **old.content, "measures": measures}
            storage.replace_by_parts(self.cells / f"{name}.json", [_to_json(everything)])

    def _keep_arrays(self, name: str, arrays: Mapping[str, Tensor]) -> None:
        held = self.arrays(name) or {}
        if not arrays.keys() <= held.keys():
            storage.replace_by_parts(self._arrays_path(name), [save({**arrays, **held})])

    def _put(self, name: str, content: Mapping[str, Any]) -> Kept | None:
        """Put a new cell in, or return the one that another process has put there in the meantime."""
        try:
            storage.write_new(self.cells / f"{name}.json", _to_json(content))
        except FileExistsError:
            return self.find(name)
        return None

    def run_folder(self, name: str) -> Path:
        """Return where a cell is run."""
        return self.folder / "runs" / name

    def claim(self, name: str) -> storage.Lock:
        """Take a cell for this process, or raise `BusyError`; when it ends, the claim does."""
        path = self.folder / "locks" / name
        try:
            storage.make_folder(path.parent)
            return storage.Lock(path)
        except OSError as error:
            raise UserError(
                f"`{path}` cannot be made or opened as a lock ({error.strerror}); remove what is there, or make its "
                "folder one that can be written."
            ) from None

    def is_claimed(self, name: str) -> bool:
        """Tell whether a process has taken a cell."""
        if not (self.folder / "locks" / name).exists():
            return False
        try:
            with self.claim(name):
                return False
        except storage.BusyError:
            return True

    def merge(self, other: Path) -> Merged:
        """Copy the cells of another store, or of a folder of them; nothing that is here is replaced."""
        merged, is_found = Merged([], [], [], []), False
        for path in cells_in(other):
            try:
                theirs = Kept.read(path)
                is_found = True
                self._take(theirs, path, merged)
            except UserError as error:
                merged.refused.append(str(error))
        if not is_found:
            raise UserError(f"`--merge` got `{other}`, where no cells are that can be read: {merged.refused[0]}")
        return merged

    def _take(self, theirs: Kept, path: Path, merged: Merged) -> None:
        """Copy a cell, or what ours has not of it, and note it."""
        ours = self.find(theirs.name)
        if ours is not None and not _is_alike(ours, theirs):
            merged.unlike.append(theirs.name)
            return
        self.keep(theirs.name, theirs.content, _read_arrays(path.with_suffix(".safetensors")))
        (merged.new if ours is None else merged.same).append(theirs.name)


def cells_in(folder: Path) -> list[Path]:
    """Return the files of the cells in another store, or in a folder of them; raise `UserError` if there are none."""
    source = folder / CELLS if (folder / CELLS).is_dir() else folder
    paths = sorted(source.glob("*.json"))
    if not paths or (folder / "config.toml").exists():
        raise UserError(f"`--merge` got `{folder}`, where no cells are; name a folder that `fedmate reproduce` made.")
    return paths


def _is_alike(ours: Kept, theirs: Kept) -> bool:
    """Tell whether two runs of an experiment came to the same, which says nothing of how long they took."""
    return _came_to(ours) == _came_to(theirs)


def _came_to(kept: Kept) -> list[Any]:
    rounds = [[point["round"], point["accuracy"]] for point in kept.content["curve"]]
    return [kept.summary["accuracy"], kept.summary["partition_sha256"], kept.content["holdings"], rounds]


def _read_arrays(path: Path) -> dict[str, Tensor] | None:
    if not os.path.lexists(path):
        return None
    try:
        if path.exists() and not path.is_file():
            # Whoever opens a pipe waits for what never comes.
            raise OSError("not a regular file")
        found: dict[str, Tensor] = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"`{path}` cannot be read ({error}); remove it, or put it back from a copy.") from None
    return found


def _to_json(content: Mapping[str, Any]) -> bytes:
    """Write an entry to a line and no more: short enough to read, and for a difference between versions to be seen."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()
