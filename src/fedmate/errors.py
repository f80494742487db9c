"""What can go wrong, as a tree.

FedmateError
├── UserError        the user asked for something that cannot be done: one sentence, exit status 2
├── DivergedError    training went to infinity at every client: one sentence, exit status 3
└── StoppedError     a run cannot go on for now, and what is done is saved: how to continue, exit status 1
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


class FedmateError(Exception):
    """Base of every error that fedmate raises on purpose."""


class NoteWarning(UserWarning):
    """A sentence that the user of Python should read about a run; `fedmate run` prints it."""


class UserError(FedmateError):
    """A mistake in what the user asked for.

    Args:
        message: one sentence; `{option}` in it stands for the argument at fault.
        option: that argument in Python; the command line spells it in its own way.
    """

    def __init__(self, message: str, option: str = "") -> None:
        self.message, self.option = message, option
        super().__init__(message, option)

    def __str__(self) -> str:
        return self.spelled(str)

    def spelled(self, spell: Callable[[str], str]) -> str:
        """Return the sentence with the argument spelled as the user of a front end knows it."""
        return self.message.replace("{option}", spell(self.option)) if self.option else self.message


class DivergedError(FedmateError):
    """No client of a round gave finite numbers, so the run ended; its record up to then is intact."""


class StoppedError(FedmateError):
    """A run that cannot go on for now: clients elsewhere do not answer; the rounds done are saved."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word closest to `name`, or all of them."""
    names = sorted(known)
    spelled = {_spelled(other): other for other in reversed(names)}
    # A whole match comes first: FedMate+ is `fedmate_plus`, and FedPAC+ rather `fedpac`.
    whole = _spelled(name.replace("+", "_plus"))
    if close := [whole] if whole in spelled else difflib.get_close_matches(_spelled(name), spelled, n=1, cutoff=0.6):
        return f"did you mean `{spelled[close[0]]}`?"
    return f"known are {', '.join(f'`{other}`' for other in names)}." if names else "none exist."


def _spelled(word: str) -> str:
    """Return a word as names are written here: LG-FedAvg is `lg_fedavg`."""
    return word.casefold().replace("-", "_").replace(" ", "_")


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its name if it has none."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
