"""Progress is a live bar on a terminal and plain lines anywhere else."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path

import pytest
from rich.console import Console

from fedmate.errors import NoteWarning
from fedmate.experiment.callback import RoundSummary, Run
from fedmate.progress import RunProgress


def four_rounds(done: int) -> Run:
    run = Run(Path("run"), done, ("global", "balanced"))
    vars(run)["config"] = {"rounds": 4, "method": {"name": "fedavg"}}
    return run


def piped() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=140, _environ={}), file


def terminal() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=100, force_terminal=True, _environ={"TERM": "xterm-256color"}), file


def test_a_run_that_goes_on_says_where_and_counts_only_its_own_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    console, file = piped()
    now = 100.0
    monkeypatch.setattr("fedmate.progress.time.perf_counter", lambda: now)
    lines = RunProgress(console)
    lines.run_started(four_rounds(2))
    now = 130.0
    lines.round_ended(RoundSummary(3, [], None, 12.345, {}))
    # Half a minute for the one round of this process, so as much for the one that is left.
    assert file.getvalue().splitlines() == [
        "fedavg: continuing after round 2/4",
        "fedavg: round 3/4  30 s left",
    ]


def test_a_display_chooses_by_its_console_and_says_each_note_once() -> None:
    for console, file in (piped(), terminal()):
        with RunProgress(console) as shown:
            shown.warn(["one [bold]", "two", "one [bold]"])
            shown.run_started(four_rounds(0))
            shown.round_ended(RoundSummary(4, [], {}, 50.0, {}))
        lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).splitlines()]
        assert [line for line in lines if line.startswith("Note")] == ["Note: one [bold]", "Note: two"]
        assert "50.00 %" in file.getvalue()


def test_a_display_without_a_console_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """What should be read is not lost: it is a warning."""
    with warnings.catch_warnings(record=True) as warned, RunProgress(None) as shown:
        warnings.simplefilter("always")
        shown.warn(["one", "one"])
        shown.run_started(four_rounds(1))
        shown.warned("two")
        shown.round_ended(RoundSummary(4, [], {}, 50.0, {}))
    assert [(one.category, str(one.message)) for one in warned] == [(NoteWarning, "one"), (NoteWarning, "two")]
    assert capsys.readouterr() == ("", "")
