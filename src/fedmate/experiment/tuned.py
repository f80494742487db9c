"""What tuning found: the entries of `tuned.toml`, which the preset `tuned` of a method stands for.

[METHOD.DATASET]            one entry for each method and data set
training, method            tables of the settings that were found, for these sections
date, commit, command       when it was run, by which version, and what to run to find it again
trials                      how many settings were tried, those of the experiment itself among them
view                        of the models that were scored
score, default_score        balanced accuracy on validation samples, in percent: of these settings, and of the defaults
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedmate.errors import UserError

TUNED = "tuned"
"""The name of the preset."""

FILE = Path(__file__).parents[1] / "tuned.toml"
"""The entries that come with the package."""

SETTINGS = ("training", "method")
"""What of an entry a preset stands for; the rest tells where it comes from."""


def tuned_on(method: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what the package has found for a method: settings by section, for each data set."""
    # Asked for each run of a table, and read again only if it has changed.
    found = _entries(FILE, FILE.stat().st_mtime_ns).get(method, {})
    return {
        dataset: {section: dict(entry[section]) for section in SETTINGS if section in entry}
        for dataset, entry in found.items()
    }


@cache
def _entries(path: Path, changed: int) -> dict[str, dict[str, dict[str, Any]]]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"`{path}` is not valid TOML: {error}; put it back from a copy.") from None
    return check_entries(str(path), values)


def check_entries(source: str, values: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the content of a file as entries by method and data set, or raise `UserError` if it is something else."""
    for method, by_dataset in values.items():
        for dataset, entry in by_dataset.items() if isinstance(by_dataset, dict) else [("", None)]:
            tables = [entry.get(section, {}) for section in SETTINGS] if isinstance(entry, dict) else [None]
            if not any(tables) or not all(isinstance(table, dict) for table in tables):
                where = ".".join(filter(None, (method, dataset)))
                raise UserError(
                    f"`{source}` has `{where}`, which is no entry `[METHOD.DATASET]` with settings in `training` and "
                    "`method`; name a file of presets."
                )
    return dict(values)
