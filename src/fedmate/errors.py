"""What can go wrong, as a tree.

FedmateError
├── UserError        the user asked for something that cannot be done: one sentence, exit status 2
├── DivergedError    training went to infinity at every client: one sentence, exit status 3
└── StoppedError     a run cannot go on for now, and what is done is saved: how to continue, exit status 1
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedmateError(Exception):
    """Base of every error that fedmate raises on purpose."""


class UserError(FedmateError):
    """A mistake in what the user asked for; its text is the one sentence they read."""


class DivergedError(FedmateError):
    """No client of a round gave finite numbers, so the run ended; its record up to then is intact."""


class StoppedError(FedmateError):
    """A run that cannot go on for now: clients elsewhere do not answer; the rounds done are saved."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word closest to `name`, or all of them."""
    names = sorted(known)
    folded = {other.casefold(): other for other in reversed(names)}
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or [
        folded[other] for other in difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    ]
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known are {', '.join(f'`{other}`' for other in names)}." if names else "none exist."
