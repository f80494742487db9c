"""Puts what is made of an experiment's cells into files, and says what a terminal should show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import RenderableType

from fedmate import storage
from fedmate.errors import UserError
from fedmate.report.figures import Picture
from fedmate.report.plots import FORMATS, check_picture
from fedmate.report.sheets import Sheet, to_csv, to_latex, to_markdown, to_rich
from fedmate.studies.grid import SETTINGS, Wanted
from fedmate.studies.long_form import figures
from fedmate.studies.outcome import Outcome
from fedmate.studies.presentation import SHOWS
from fedmate.studies.sheets import published
from fedmate.studies.shelf import Shelf
from fedmate.studies.store import CELLS

RUNS = ("config.toml", "comparison.json")
"""What a folder has that holds a run, or several."""


class Saved(NamedTuple):
    """What was made.

    Attributes:
        folder: where it lies.
        files: without their suffixes; none if nothing could be saved.
        tables: for a terminal.
        notes: sentences the user should read.
        is_refused: whether a file could not be written.
    """

    folder: Path
    files: list[str]
    tables: list[RenderableType]
    notes: list[str]
    is_refused: bool


def save(outcome: Outcome, out: Path) -> Saved:
    """Write all that an experiment shows, in the place of what an earlier call made.

    Where nothing can be written, a note says so, and what a terminal should show is there all the same.
    """
    shown = [thing for name in outcome.grid.shows for thing in SHOWS[name](outcome)]
    sheets = [one for one in shown if isinstance(one, Sheet)]
    pictures = [one for one in shown if isinstance(one, Picture)]
    folder, notes = out / folder_name(outcome.grid.name, outcome.wanted), outcome.notes()
    # What all tables say is printed once.
    common = [*notes, *published(outcome)]
    tables = [to_rich(replace(one, notes=[note for note in one.notes if note not in common])) for one in sheets]
    shelf, is_refused = Shelf(folder), False
    try:
        shelf.open()
        _write(sheets, shelf)
        shelf.put("figures.csv", to_csv(figures(outcome)).encode())
        _draw(pictures, shelf)
        shelf.look_over()
    except OSError as error:
        what = "not everything is saved" if shelf.names else "nothing is saved"
        is_refused = True
        notes = [*notes, f"{what}, for `{shelf.place}` cannot be written ({error.strerror})."]
    except UserError as error:
        notes = [*notes, str(error)]
    return Saved(folder, shelf.names, tables, [*notes, *shelf.notes], is_refused)


def _write(sheets: Sequence[Sheet], shelf: Shelf) -> None:
    """Write tables in all forms."""
    for sheet in sheets:
        forms = {".md": to_markdown(sheet), ".tex": to_latex(sheet), ".csv": to_csv(_titled(sheet))}
        for suffix, content in forms.items():
            shelf.put(f"{sheet.name}{suffix}", content.encode())


def _draw(pictures: Sequence[Picture], shelf: Shelf) -> None:
    """Write pictures in all forms."""
    if pictures:
        check_picture(shelf.folder / f"{pictures[0].name}.svg")
    for picture in pictures:
        for suffix in FORMATS:
            shelf.put(f"{picture.name}{suffix}", picture.draw(suffix))


def _titled(sheet: Sheet) -> Sheet:
    """Return a sheet that says in each row what it is from, for a form without titles."""
    rows = [[sheet.title, *row] for row in sheet.rows]
    groups = ["", *sheet.groups] if sheet.groups else ()
    return replace(sheet, head=["table", *sheet.head], rows=rows, groups=groups)


def check_out(out: Path, name: str, wanted: Wanted, *, is_shown: bool = False) -> None:
    """Raise `UserError` if nothing can be put into `--out`, or what will be put there is in somebody's way.

    Args:
        out: the folder.
        name: of the experiment.
        wanted: what of it.
        is_shown: whether `--show` is given, and only cells are to be taken over.
    """
    try:
        storage.make_folder(out)
    except OSError as error:
        raise UserError(
            f"`--out` is `{out}`, where no folder can be made ({error.strerror}); name another place."
        ) from None
    if any((out / name).exists() for name in RUNS):
        raise UserError(f"`--out` is `{out}`, which holds a run or a comparison; name another place.")
    for place in (out, out / CELLS):
        if place.exists() and not (place.is_dir() and os.access(place, os.W_OK)):
            look = "leave out `--merge`" if is_shown else "only look at it with `--show`"
            raise UserError(
                f"`--out` is `{out}`, but into `{place}` nothing can be written; name another place, or {look}."
            )
    folder = out / folder_name(name, wanted)
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(f"`{folder}` is in the way: it is no folder; move it, or use another `--out`.")


def folder_name(name: str, wanted: Wanted) -> str:
    """Return what the folder is called: quick runs and tuned settings are never mistaken for the paper's."""
    return "-".join([name, *([wanted.settings] if wanted.settings != SETTINGS[0] else []), *["quick"] * wanted.quick])
