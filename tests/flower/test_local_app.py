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
from typing import Any

import pytest
from tests.flower.processes import MARK, wait_for, with_mark

import fedmate
from fedmate.experiment.record import Record
from fedmate.flower.environment import QUIET

APP = Path(__file__).parents[2] / "flower"
PORT = 39091
"""Where Flower's local SuperLink listens, and stays when a run has ended."""

CLIENTS = 20


def is_taken() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", PORT)) == 0


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of `flwr`; the processes that it leaves behind are ended."""
    pytest.importorskip("flwr")
    if is_taken():
        pytest.skip(f"port {PORT} is taken, by another local SuperLink perhaps")
    mark, path = secrets.token_hex(8), f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"FLWR_HOME": str(tmp_path / "home"), "FEDMATE_STATE": str(tmp_path / "states"), MARK: mark, "PATH": path}
    yield {**os.environ, **QUIET, **own}
    for number in with_mark(mark):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGTERM)
    wait_for(lambda: not with_mark(mark), 20, "everything has ended")
    assert not is_taken()


def flwr_run(environment: dict[str, str], folder: Path, *run_config: str) -> str:
    command = ["flwr", "run", str(APP), "local", "--stream", "--federation-config", f"num-supernodes={CLIENTS}"]
    done = subprocess.run(
        [*command, "--run-config", " ".join(run_config)],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    return done.stdout


def figures(record: Record) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in record.metrics]


@pytest.mark.flower
def test_the_app_gives_the_numbers_of_the_reference(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "record"
    settings = "rounds=2 device=cpu training.epochs=1"
    said = flwr_run(environment, tmp_path, f"set='{settings}'", f"out='{out}'")
    assert f"Record: {out}" in said, said
    assert "fedmate: round 2/2  accuracy" in said, said
    pairs = dict(setting.split("=") for setting in settings.split())
    changes = {**pairs, "rounds": 2, "training.epochs": 1, "backend": "sequential"}
    reference, record = fedmate.run(APP / "digits.toml", set=changes, out=tmp_path / "reference"), Record(out)
    assert figures(record) == figures(reference)
    assert record.rounds == reference.rounds
    assert len(record.clients) == CLIENTS
