"""Citations of runs: their methods, their data and fedmate itself, as BibTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmate import data, methods
from fedmate.core.options import Registry
from fedmate.data import DATASETS
from fedmate.errors import UserError
from fedmate.experiment.record import Record, runs_of
from fedmate.methods import METHODS

CITED: dict[str, tuple[str, Registry[Any]]] = {"method": ("method", METHODS), "dataset": ("data set", DATASETS)}
"""By section of an experiment: its name, and the table of its rows, whose `citation` says what to cite."""

ADDITIONS = {
    "calibration": ("prior calibration", "logitadjustment2021"),
    "server_momentum": ("server momentum", "fedavgm2019"),
}
"""By option that methods share: what it adds to them where it is not 0, and what to cite for that."""

OWN_ENTRIES = [Path(package.__path__[0], "citations.bib") for package in (methods, data)]
ENTRY = re.compile(r"^@\w+\{([^\s,]+),.*?(?=^@|\Z)", re.MULTILINE | re.DOTALL)
"""An entry of BibTeX that begins its line, and its key."""


def bibliography(folders: Sequence[Path]) -> Iterator[str]:
    """Yield what to cite for runs and comparisons, finished or not: comments, and each entry once.

    Raises:
        UserError: a folder holds no record, or a damaged one; nothing has been yielded then.
    """
    records = [Record(run) for folder in folders for run in runs_of(folder)]
    used = {section: dict.fromkeys(_name(record, section) for record in records) for section in CITED}
    citations, software = dict[str, str | None](), _software(records)
    for section, (what, table) in CITED.items():
        for name in used[section]:
            try:
                citations[f"{what} {name}"] = table[name].citation
            except UserError:
                citations[f"{what} {name}"] = None
    for option, (what, citation) in ADDITIONS.items():
        if any(record.config["method"].get(option) for record in records):
            citations[what] = citation
    cited = set[str]()
    for what, text in citations.items():
        if text is None:
            yield f"% {what}: not found here, so its reference is not known"
            continue
        entries = entries_of(text)
        yield f"% {what}: {', '.join(entries) or 'no reference'}"
        yield from (f"{entry}\n" for key, entry in entries.items() if key not in cited)
        cited.update(entries)
    yield from ("% software", software)


def entries_of(citation: str) -> dict[str, str]:
    """Return entries of BibTeX by key: those of a text, or one of fedmate's own that a key names."""
    if citation.isidentifier():
        known = "\n".join(path.read_text(encoding="utf-8") for path in OWN_ENTRIES)
        return {citation: entries_of(known)[citation]}
    return {found[1]: found[0].strip() for found in ENTRY.finditer(citation)}


def _name(record: Record, section: str) -> str:
    """Return the name in a section of a run's experiment, whether or not it is known here."""
    named = record.config.get(section)
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str) or not name.isprintable():
        raise UserError(f"`{record.folder / 'config.toml'}` names no {CITED[section][0]}; put it back from a copy.")
    return name


def _software(records: Sequence[Record]) -> str:
    """Return the entry of fedmate, with the versions that began the runs or went on with them."""
    versions = dict[str, None]()
    for record in records:
        if (record.folder / "environment.json").exists():
            environment = record.environment
            for entry in (environment, *environment.get("resumed", [])):
                if "fedmate" in entry:
                    versions[str(entry["fedmate"])] = None
    fields = ["title = {{fedmate}}", "author = {{The fedmate developers}}", "howpublished = {Software}"]
    if versions:
        fields.append(f"note = {{Version {', '.join(versions)}}}")
    return "@misc{fedmate_software,\n  " + ",\n  ".join(fields) + "\n}"
