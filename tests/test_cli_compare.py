"""`fedmate compare` as a user meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.studies.small import STUDY
from typer.testing import CliRunner

from fedmate.cli import app
from fedmate.errors import UserError
from fedmate.studies.records import Records
from fedmate.studies.study import Choice, load_study

TEXT = STUDY.replace("[settings.s70]", '[settings.s70]\ndataset.name = "cinic10"\nstand_ins = [{ name = "cifar10" }]')


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


def call(*words: str | Path, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["compare", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def test_a_study_leaves_tables_and_is_not_run_twice(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = call(study, "--out", out)
    assert "`s70` is left out: " in text
    assert "Small: 2 runs, 0 finished." in text
    assert "2/2 s10/local: " in text
    assert "49.39" in (out / "tables" / "small" / "accuracy.md").read_text()
    records = (out / "records" / "small.jsonl").read_bytes()
    again = call(study, "--out", out)
    assert "Small: 2 runs, 2 finished." in again
    assert "1/2" not in again
    assert (out / "records" / "small.jsonl").read_bytes() == records
    shown = call(study, "--out", out, "--show")
    assert "FedAvg" in shown
    assert "paper" not in shown, "nothing of the paper appears in a user's study"


def test_quick_says_so_everywhere(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = call(study, "--out", out, "--quick", "--only", "*/local", "--seeds", "2")
    assert "`digits` stands in for `cinic10`" in text
    assert "4/4 s70/local, seed 1: " in text
    folder = out / "tables" / "small-quick"
    assert all("quick" in path.read_text() for path in folder.glob("*.md"))


def test_runs_of_another_folder_are_merged(study: Path, tmp_path: Path) -> None:
    call(study, "--out", tmp_path / "a")
    text = call(study, "--out", tmp_path / "b", "--merge", tmp_path / "a")
    assert "2 new runs, 0 known." in text
    assert "Small: 2 runs, 2 finished." in text


def test_a_run_that_fails_makes_the_status_1(study: Path, tmp_path: Path) -> None:
    study.write_text(f"{TEXT}[methods.impossible]\nmethod.name = 'local'\npartition.examples = 100000\n")
    text = call(study, "--out", tmp_path / "out", status=1)
    assert "s10/impossible: failed: " in text
    assert "not run, seed 0: impossible" in text


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no file": (["nowhere.toml"], "`nowhere.toml` does not exist"),
    "pattern": (["small.toml", "--only", "s10/fedav"], "did you mean `s10/fedavg`"),
    "merge": (["small.toml", "--merge", "nowhere"], "holds no records"),
    "a run": (["small.toml", "--out", "run"], "holds a run or a comparison"),
    "in a file": (["small.toml", "--out", "small.toml/x"], "is or lies in a file"),
    "nothing to show": (["small.toml", "--show"], "has no finished run of `small`"),
    "no data": (["small.toml", "--only", "s70/*"], "has nothing to run here"),
}


@pytest.mark.parametrize(("words", "phrase"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], phrase: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    with pytest.raises(UserError) as caught:
        call(*words)
    assert phrase in str(caught.value)


LONG = STUDY.replace("rounds = 2", "rounds = 100\ncheckpoint_every = 5")


def begin(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from fedmate.cli import main; main()", "compare", "small.toml", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def wait_for_rounds(folder: Path, number: int) -> None:
    """Wait until some runs have evaluated rounds."""
    end = time.monotonic() + 120
    while sum(path.stat().st_size > 0 for path in folder.glob("studies/runs/*/metrics.jsonl")) < number:
        assert time.monotonic() < end, "no run has begun"
        time.sleep(0.05)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_study_is_saved_and_continues(tmp_path: Path, jobs: str) -> None:
    (tmp_path / "small.toml").write_text(LONG)
    process = begin(tmp_path, "--jobs", jobs, "--only", "*/local")
    wait_for_rounds(tmp_path, int(jobs))
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Stopped. 0 of 2 runs are finished; the same command continues." in err
    reached = {path: len(path.read_text().splitlines()) for path in tmp_path.glob("studies/runs/*/metrics.jsonl")}
    process = begin(tmp_path, "--jobs", jobs, "--only", "*/local")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert all(count < 100 for count in reached.values())
    assert len(Records(tmp_path / "studies", "small").all()) == 2


@pytest.mark.kills
def test_killed_processes_lose_no_finished_run(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    for folder in (alone, shared):
        folder.mkdir()
        (folder / "small.toml").write_text(STUDY.replace("rounds = 2", "rounds = 10"))
    for number in (1, 2):
        processes = [begin(shared, "--jobs", "2"), begin(shared)]
        wait_for_rounds(shared, number)
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    for folder in (alone, shared):
        last = begin(folder)
        out, err = last.communicate(timeout=300)
        assert last.returncode == 0, out + err
    found = [
        {name: one.outcome() for name, one in Records(folder / "studies", "small").all().items()}
        for folder in (alone, shared)
    ]
    assert found[0] == found[1]
    assert found[0].keys() == {run.name for run in load_study(alone / "small.toml").runs(Choice())}
