"""The benchmark of Flower: what it makes of what it measures, without starting anything."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import flower

CLIENTS = 3


# -------------------- figures


def test_the_first_round_and_the_last_do_not_count() -> None:
    assert flower.figures([9.0, 3.0, 2.0, 4.0, 1.0], [10.0, 30.0, 34.0, 39.0, 42.0, 43.0]) == {
        "seconds_per_round": 2.0,
        "seconds_to_start": 7.0,
        "seconds_of_rounds": [3.0, 2.0, 4.0],
        "cpu_seconds_per_round": 3.0,
        "cpu_seconds_to_start": 17.0,
        "cpu_seconds_of_rounds": [4.0, 5.0, 3.0],
    }


def test_processes_are_counted_with_those_that_they_have_started() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); print(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            # The system counts in ticks of a hundredth of a second, and rounds each of four numbers down.
            assert 0.26 <= flower.processor_seconds([process.pid]) < 3
        finally:
            process.kill()
    assert flower.processor_seconds([process.pid]) == 0


# -------------------- parts


def settings(method: str = "fedavg", rounds: int = 2) -> list[str]:
    return [*flower.settings(method, CLIENTS, rounds), "training.epochs=1"]


def test_rounds_of_a_run_are_timed(tmp_path: Path) -> None:
    start = time.perf_counter()
    row = flower.timed(settings(), "sequential", tmp_path / "run")
    assert len(row["seconds_of_rounds"]) == len(row["cpu_seconds_of_rounds"]) == 2
    assert 0 < sum(row["seconds_of_rounds"]) < time.perf_counter() - start
    again = shutil.copytree(tmp_path / "run", tmp_path / "again") / "metrics.jsonl"
    again.write_text(json.dumps({**json.loads(again.read_text()), "seconds": 1e3}) + "\n")
    flower.check_same(tmp_path / "again", tmp_path / "run")
    flower.timed([*settings(), "seed=1"], "sequential", tmp_path / "other")
    with pytest.raises(RuntimeError, match=r"^other and run gave different numbers$"):
        flower.check_same(tmp_path / "other", tmp_path / "run")


class Stand:
    """Stands for a federation: its run is over when it begins, and carries a thousand bytes at each look."""

    def __init__(self, status: int) -> None:
        self.status, self.looks = status, 0

    @property
    def gate(self) -> Any:
        self.looks += 1
        return SimpleNamespace(crossings=[(b"0" * 400, b"0" * 600)] * self.looks)

    def alive(self) -> list[int]:
        return []

    def run(self, name: str, app: Path, config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        assert config["experiment"] == "digits"
        if not self.status:
            flower.timed(config["set"].split(), "sequential", Path(config["out"]))
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({self.status})"])

    def log(self, name: str) -> str:
        return f"what {name} said"


def test_a_deployment_is_watched_from_outside(tmp_path: Path) -> None:
    row = flower.deployed(cast(Any, Stand(0)), settings(), tmp_path / "run", 4)
    assert len(row["seconds_of_rounds"]) == 2
    # Two rounds with three messages, each with the 13,056 + 650 parameters there and back, and a count of samples.
    assert row["bytes_per_message"] == 2000 / 6
    assert row["client_cpu_seconds_per_message"] == 0
    assert row["array_bytes_per_message"] == 2 * 4 * (13_056 + 650) + 8
    with pytest.raises(RuntimeError, match=r"^what failed said$"):
        flower.deployed(cast(Any, Stand(1)), settings(), tmp_path / "failed", 4)


def test_a_message_is_weighed_against_the_ledger(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from fedmate.flower.messages import ErrorReply, write_reply

    rows = list(flower.measure_bytes(1, tmp_path))
    assert [(row["method"], row["message"]) for row in rows] == [
        (method, message) for method in ("fedavg", "fedmate") for message in ("request", "answer")
    ]
    for row in rows:
        assert row["array_bytes"] == sum(row["ledger"].values())
        assert 0 < row["more_bytes"] == row["message_bytes"] - row["array_bytes"] < 12_000
    # FedAvg: 106,400 parameters of the extractor and 1,290 of the classifier, and up with them a count of samples.
    assert [row["array_bytes"] for row in rows[:2]] == [4 * 107_690, 4 * 107_690 + 8]
    assert rows[2]["ledger"].keys() == {"extractor", "classifier", "prototypes", "bookkeeping"}
    with pytest.raises(RuntimeError, match=r"^a message has 0 bytes of arrays, and the ledger \{'extractor': 8\}$"):
        flower.weigh(write_reply(ErrorReply("nothing")), {"extractor": 8})
