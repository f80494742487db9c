"""The app as a user starts it: `flwr run . local` gives the record of the reference."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.flower.processes import MARK, wait_for, with_mark

import fedmate
from fedmate.experiment.record import Record
from fedmate.flower.environment import QUIET

APP = Path(__file__).parents[2] / "flower"
PORT = 39091
"""Where Flower's local SuperLink listens, and stays when a run has ended."""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of `flwr`; the processes that it leaves behind are ended."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"port {PORT} is taken, by another local SuperLink perhaps")
    mark, path = secrets.token_hex(8), f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"FLWR_HOME": str(tmp_path / "home"), "FEDMATE_STATE": str(tmp_path / "states"), MARK: mark, "PATH": path}
    yield {**os.environ, **QUIET, **own}
    for number in with_mark(mark):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGTERM)
    wait_for(lambda: not with_mark(mark), 20, "everything has ended")


@pytest.mark.flower
def test_the_app_gives_the_numbers_of_the_reference(environment: dict[str, str], tmp_path: Path) -> None:
    out, command = tmp_path / "record", ["flwr", "run", str(APP), "local", "--stream"]
    config = f"set='rounds=2 device=cpu training.epochs=1' out='{out}'"
    done = subprocess.run(
        [*command, "--federation-config", "num-supernodes=20", "--run-config", config],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert f"Record: {out}" in done.stdout, done.stdout
    assert "fedmate: round 2/2  accuracy" in done.stdout, done.stdout
    changes = {"rounds": 2, "device": "cpu", "training.epochs": 1, "backend": "sequential"}
    reference, record = fedmate.run(APP / "digits.toml", set=changes, out=tmp_path / "reference"), Record(out)
    assert [{**row, "seconds": 0} for row in record.metrics] == [{**row, "seconds": 0} for row in reference.metrics]
    assert record.rounds == reference.rounds
    assert len(record.clients) == 20
