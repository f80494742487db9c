"""Writes the tables and plots of a study into files."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedmate import storage
from fedmate.report.drawing import FORMATS
from fedmate.report.tables import Table, to_csv, to_latex, to_markdown
from fedmate.studies.plots import plots
from fedmate.studies.statistics import Results
from fedmate.studies.tables import tables, to_frame

PRINTED = ("accuracy", "differences")
"""The tables that a terminal shows; all are in files."""


class Saved(NamedTuple):
    """The folder, the names of the files without suffixes, tables for a terminal, and sentences for the user."""

    folder: Path
    files: list[str]
    tables: list[Table]
    notes: list[str]


def save(results: Results, out: Path) -> Saved:
    """Write all tables as Markdown, LaTeX and CSV, all plots as SVG, PDF and PNG, and the figures in long form."""
    found, notes = tables(results), results.notes()
    folder = out / "tables" / folder_name(results)
    storage.make_folder(folder)
    for table in found:
        forms = {".md": to_markdown(table), ".tex": to_latex(table), ".csv": to_csv(table)}
        for suffix, text in forms.items():
            storage.replace(folder / f"{table.name}{suffix}", text.encode())
    storage.replace(folder / "figures.csv", to_frame(results).to_csv(index=False, float_format="%.2f").encode())
    files = [*(table.name for table in found), "figures"]
    if importlib.util.find_spec("matplotlib") is None:
        notes.append("there are no plots without matplotlib; install it with `pip install 'fedmate[plots]'`.")
    else:
        for plot in plots(results):
            files.append(plot.name)
            for suffix in FORMATS:
                storage.replace(folder / f"{plot.name}{suffix}", plot.draw(suffix))
    # A terminal shows the notes of the study once, below all tables.
    printed = [
        replace(table, notes=[note for note in table.notes if note not in notes])
        for table in found
        if table.name.startswith(PRINTED)
    ]
    return Saved(folder, files, printed, notes)


def folder_name(results: Results) -> str:
    """Return the name of the folder of tables."""
    return results.study.name + "-tuned" * results.choice.tuned + "-quick" * results.choice.quick
