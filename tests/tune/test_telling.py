"""Progress of a search: what a terminal shows, and what a file gets."""

from __future__ import annotations

import io

from rich.console import Console

from fedmate.tune.search import Trial
from fedmate.tune.telling import Told

TRIALS = [
    Trial(0, {"training.learning_rate": 0.01, "method.tuning_learning_rate": None}, ["a"], [12.345]),
    Trial(1, {"training.learning_rate": 0.05, "method.tuning_learning_rate": 0.002}, ["b"], [None]),
]


def told(*, terminal: bool) -> str:
    file = io.StringIO()
    with Told(Console(file=file, force_terminal=terminal, width=200)) as teller:
        observer = teller.started("s = 10/trial 0")
        observer.round_done(3, None)
        observer.warned("clients are\nfew")
        observer.warned("clients are\nfew")
        for trial in TRIALS:
            teller.tried(trial, 12)
    return file.getvalue()


def test_a_line_for_each_trial_and_a_sentence_once() -> None:
    assert told(terminal=False).splitlines() == [
        "Note: clients are few",
        "trial 0 (1/12, the experiment's own): learning rate 0.01, tuning learning rate none: 12.35 %",
        "trial 1 (2/12): learning rate 0.05, tuning learning rate 0.002: diverged",
    ]


def test_a_terminal_shows_what_is_being_run() -> None:
    assert "s = 10/trial 0: round 3/0" in told(terminal=True)
    assert "s = 10" not in told(terminal=False)
