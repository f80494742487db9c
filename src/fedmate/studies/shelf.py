"""A folder of files that are made anew at each call, in which nothing that somebody else wrote is lost.

`.fedmate-made` has a line for each file that was ever put here: its digest and its name. What is here now and is not in
it is somebody's own, or was changed by hand.
"""

from __future__ import annotations

import hashlib
import itertools
from contextlib import suppress
from pathlib import Path
from typing import final

from fedmate import storage

MADE = ".fedmate-made"
"""The record of what was put here."""


@final
class Shelf:
    """A folder that is being filled.

    Args:
        folder: where files go.

    Attributes:
        place: what is being written.
    """

    def __init__(self, folder: Path) -> None:
        """Remember where it is."""
        self.folder = self.place = folder
        self._made, self._put = set[str](), list[str]()
        self.notes: list[str] = []
        """What a user should know of the files that were here."""

    def open(self) -> None:
        """Make the folder, and find what was put here before."""
        storage.make_folder(self.folder)
        self._made = set(_lines(self.folder / MADE))

    @property
    def names(self) -> list[str]:
        """What was put here since it was opened, without suffixes, in that order."""
        return list(dict.fromkeys(map(_stem, self._put)))

    def put(self, name: str, content: bytes) -> None:
        """Put a file in the place of the one that was made before; one that is somebody's own keeps out of the way."""
        self.place = path = self.folder / name
        line = f"{hashlib.sha256(content).hexdigest()}  {name}"
        if path.is_file() and self._line(name) != line and not self._is_made(name):
            self._set_aside(path)
        if line not in self._made:
            # Said before it is done: whoever is killed in between has not made somebody else's file of it.
            storage.append(self.folder / MADE, f"{line}\n".encode())
            self._made.add(line)
        storage.replace_by_parts(path, [content])
        self._put.append(name)

    def look_over(self) -> None:
        """Say what an earlier call made and this one did not: it shows other cells than what was put here now."""
        # A name, not a path: what is elsewhere is none of ours, whatever a record says.
        names = {Path(line.partition("  ")[2]).name for line in self._made} - {*self._put}
        old = sorted(name for name in names if (self.folder / name).is_file() and self._is_made(name))
        if old:
            kinds = ", ".join(dict.fromkeys(map(_stem, old)))
            self.notes.append(f"still there, made by an earlier call of other cells: {kinds}.")

    def _is_made(self, name: str) -> bool:
        line = self._line(name)
        if line not in self._made:
            # Machines that share a folder fill it at the same time.
            self._made |= set(_lines(self.folder / MADE))
        return line in self._made

    def _line(self, name: str) -> str:
        return f"{hashlib.sha256((self.folder / name).read_bytes()).hexdigest()}  {name}"

    def _set_aside(self, path: Path) -> None:
        for number in itertools.count(1):
            aside = path.with_name(f"{path.stem}.yours{number if number > 1 else ''}{path.suffix}")
            with suppress(FileExistsError):
                storage.take_name(path, aside)
                self.notes.append(f"`{path}` was not made here, or was changed since: it is now `{aside.name}`.")
                return


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _lines(path: Path) -> list[str]:
    """Return the lines of a record; without a whole one everything is somebody's own."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return []
