"""Nothing is lost: runs that were killed and resumed leave the record of a run that nobody touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.kills,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and kills processes as Linux does"),
]

SHARES = 4


def kills(*words: str) -> dict[str, Any]:
    """Run the harness and return what it reports."""
    script = Path(__file__).with_name("kills.py")
    answer = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
    assert answer.stdout, answer.stderr
    report: dict[str, Any] = json.loads(answer.stdout)
    assert answer.returncode == bool(report["lost"])
    return report


@pytest.mark.parametrize("share", range(SHARES))
def test_killed_at_every_point_and_resumed_the_record_is_the_same(share: int) -> None:
    report = kills("points", "--share", f"{share}/{SHARES}")
    assert report["what_was_lost"] == []
    assert report["points"] >= 60
    assert {"open", "write", "fsync", "unlink"} <= set(report["by_operation"])


def test_every_kind_of_operation_is_among_the_points() -> None:
    names = {name: kills("points", "--only", name) for name in ("rename", "replace checkpoint.json.new", "truncate")}
    assert {name: report["what_was_lost"] for name, report in names.items()} == {name: [] for name in names}
    assert all(report["points"] >= 2 for report in names.values())


def test_killed_at_30_random_instants_and_resumed_the_record_is_the_same() -> None:
    report = kills("random", "--kills", "30")
    assert report["what_was_lost"] == []
    assert report["kills"] == 30


def test_a_checkpoint_that_is_overwritten_in_place_would_be_noticed() -> None:
    report = kills("points", "--sabotage", "--only", "write checkpoint.json")
    assert report["lost"] > 0
