"""Puts an entry into a file of presets, and leaves everything else in it as it was, comments included."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedmate import storage
from fedmate.core.options import options_of
from fedmate.datasets import DATASETS
from fedmate.errors import UserError
from fedmate.experiment.config import load_file
from fedmate.experiment.tuned import check_entries
from fedmate.reproduce.store import Store
from fedmate.storage import BusyError

PAUSE = 0.1
"""Seconds between two attempts to have one's turn."""

HEADER = re.compile(r"\s*\[[^\[].*\]\s*(#.*)?")
"""The first line of a table."""


class _Block(NamedTuple):
    """Some lines of a file.

    Attributes:
        name: of the entry they belong to, as a method and a data set; empty for what stands above all entries.
        comment: the lines directly above it that are comments.
        lines: the rest.
    """

    name: tuple[str, ...]
    comment: list[str]
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join([*self.comment, *self.lines]).strip()


def check_presets(path: Path, dataset: str) -> None:
    """Raise `UserError` unless an entry for a data set could be put into a file."""
    if dataset == "given" or "path" in options_of(DATASETS[dataset]):
        raise UserError(
            f"`--write` would make a preset for `{dataset}`, which is a name for any data; run the `best.toml` that is "
            "found instead."
        )
    if path.exists():
        check_entries(str(path), load_file(path).values)
    elif not path.parent.is_dir():
        raise UserError(f"`--write` got `{path}`, whose folder does not exist; make it first.")


def write_preset(path: Path, entry: str, store: Store) -> None:
    """Put an entry in, in the place of the one that it is newer than, if there is one.

    Searches that share a store do so one after the other: none loses what another has put in.
    """
    with _turn(store):
        _write(path, entry)


@contextmanager
def _turn(store: Store) -> Iterator[None]:
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
    if not path.exists():
        storage.write_new(path, entry.encode())
        return
    old, new = load_file(path).values, tomllib.loads(entry)
    ((method, by_dataset),) = new.items()
    check_entries(str(path), old)
    try:
        blocks = _put(_blocks(path.read_text(encoding="utf-8")), _blocks(entry)[-1])
        text = "\n\n".join(block.text for block in blocks if block.text) + "\n"
        is_right = tomllib.loads(text) == {**old, method: {**old.get(method, {}), **by_dataset}}
    except ValueError:
        is_right = False
    if not is_right:
        raise UserError(f"`{path}` is written in a way that cannot be edited safely; put the entry in by hand.")
    storage.replace(path, text.encode())


def _put(blocks: list[_Block], new: _Block) -> list[_Block]:
    """Return blocks with one put in: where its entry was, or in alphabetical order."""
    same = [block for block in blocks if block.name == new.name]
    if same:
        kept = new._replace(comment=same[0].comment)
        return [kept if block is same[0] else block for block in blocks if block is same[0] or block not in same]
    place = next((i for i, block in enumerate(blocks) if block.name > new.name), len(blocks))
    return [*blocks[:place], new, *blocks[place:]]


def _blocks(text: str) -> list[_Block]:
    """Return the entries of a file, after what stands above them; comments belong to what they stand on."""
    blocks = [_Block((), [], [])]
    for line in text.splitlines():
        if HEADER.fullmatch(line) and _name(line) != blocks[-1].name:
            above, comment = blocks[-1].lines, list[str]()
            while above and above[-1].startswith("#"):
                comment.insert(0, above.pop())
            blocks.append(_Block(_name(line), comment, [line]))
        else:
            blocks[-1].lines.append(line)
    return blocks


def _name(header: str) -> tuple[str, ...]:
    """Return the method and the data set that a line such as `[fedmate.digits]` names."""
    method, by_dataset = next(iter(tomllib.loads(header).items()))
    return (method, *list(by_dataset)[:1])
