"""Processes of their own: what they answer, and what becomes of those that do not."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from fedmate.bench import run as running
from fedmate.bench import worker as working
from fedmate.bench.case import Case
from fedmate.bench.measure import Timing
from fedmate.bench.run import Bench
from fedmate.bench.worker import MARK, Worker, answer, explain, main
from fedmate.errors import UserError

SMALL = Case(runner="sequential", network="digits_cnn", clients=2, samples=4, batch_size=2, epochs=1)
TIMING = Timing("sequential", 1.0, 2.0, (3.0,), (4.0,), 5, 6)


def test_a_worker_answers_and_one_that_takes_too_long_is_ended() -> None:
    worker = Worker()
    try:
        found = worker.ask({"kind": "case", "case": asdict(SMALL), "repeat": 2}, limit=60)
        assert len(found["timing"]["rounds_ms"]) == 2
        assert found["work"]["operations"] > 0
        assert worker.is_alive
        long = asdict(replace(SMALL, clients=1000, samples=1000))
        assert worker.ask({"kind": "case", "case": long, "repeat": 1}, limit=0.1) == {"error": "took longer than 0.1 s"}
        assert not worker.is_alive
    finally:
        worker.close()


def test_a_worker_that_ends_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    worker = Worker()
    assert worker.ask({"kind": "roofline", "device": "cpu"}, limit=10) == {"error": "its process ended, status 1"}
    worker.close()


@pytest.mark.parametrize(("status", "words"), [(3, "status 3"), (-4, "signal SIGILL"), (-250, "signal 250")])
def test_how_a_process_ended(status: int, words: str) -> None:
    assert working._describe(status) == words


def test_tasks_are_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"kind": "case", "case": {"clients": 0}}\n'))
    main()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(MARK)]
    said = json.loads(line.removeprefix(MARK))
    assert said["error"] == "`clients` is 0; set it to a finite number at least 1."
    assert "UserError" in said["detail"]


def test_a_rival_that_cannot_says_why() -> None:
    case = replace(SMALL, runner="jax", method="local")
    said = answer({"kind": "case", "case": asdict(case), "repeat": 1})
    assert said["error"] in ("jax is not installed", "not written for local")
    assert "detail" not in said


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried ..."), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."), "out of memory"),
        (UserError("`x` is wrong; mend it."), "`x` is wrong; mend it."),
        (ValueError("first\nsecond"), "ValueError: first"),
    ],
)
def test_errors_in_few_words(error: Exception, words: str) -> None:
    assert explain(error) == words


class Fake:
    """A worker in this process."""

    made: list[Fake]

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.is_alive = True
        self.made.append(self)

    def ask(self, task: dict[str, Any], limit: float) -> dict[str, Any]:
        self.asked.append(task["case"]["clients"] if "case" in task else task["kind"])
        if task.get("case", {}).get("clients") == 13:
            return {"error": "unlucky", "detail": "13"}
        return {"timing": json.loads(json.dumps(asdict(TIMING))), "work": {"operations": 1, "bytes": 2}}

    def close(self) -> None:
        self.is_alive = False


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", [["roofline"], [2], [13], [5], [6]]), ("cuda", [["roofline", 2, 13], [5], [6], [7]])],
)
def test_who_shares_a_worker(monkeypatch: pytest.MonkeyPatch, device: str, expected: list[list[Any]]) -> None:
    """On a CPU nobody; on a GPU all that are not another framework, until one fails."""
    monkeypatch.setattr(running, "Worker", Fake)
    monkeypatch.setattr(Fake, "made", [], raising=False)
    cases = [replace(SMALL, device=device, clients=clients) for clients in (2, 13, 5)]
    cases += [replace(cases[0], clients=6, runner="jax"), replace(cases[0], clients=7, runner="plain_loop")]
    with Bench(1, 1.0) as bench:
        assert bench.roofline(device) is None
        rows = list(bench.measure(cases))
    if device == "cpu":
        expected = [*expected, [7]]
    assert [fake.asked for fake in Fake.made] == expected
    assert not any(fake.is_alive for fake in Fake.made)
    assert [row.timing for row in rows] == [TIMING, None, TIMING, TIMING, TIMING]
    assert (rows[1].error, rows[1].detail) == ("unlucky", "13")
