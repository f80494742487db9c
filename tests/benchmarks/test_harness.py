"""Cases, suites, timing, processes, tables and the command."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.case import Case
from benchmarks.measure import FEWEST, WARM_UP, BackendRunner, Runner, Timing, ask, measure_case, time_rounds
from benchmarks.suites import SUITES, make_suite

from benchmarks import __main__ as command
from benchmarks import measure
from fedmate.errors import UserError

SMALL = Case(runner="sequential", network="digits_cnn", clients=2, samples=4, batch_size=2, epochs=1)


# -------------------- suites


@pytest.mark.parametrize("name", [*SUITES, "all"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cases_of_a_suite_differ_and_comparable_ones_stand_together(name: str, device: str) -> None:
    cases = make_suite(name, device)
    assert len({*cases}) == len(cases) > 0
    assert {(case.device, case.precision) for case in cases} == {(device, "strict" if device == "cpu" else "tf32")}
    works = [case.work for case in cases]
    assert sum(one != other for one, other in itertools.pairwise(works)) == len({*works}) - 1


# -------------------- timing


class Slow(Runner):
    """Takes the seconds it is given; the work is done when waited for."""

    name = "slow"

    def __init__(self, seconds: list[float]) -> None:
        super().__init__(SMALL)
        self.now, self.pending, self.seconds = 0.0, 0.0, seconds
        self.numbers: list[int] = []

    def run_round(self, number: int) -> None:
        self.numbers.append(number)
        self.pending += self.seconds[min(number, len(self.seconds) - 1)]

    def wait(self) -> None:
        self.now, self.pending = self.now + self.pending, 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 2 * self.now


@pytest.mark.parametrize(
    ("seconds", "repeat", "warm_up", "timed"),
    [
        ([5.0, 1.0, 1.0, 0.1, 0.3, 0.2], 3, WARM_UP, [100, 300, 200]),
        ([70.0], 9, 1, [70_000] * FEWEST),
    ],
)
def test_warm_up_does_not_count_and_long_rounds_are_fewer(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], repeat: int, warm_up: int, timed: list[float]
) -> None:
    slow = Slow(seconds)
    monkeypatch.setattr(measure, "time", slow)
    timing = time_rounds(SMALL, lambda case: slow, repeat)
    assert slow.numbers == list(range(warm_up + len(timed)))
    assert timing.cold_s == seconds[0]
    assert timing.rounds_ms == pytest.approx(timed)
    assert timing.cpu_ms == pytest.approx([2 * ms for ms in timed])


def test_auto_is_the_back_end_of_an_experiment() -> None:
    assert BackendRunner(replace(SMALL, runner="auto")).name == "vectorised"


# -------------------- processes


def test_a_case_is_measured_in_a_process_and_one_that_takes_too_long_is_ended() -> None:
    row = measure_case(SMALL, 2, 60.0)
    assert len(row["timing"]["rounds_ms"]) == len(row["timing"]["cpu_ms"]) == 2
    assert row["timing"]["peak_bytes"] > 10_000_000
    request = {"case": asdict(replace(SMALL, clients=1000, samples=1000)), "repeat": 1}
    assert ask(request, 0.1) == {"error": "took longer than 0.1 s"}


# -------------------- the command


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client takes a millisecond; a plain loop runs out of memory with 100."""

    def answer(request: dict[str, Any], limit: float) -> dict[str, Any]:
        case = request["case"]
        if case["runner"] == "plain_loop" and case["clients"] > 100:
            return {"error": "out of memory"}
        ms = float(case["clients"] if case["runner"] != "plain_loop" else 3 * case["clients"])
        return {"timing": asdict(Timing(case["runner"], 1.0, (ms, 1.5 * ms, ms), (2 * ms,), 2**20))}

    monkeypatch.setattr(measure, "ask", answer)


@pytest.mark.usefixtures("no_time")
def test_results_are_printed_written_shown_and_plotted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "r.json", tmp_path / "r.svg"
    words = "--suite clients --device cpu --method fedavg --backend sequential --backend plain_loop"
    command.run([*words.split(), "--out", str(out), "--plot", str(plot)])
    printed = capsys.readouterr()
    assert "1/8 fedavg, digits_cnn, 20 x 40: sequential, strict: 20 ms" in printed.err
    assert "method fedavg, network digits_cnn, samples 40" in printed.out
    assert "Not measured: fedavg, digits_cnn, 1000 x 40: plain_loop: out of memory." in printed.out
    line = next(line.split() for line in printed.out.splitlines() if line.split()[:2] == ["100", "sequential"])
    assert line[2:8] == ["100", "50", "%", "200,000", "200", "1.0"]
    assert line[-1] == "3.00", "times faster than the plain loop"
    assert all(label in plot.read_text() for label in ("samples each", "sequential", "plain_loop", ">1000<"))
    command.run(["--show", str(out), "--markdown"])
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == printed.out.splitlines()[0]
    assert "| clients | runner | ms/round |" in shown


@pytest.mark.usefixtures("no_time")
def test_results_stay_when_the_command_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = iter([measure_case(SMALL, 1, 1.0)])
    monkeypatch.setattr(command, "measure_case", lambda *_: next(rows))
    with pytest.raises(StopIteration):
        command.run(["--device", "cpu", "--out", str(tmp_path / "r.json")])
    assert len(json.loads((tmp_path / "r.json").read_bytes())["rows"]) == 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--suite clints", "`--suite` is `clints`; did you mean `clients`?"),
        ("--backend flowr", "`--backend` is `flowr`; did you mean `flower`?"),
        ("--set client=3", "`client` in --set is not an option of a case; did you mean `clients`?"),
        ("--set clients=0", "`clients` is 0"),
        ("--device cpu --precision bf16", "which is for GPUs"),
        ("--show none.json", "`none.json` cannot be read"),
        ("--out pyproject.toml", "exists already"),
    ],
)
def test_mistakes_get_one_sentence(words: str, found: str) -> None:
    with pytest.raises(UserError) as caught:
        command.run(words.split())
    assert found in str(caught.value)


def test_every_script_takes_help_as_a_question() -> None:
    """Read from the source: a script that imports torch takes seconds to answer."""
    root = Path(__file__).parents[2]
    for path in (*root.glob("benchmarks/*.py"), root / "paper" / "__main__.py"):
        text = path.read_text(encoding="utf-8")
        assert '__name__ == "__main__"' not in text or "ArgumentParser(" in text, path.name
