"""The command `bench`: what it prints, writes and refuses; nothing is timed here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests import test_cli
from tests.test_cli import Fedmate, refuse

from fedmate.bench.case import Case
from fedmate.bench.measure import Timing
from fedmate.bench.results import Row
from fedmate.bench.roofline import Roofline, Work
from fedmate.bench.run import Bench

fedmate_ = test_cli.fedmate_


@pytest.fixture(autouse=True)
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer at once: a client takes a millisecond; a plain loop runs out of memory with 100."""

    def measure(self: Bench, cases: Iterable[Case]) -> Iterator[Row]:
        for case in cases:
            if case.runner == "plain_loop" and case.clients >= 100:
                yield Row(case, error="out of memory", detail="Traceback")
            else:
                ms = float(case.clients * self._repeat)
                yield Row(case, Timing(case.runner, 1.0, 1.0, (ms,) * self._repeat, (ms,), 2**20, 0), Work(10**6, 1))

    monkeypatch.setattr(Bench, "measure", measure)
    monkeypatch.setattr(Bench, "roofline", lambda self, device: Roofline({"strict": 1e12}, 1e9))


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_table_for_this_machine(fedmate_: Fedmate, tmp_path: Path) -> None:
    answer = fedmate_("bench", "--device", "cpu", "--repeat", "2", "--backend", "auto", "--backend", "plain_loop")
    assert (answer.status, answer.err) == (0, "")
    assert "\x1b" not in answer.out
    assert "1/12 fedavg, digits_cnn, 20 x 40: auto, strict: 40 ms" in answer.out
    assert ["fedmate", "digits_cnn", "20", "40", "auto", "(auto)", "40"] in [row[:7] for row in rows(answer.out)]
    assert [*tmp_path.iterdir()] == []


def test_sizes_can_be_set(fedmate_: Fedmate) -> None:
    words = ("--set", "clients=7", "--set", "network=mlp", "--set", "samples=3", "--set", "augment=true")
    answer = fedmate_("bench", "--device", "cpu", "--method", "local", "--backend", "sequential", *words)
    assert "1/1 local, mlp, 7 x 3, augmented: sequential, strict: 35 ms" in answer.out


def test_a_case_that_fails_is_a_row_and_the_others_go_on(fedmate_: Fedmate) -> None:
    words = ("--backend", "plain_loop", "--backend", "sequential", "--method", "fedavg")
    answer = fedmate_("bench", "--suite", "clients", "--device", "cpu", *words)
    assert answer.status == 0
    assert ["1000", "plain_loop", "-"] in rows(answer.out)
    assert "Not measured: fedavg, digits_cnn, 1000 x 40: plain_loop: out of memory." in answer.out
    assert ["1000", "sequential", "5,000"] in [row[:3] for row in rows(answer.out)]


def test_when_nothing_could_be_measured_the_status_says_so(fedmate_: Fedmate) -> None:
    answer = fedmate_("bench", "--device", "cpu", "--backend", "plain_loop", "--set", "clients=100")
    assert answer.status == 1
    assert "out of memory" in answer.out


def test_a_file_can_be_shown_again(fedmate_: Fedmate, tmp_path: Path) -> None:
    words = ("--suite", "clients", "--device", "cpu", "--method", "fedavg", "--backend", "sequential")
    measured = fedmate_("bench", *words, "--out", "r.json", "--plot", "r.svg")
    assert measured.status == 0
    assert {path.name for path in tmp_path.iterdir()} == {"r.json", "r.svg"}
    assert len(json.loads((tmp_path / "r.json").read_bytes())["rows"]) == 4
    shown = fedmate_("bench", "--show", "r.json", "--plot", "again.svg")
    assert shown.status == 0
    table = measured.out.partition("fedmate ")[2].replace("r.svg", "again.svg")
    assert shown.out.endswith(table)
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "r.svg").read_bytes()
    assert "| clients | runner | ms/round |" in fedmate_("bench", "--show", "r.json", "--markdown").out


def test_what_was_measured_stays_when_it_is_stopped(
    fedmate_: Fedmate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Bench.measure

    def stopped(self: Bench, cases: Iterable[Case]) -> Iterator[Row]:
        found = whole(self, cases)
        yield next(found)
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "measure", stopped)
    answer = fedmate_("bench", "--device", "cpu", "--out", "r.json")
    assert (answer.status, answer.err) == (130, "Stopped.\n")
    assert len(json.loads((tmp_path / "r.json").read_bytes())["rows"]) == 1


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--suite", "clints"], "`--suite` is `clints`; did you mean `clients`?"),
        (["--backend", "flowr"], "`--backend` is `flowr`; did you mean `flower`?"),
        (["--device", "abacus"], "`device` is `abacus`"),
        (["--repeat", "0"], "`--repeat` is 0; set it between 1 and 10000."),
        (["--limit", "nan"], "`--limit` is nan; set it between 1 and 86400."),
        (["--set", "client=3"], "did you mean `clients`?"),
        (["--set", "device=cpu"], "`device` in --set is `cpu`; give it with `--device` instead."),
        (["--set", "runner=x"], "`runner` in --set is `x`; give it with `--backend` instead."),
        (["--set", "clients"], "`--set` got `clients`; write"),
        (["--plot", "x.svg"], "`--plot` draws speed against the number of clients"),
        (["--plot", "x.txt"], "`x.txt` ends in `.txt`"),
        (["--out", "none/x.json"], "`none/x.json` lies in the folder `none`, which does not exist"),
        (["--show", "none.json"], "`none.json` cannot be read (No such file or directory)"),
        (["--show", "x.json", "--out", "y.json"], "`--out` is given with `--show`"),
    ],
)
def test_mistakes_get_one_sentence(fedmate_: Fedmate, tmp_path: Path, arguments: list[str], found: str) -> None:
    assert found in refuse(fedmate_, tmp_path, "bench", *arguments)


def test_nothing_is_overwritten(fedmate_: Fedmate, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(b"mine")
    assert "`r.json` exists already" in refuse(fedmate_, tmp_path, "bench", "--out", "r.json")
