"""Cost-aware feature transmission (CFT): in which rounds the extractor travels.

q rounds of prototypes cost as much as one extractor, q = size(extractor) / size(prototypes), so leaving the extractor
out once in q rounds pays for the prototypes. Q is the set of the server states 1 .. T whose extractor is aggregated.
"""

from __future__ import annotations

import math
from fractions import Fraction

from fedmate.errors import UserError

SCHEDULES = ("all", "cft", "half", "null", "period:n")


def parse_schedule(schedule: str) -> tuple[str, int | None]:
    """Split `period:7` into its kind and number; raise `UserError` for anything unknown."""
    kind, colon, text = schedule.partition(":")
    if kind == "period" and colon and text.isascii() and text.isdecimal() and int(text) >= 1:
        return kind, int(text)
    if schedule in SCHEDULES[:-1]:
        return schedule, None
    raise UserError(
        f"`method.cft` is `{schedule}`; use `all`, `cft`, `half`, `null` or `period:n` with a whole number n >= 1."
    )


def transmission_period(extractor_size: int, prototypes_size: int) -> Fraction:
    """Return in how many states one is left out: floor(q), but q itself below 2, where rounding would leave out all."""
    q = Fraction(extractor_size, prototypes_size)
    return Fraction(math.floor(q)) if q >= 2 else q


def is_transmitted(state: int, schedule: str, period: Fraction) -> bool:
    """Tell whether server state `state` (from 1) is in Q.

    Args:
        state: the number of the server state.
        schedule: `all` states; `cft` leaves out multiples of `period`; `half` keeps the first, third, ... of those;
            `null` none; `period:n` as `cft` with another period.
        period: as `transmission_period` returns it; a state is left out wherever a multiple of it has been passed.
    """
    kind, number = parse_schedule(schedule)
    if kind in ("all", "null") or state < 1:
        return kind == "all" and state >= 1
    step = number or period
    left_out = state // step
    if left_out > (state - 1) // step:
        return False
    return kind != "half" or (state - left_out) % 2 == 1
