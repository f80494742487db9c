"""A folder of finished cells, and of the runs that have not become one yet.

cells/NAME.json         what is kept of a finished run; `kept` says what that is
cells/NAME.safetensors  arrays that belong to it, where an experiment needs some
runs/NAME/              the run itself, an ordinary record: `fedmate export` and `fedmate run --resume` know it
locks/NAME              held by the process that runs the cell
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedmate import storage
from fedmate.errors import UserError
from fedmate.reproduce.kept import Kept


class Merged(NamedTuple):
    """What came of merging: the names that are new, that were here, and that are here with other figures."""

    new: list[str]
    same: list[str]
    unlike: list[str]


@final
class Store:
    """Finished cells by name.

    Args:
        folder: where they are; it need not exist before something is put there.
    """

    def __init__(self, folder: Path) -> None:
        """Look at a folder."""
        self.folder, self.cells = folder, folder / "cells"

    def has(self, name: str) -> bool:
        """Tell whether a cell is finished."""
        return (self.cells / f"{name}.json").is_file()

    def find(self, name: str) -> Kept | None:
        """Return a finished cell, if there is one."""
        return Kept.read(self.cells / f"{name}.json") if self.has(name) else None

    def arrays(self, name: str) -> dict[str, Tensor] | None:
        """Return a cell's arrays, if it has some."""
        return _read_arrays(self.cells / f"{name}.safetensors")

    def keep(self, name: str, content: Mapping[str, Any], arrays: Mapping[str, Tensor] | None = None) -> None:
        """Put a finished cell in; one that is there stays as it is, and gets what was measured since."""
        storage.make_folder(self.cells)
        held, old = self.arrays(name) or {}, self.find(name)
        if arrays and not arrays.keys() <= held.keys():
            storage.replace(self.cells / f"{name}.safetensors", save({**arrays, **held}))
        if old is None:
            storage.write_new(self.cells / f"{name}.json", _to_json(content))
        elif not set(content.get("measures", [])) <= set(old.measures):
            measures = sorted({*old.measures, *content["measures"]})
            storage.replace(self.cells / f"{name}.json", _to_json({**content, **old.content, "measures": measures}))

    def run_folder(self, name: str) -> Path:
        """Return where a cell is run."""
        return self.folder / "runs" / name

    def claim(self, name: str) -> storage.Lock:
        """Take a cell for this process, or raise `BusyError`; when it ends, the claim does."""
        storage.make_folder(self.folder / "locks")
        return storage.Lock(self.folder / "locks" / name)

    def is_claimed(self, name: str) -> bool:
        """Tell whether a process has taken a cell."""
        path = self.folder / "locks" / name
        if not path.exists():
            return False
        try:
            with storage.Lock(path):
                return False
        except storage.BusyError:
            return True

    def merge(self, other: Path) -> Merged:
        """Copy the cells of another store, or of a folder of them; nothing that is here is replaced."""
        source = other / "cells" if (other / "cells").is_dir() else other
        paths = sorted(source.glob("*.json"))
        if not paths:
            raise UserError(
                f"`--merge` got `{other}`, where no cells are; name a folder that `fedmate reproduce` made."
            )
        merged = Merged([], [], [])
        for path in paths:
            theirs, ours = Kept.read(path), self.find(path.stem)
            if ours is not None:
                alike = ours.summary["accuracy"] == theirs.summary["accuracy"]
                (merged.same if alike else merged.unlike).append(path.stem)
                continue
            self.keep(path.stem, theirs.content, _read_arrays(path.with_suffix(".safetensors")))
            merged.new.append(path.stem)
        return merged


def _read_arrays(path: Path) -> dict[str, Tensor] | None:
    if not path.is_file():
        return None
    try:
        found: dict[str, Tensor] = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"`{path}` cannot be read ({error}); remove it, or put it back from a copy.") from None
    return found


def _to_json(content: Mapping[str, Any]) -> bytes:
    """Write an entry to a line and no more: short enough to read, and for a difference between versions to be seen."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()
