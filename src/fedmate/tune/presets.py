"""Puts an entry into a file of presets, and leaves everything else in it as it was, byte for byte.

An entry is the lines from its header to its last key: comments around it stay, those between its keys go with it.
"""

from __future__ import annotations

import os
import re
import stat
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedmate import storage
from fedmate.core.options import options_of
from fedmate.data import DATASETS
from fedmate.errors import UserError
from fedmate.experiment.config import load_file
from fedmate.experiment.tuned import check_entries
from fedmate.storage import BusyError
from fedmate.studies.records import Records

PAUSE = 0.1
"""Seconds between two attempts to have one's turn."""

HEADER = re.compile(r"\s*\[[^\[].*\]\s*(#.*)?\s*")
"""The first line of a table."""

LINE = re.compile(r"[^\n]*\n|[^\n]+")
"""A line with its end, if it has one."""


class _Entry(NamedTuple):
    """Where an entry stands among the lines of a file.

    Attributes:
        name: its method and its data set.
        start: the number of its first line, a header.
        end: the number of the line after its last one that is neither empty nor a comment.
    """

    name: tuple[str, ...]
    start: int
    end: int


def check_presets(path: Path, dataset: str) -> None:
    """Raise `UserError` unless an entry for a data set could be put into a file."""
    if not may_have_presets(dataset):
        raise UserError(
            f"`--write` would make a preset for `{dataset}`, which is a name for any data; run the `best.toml` that is "
            "found instead."
        )
    if path.exists():
        check_entries(str(path), load_file(path).values)
    elif not Path(os.path.realpath(path)).parent.is_dir():
        raise UserError(f"`--write` got `{path}`, whose folder does not exist; make it first.")


def may_have_presets(dataset: str) -> bool:
    """Tell whether a data set's name says what it is: some are names for any data."""
    return dataset != "given" and "path" not in options_of(DATASETS[dataset])


def write_preset(path: Path, entry: str, store: Records) -> None:
    """Put an entry in, in the place of the one that it is newer than, if there is one.

    Searches that share a store do so one after the other: none loses what another has put in.
    """
    with _turn(store):
        _write(path, entry)


@contextmanager
def _turn(store: Records) -> Iterator[None]:
    while True:
        try:
            claim = store.claim("presets")
        except BusyError:
            time.sleep(PAUSE)
        else:
            break
    with claim:
        yield


def _write(path: Path, entry: str) -> None:
    # A link stays one, and what it leads to is written.
    file = Path(os.path.realpath(path))
    if not file.exists():
        storage.write_new(file, entry.encode())
        return
    old, new = load_file(file).values, tomllib.loads(entry)
    ((method, by_dataset),) = new.items()
    check_entries(str(path), old)
    try:
        text = _put(file.read_bytes().decode(), entry)
        is_right = tomllib.loads(text) == {**old, method: {**old.get(method, {}), **by_dataset}}
    except ValueError:
        is_right = False
    if not is_right:
        raise UserError(f"`{path}` is written in a way that cannot be edited safely; put the entry in by hand.")
    mode = stat.S_IMODE(file.stat().st_mode)
    storage.replace_by_parts(file, [text.encode()])
    file.chmod(mode)


def _put(text: str, entry: str) -> str:
    """Return a text with an entry put in: in the place of the one with its name, or in alphabetical order."""
    # Only this ends a line of TOML, whatever else Python takes for an end.
    lines = LINE.findall(text)
    entries, name = _entries(lines), _name(entry.splitlines()[0])
    same = [one for one in entries if one.name == name]
    if not same:
        place = next((_top(lines, one) for one in entries if one.name > name), len(lines))
        return _insert(lines, place, entry)
    for one in same:
        # A text of several lines may end in one that looks like a comment: `ValueError` if the end is not an end.
        tomllib.loads("".join(lines[one.start : one.end]))
    for one in reversed(same[1:]):
        del lines[one.start : one.end]
    start, end = same[0].start, same[0].end
    last = lines[end - 1]
    lines[start:end] = [_with_endings(entry, lines[start]).rstrip("\r\n"), last[len(last.rstrip("\r\n")) :]]
    return "".join(lines)


def _insert(lines: Sequence[str], place: int, entry: str) -> str:
    """Return lines with an entry between them, and empty lines around it."""
    above, below, empty = "".join(lines[:place]), "".join(lines[place:]), _with_endings("\n", *lines[:1])
    if above and not above.endswith("\n"):
        above += empty
    if above and lines[place - 1].strip():
        above += empty
    return above + _with_endings(entry, *lines[:1]) + (empty if below else "") + below


def _entries(lines: Sequence[str]) -> list[_Entry]:
    """Return the entries of a file; tables of one entry that follow each other are one."""
    found: list[_Entry] = []
    for number, line in enumerate(lines):
        if HEADER.fullmatch(line) and not (found and found[-1].name == _name(line)):
            found.append(_Entry(_name(line), number, number + 1))
        elif found and line.strip() and not _is_comment(line):
            found[-1] = found[-1]._replace(end=number + 1)
    return found


def _top(lines: Sequence[str], entry: _Entry) -> int:
    """Return the number of the first of the comments that stand directly on an entry, or of its own first line."""
    place = entry.start
    while place and _is_comment(lines[place - 1]):
        place -= 1
    return place


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _with_endings(text: str, like: str = "\n") -> str:
    """Return a text whose lines end as another line does."""
    return text.replace("\n", "\r\n") if like.endswith("\r\n") else text


def _name(header: str) -> tuple[str, ...]:
    """Return the method and the data set that a line such as `[fedmate.digits]` names."""
    method, by_dataset = next(iter(tomllib.loads(header).items()))
    return (method, *list(by_dataset)[:1])
