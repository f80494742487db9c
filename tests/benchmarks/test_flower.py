"""The benchmark of Flower: what it makes of what it measures, without starting anything."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

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
