"""Options: dataclass fields that carry their help text and their limits.

Everything a user can set in a section of an experiment is a field made by `option`, so the command line,
the configuration file and a call from Python check it in one place.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedmate.errors import UserError


@dataclasses.dataclass(frozen=True)
class Limits:
    """The numbers an option may take; `None` leaves a side open."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def describe(self) -> str:
        """Say in words what is allowed."""
        words = [
            f"{name} {bound:g}"
            for name, bound in (
                ("at least", self.at_least),
                ("above", self.above),
                ("at most", self.at_most),
                ("below", self.below),
            )
            if bound is not None
        ]
        return "a finite number" + (f" {' and '.join(words)}" if words else "")

    def allow(self, value: float) -> bool:
        """Tell whether `value` is finite and inside the limits."""
        # A whole number has no limit of its own, and may be too large for `isfinite`.
        finite = abs(value) < 2**1023 if isinstance(value, int) else math.isfinite(value)
        return (
            finite
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )


def option(
    default: Any,
    help: str,
    limits: Limits | None = None,
    *,
    is_path: bool = False,
) -> Any:
    """Declare a dataclass field that a user may set.

    Args:
        default: its value unless a user sets it.
        help: what it is, in a few words.
        limits: the numbers that it may take.
        is_path: it is kept as an absolute path, to be found from anywhere.
    """
    metadata = {"help": help, "limits": limits or Limits(), "path": is_path}
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def options_of(cls: type) -> Mapping[str, dataclasses.Field[Any]]:
    """Return the fields of `cls` that were declared with `option`, by name."""
    return MappingProxyType({f.name: f for f in dataclasses.fields(cls) if "help" in f.metadata})


def check_options(section: str, cls: type, values: dict[str, Any]) -> None:
    """Raise `UserError` for the first of `values` that lies outside its option's limits."""
    for name, field in options_of(cls).items():
        value = values.get(name, field.default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        limits: Limits = field.metadata["limits"]
        if not limits.allow(value):
            place = f"{section}.{name}" if section else name
            raise UserError(f"`{place}` is {value}; set it to {limits.describe()}.")
