"""Runs from before some option existed: what they did, whatever is the default today."""

from __future__ import annotations

from typing import Any

from fedmate.core.options import options_of
from fedmate.experiment.config import General, Values
from fedmate.methods import METHODS


def options_since(method: str) -> Values:
    """Return the options that came when there were runs already, by `key` or `method.key`, with what those runs did."""
    places: dict[str, type] = {"": General} | ({"method.": METHODS[method]} if method in METHODS else {})
    fields = {f"{place}{name}": one for place, cls in places.items() for name, one in options_of(cls).items()}
    return {key: one.metadata["before"] for key, one in fields.items() if "before" in one.metadata}


def completed(config: Values) -> Values:
    """Return the configuration of a run with the options of its method that came since, as they were for it."""
    method: dict[str, Any] = config["method"]
    since = {key.removeprefix("method."): value for key, value in options_since(method["name"]).items() if "." in key}
    return {**config, "method": {**since, **method}}
