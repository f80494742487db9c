"""Cost-aware feature transmission (CFT): in which rounds the extractor travels.

q rounds of prototypes cost as much as one extractor, q = size(extractor) / size(prototypes), so leaving the extractor
out once in q rounds pays for the prototypes. Q is the set of the server states 1 .. T whose extractor is aggregated.
"""

from __future__ import annotations

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


def transmission_period(extractor_size: int, prototypes_size: int) -> int:
    """Return floor(q), at least 1: every how many rounds the extractor is left out."""
    return max(1, extractor_size // prototypes_size)


def is_transmitted(state: int, schedule: str, period: int) -> bool:
    """Tell whether server state `state` (from 1) is in Q.

    Args:
        state: the number of the server state.
        schedule: `all` states; `cft` leaves out multiples of `period`; `half` keeps the first, third, ... of those;
            `null` none; `period:n` as `cft` with another period.
        period: floor(q).
    """
    kind, number = parse_schedule(schedule)
    if kind in ("all", "null") or state < 1:
        return kind == "all" and state >= 1
    step = number or period
    if state % step == 0:
        return False
    position = state - state // step
    return kind != "half" or position % 2 == 1
