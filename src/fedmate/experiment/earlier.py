"""Runs from before some option existed: what they did, whatever is the default today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmate.core import Training
from fedmate.core.options import options_of
from fedmate.experiment.config import NAMED_SECTIONS, General, Layer, Values, flat


def options_since(config: Mapping[str, Any]) -> Values:
    """Return the options that came when there were runs already, by `section.key`, with what those runs did."""
    fields = _fields(_places(config))
    return {key: one.metadata["before"] for key, one in fields.items() if "before" in one.metadata}


def completed(config: Values) -> Values:
    """Return the configuration of a run with the options that came since, as they were for it."""
    filled = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    for place, value in options_since(config).items():
        section, _, key = place.rpartition(".")
        (filled[section] if section else filled).setdefault(key, value)
    return filled


def as_it_was(file: Layer) -> tuple[Layer, dict[str, str]]:
    """Return what an experiment's file says, and a sentence for each option that a run did not have, by `section.key`.

    A run's own file spells everything out. What it lacks is what came since, and repeating the run is to do without.
    """
    places, said = _places(file.values), flat(file.values)
    fields, since = _fields(places), options_since(file.values)
    lacking = [key for key in fields if key not in said]
    if not places.keys() >= NAMED_SECTIONS.keys() or not lacking or any(key not in since for key in lacking):
        return file, {}
    sentences = {
        key: f"`{file.source}` is of a run from before `{key}`, and is run as it was, with {since[key]!r}; today's "
        f"default is {fields[key].default!r}."
        for key in lacking
        if since[key] != fields[key].default
    }
    return Layer(file.source, completed(file.values)), sentences


def _places(config: Mapping[str, Any]) -> dict[str, type]:
    """Return by section what has the options of an experiment, as far as it is named; the general ones are in none."""
    places: dict[str, type] = {"": General, "training": Training}
    for section, table in NAMED_SECTIONS.items():
        found = config.get(section)
        name = found.get("name") if isinstance(found, dict) else None
        if isinstance(name, str) and name in table:
            places[section] = table[name]
    return places


def _fields(places: Mapping[str, type]) -> dict[str, Any]:
    return {
        f"{section}.{name}" if section else name: field
        for section, cls in places.items()
        for name, field in options_of(cls).items()
    }
