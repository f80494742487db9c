"""Progress is a live bar on a terminal and plain lines anywhere else."""

from __future__ import annotations

import io
import re
import warnings

import pytest
from rich.console import Console

from fedmate.errors import NoteWarning
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import parse_set, resolve
from fedmate.progress import RunProgress


@pytest.fixture(scope="module")
def four_rounds() -> Built:
    return build(resolve([parse_set(["partition.clients=2", "rounds=4", "eval_every=2", "method.name=fedavg"])]))


def piped() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=140, _environ={}), file


def terminal() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=100, force_terminal=True, _environ={"TERM": "xterm-256color"}), file


def test_a_run_that_goes_on_says_where_and_counts_only_its_own_rounds(
    four_rounds: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    console, file = piped()
    now = 100.0
    monkeypatch.setattr("fedmate.progress.time.perf_counter", lambda: now)
    lines = RunProgress(console)
    lines.started(four_rounds, 2)
    now = 130.0
    lines.round_done(3, 12.345)
    # Half a minute for the one round of this process, so as much for the one that is left.
    assert file.getvalue().splitlines() == [
        "fedavg: continuing after round 2/4",
        "fedavg: round 3/4  30 s left",
    ]


def test_a_display_chooses_by_its_console_and_says_each_note_once(four_rounds: Built) -> None:
    for console, file in (piped(), terminal()):
        with RunProgress(console) as shown:
            shown.warn(["one [bold]", "two", "one [bold]"])
            shown.started(four_rounds, 0)
            shown.round_done(4, 50.0)
        lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).splitlines()]
        assert [line for line in lines if line.startswith("Note")] == ["Note: one [bold]", "Note: two"]
        assert "50.00 %" in file.getvalue()


def test_a_display_without_a_console_is_silent(four_rounds: Built, capsys: pytest.CaptureFixture[str]) -> None:
    """What should be read is not lost: it is a warning."""
    with warnings.catch_warnings(record=True) as warned, RunProgress(None) as shown:
        warnings.simplefilter("always")
        shown.warn(["one", "one"])
        shown.started(four_rounds, 1)
        shown.warned("two")
        shown.round_done(4, 50.0)
    assert [(one.category, str(one.message)) for one in warned] == [(NoteWarning, "one"), (NoteWarning, "two")]
    assert capsys.readouterr() == ("", "")
