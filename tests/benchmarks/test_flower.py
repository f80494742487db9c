"""The benchmark of Flower: what it makes of what it measures, without starting anything."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fedmate.flower import environment

FILE = Path(__file__).parents[2] / "benchmarks" / "flower.py"
CLIENTS = 3


@pytest.fixture(scope="module")
def flower() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmarks_flower", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -------------------- figures


def test_the_first_round_and_the_last_do_not_count(flower: ModuleType) -> None:
    assert flower.figures([9.0, 3.0, 2.0, 4.0, 1.0], [10.0, 30.0, 34.0, 39.0, 42.0, 43.0]) == {
        "seconds_per_round": 2.0,
        "seconds_to_start": 7.0,
        "seconds_of_rounds": [3.0, 2.0, 4.0],
        "cpu_seconds_per_round": 3.0,
        "cpu_seconds_to_start": 17.0,
        "cpu_seconds_of_rounds": [4.0, 5.0, 3.0],
    }


def test_what_a_round_takes_more_is_shared_out(flower: ModuleType) -> None:
    row = {"seconds_per_round": 8.0, "cpu_seconds_per_round": 5.0}
    base = {"seconds_per_round": 2.0, "cpu_seconds_per_round": 1.0}
    assert flower.per_message(row, base, 4) == {"more_seconds_per_message": 1.5, "more_cpu_seconds_per_message": 1.0}


def test_a_table_leaves_out_what_is_a_list(flower: ModuleType) -> None:
    rows = [{"method": "fedavg", "a_few": 1.23456, "rounds": [1.0], "sequential": {}, "bytes": 1234567}]
    assert flower.table(rows).splitlines() == [
        "| method | a few | bytes |",
        "| --- | --- | --- |",
        "| fedavg | 1.235 | 1234567 |",
    ]


def test_processes_are_counted_with_those_that_they_have_started(flower: ModuleType) -> None:
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


def settings(flower: ModuleType, method: str = "fedavg", rounds: int = 2) -> list[str]:
    return [*flower.settings(method, CLIENTS, rounds), "training.epochs=1"]


def test_rounds_of_a_run_are_timed(flower: ModuleType, tmp_path: Path) -> None:
    start = time.perf_counter()
    row = flower.timed(settings(flower), "sequential", tmp_path / "run")
    assert len(row["seconds_of_rounds"]) == len(row["cpu_seconds_of_rounds"]) == 2
    assert 0 < sum(row["seconds_of_rounds"]) < time.perf_counter() - start
    again = shutil.copytree(tmp_path / "run", tmp_path / "again") / "metrics.jsonl"
    again.write_text(json.dumps({**json.loads(again.read_text()), "seconds": 1e3}) + "\n")
    flower.check_same(tmp_path / "again", tmp_path / "run")
    flower.timed([*settings(flower), "seed=1"], "sequential", tmp_path / "other")
    with pytest.raises(RuntimeError, match=r"^other and run gave different numbers$"):
        flower.check_same(tmp_path / "other", tmp_path / "run")


def test_a_simulation_is_held_against_the_reference(
    flower: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"sequential": 0.5, "flower": 2.5}
    compared = list[tuple[str, str]]()

    def timed(changes: Sequence[str], backend: str, folder: Path) -> dict[str, float]:
        assert folder == tmp_path / f"{changes[0].removeprefix('method.name=')}-{backend}"
        return {"seconds_per_round": seconds[backend], "cpu_seconds_per_round": 2 * seconds[backend]}

    monkeypatch.setattr(flower, "timed", timed)
    monkeypatch.setattr(flower, "check_same", lambda found, other: compared.append((found.name, other.name)))
    rows = list(flower.measure_simulation(1, tmp_path))
    assert [(row["back_end"], row["method"]) for row in rows] == [
        (backend, method) for backend in seconds for method in ("fedavg", "fedmate")
    ]
    assert compared[2:] == [("fedavg-flower", "fedavg-sequential"), ("fedmate-flower", "fedmate-sequential")]
    assert [row["more_seconds_per_message"] for row in rows] == [0, 0, 0.1, 0.1]
    assert [row["more_cpu_seconds_per_message"] for row in rows] == [0, 0, 0.2, 0.2]


class Stand:
    """Stands for a federation: its run is over when it begins, and carries a thousand bytes at each look."""

    def __init__(self, flower: ModuleType, status: int) -> None:
        self.flower, self.status, self.looks = flower, status, 0

    @property
    def gate(self) -> Any:
        self.looks += 1
        return SimpleNamespace(crossings=[SimpleNamespace(request=b"0" * 400, response=b"0" * 600)] * self.looks)

    def alive(self) -> list[int]:
        return []

    def run(self, name: str, app: Path, config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        assert config["experiment"] == "digits"
        if not self.status:
            self.flower.timed(config["set"].split(), "sequential", Path(config["out"]))
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({self.status})"])

    def log(self, name: str) -> str:
        return f"what {name} said"


def test_a_deployment_is_watched_from_outside(flower: ModuleType, tmp_path: Path) -> None:
    row = flower.deployed(Stand(flower, 0), settings(flower), tmp_path / "run", 4)
    assert len(row["seconds_of_rounds"]) == 2
    # Two rounds with three messages, each with the 13,056 + 650 parameters there and back, and a count of samples.
    assert row["bytes_per_message"] == 2000 / 6
    assert row["client_cpu_seconds_per_message"] == 0
    assert row["array_bytes_per_message"] == 2 * 4 * (13_056 + 650) + 8
    with pytest.raises(RuntimeError, match=r"^what failed said$"):
        flower.deployed(Stand(flower, 1), settings(flower), tmp_path / "failed", 4)


def test_a_message_is_weighed_against_the_ledger(flower: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    from fedmate.flower.messages import ErrorReply
    from fedmate.flower.wire import write_answer

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
        flower.weigh(write_answer(ErrorReply("nothing")), {"extractor": 8})


# -------------------- the command


def said(flower: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Return what the command complains of."""
    monkeypatch.setattr(sys, "argv", ["flower", *words])
    monkeypatch.setattr(flower.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as caught:
        flower.main()
    return str(caught.value)


def test_what_cannot_be_done_is_said_before_anything_is_measured(
    flower: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "PARTS", dict.fromkeys(flower.PARTS))
    (tmp_path / "kept.json").write_text("mine")
    found = said(flower, monkeypatch, "--parts", "bytes,simluation")
    assert found == "Error: `--parts` has `simluation`, which is no part; did you mean `simulation`?"
    assert said(flower, monkeypatch, "--rounds", "0") == (
        "Error: `--rounds` is 0; give how many are to count, at least 1."
    )
    found = said(flower, monkeypatch, "--out", str(tmp_path / "kept.json"))
    assert found == f"Error: `{tmp_path / 'kept.json'}` exists already; give `--out` another name."
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    assert said(flower, monkeypatch).endswith(
        "the package `flwr`, which is missing; run `pip install 'fedmate[flower]'`."
    )


def test_parts_are_printed_and_kept(
    flower: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    monkeypatch.setitem(flower.PARTS, "bytes", lambda rounds, folder: [{"method": "fedavg", "of_rounds": [rounds]}])
    flower.measure(["bytes"], 7, tmp_path / "new.json")
    assert capsys.readouterr().out == "bytes\n\n| method |\n| --- |\n| fedavg |\n\n"
    kept = json.loads((tmp_path / "new.json").read_bytes())
    assert kept["bytes"] == [{"method": "fedavg", "of_rounds": [7]}]
    assert kept["about"]["repeat"] == 7
    assert kept["about"]["hardware"]["cores"] >= 1
