"""A study runs what is missing, once, whatever happens to single runs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.studies.small import study_of

from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.record import Record
from fedmate.studies import run
from fedmate.studies.records import Records
from fedmate.studies.run import Watcher, Work, run_all
from fedmate.studies.study import Choice, Study

FOUR = ["s10/fedavg", "s10/local", "s70/fedavg", "s70/local"]


class Listener(Watcher):
    def __init__(self) -> None:
        self.taken, self.done, self.problems = list[str](), list[str](), dict[str, str]()

    def begun(self, run: str) -> None:
        self.taken.append(run)

    def ended(self, run: str, problem: str) -> None:
        self.done.append(run)
        self.problems[run] = problem


def work_of(study: Study, folder: Path) -> Work:
    return Work(study.runs(Choice()), Records(folder / "out", "small"), UserInputs())


def test_each_run_is_run_once_and_never_again(tmp_path: Path) -> None:
    work, first, second = work_of(study_of(tmp_path), tmp_path), Listener(), Listener()
    assert [one.key for one in work.left()] == FOUR
    run_all(work, first)
    assert first.done == FOUR
    run_all(work, second)
    assert not second.taken
    name = work.runs[0].name
    found = work.records.all()[name]
    record = Record(work.records.run_folder(name))
    assert found.accuracy("pre", "own") == pytest.approx(record.accuracy("pre", "own"), abs=1e-3)
    assert found.views == ["pre", "post", "global", "classifier_tuned"]
    assert [point["round"] for point in found.content["curve"]] == [1, 2]
    assert [sum(client) for client in found.content["holdings"]] == [20, 20, 20]
    assert len(found.content["losses"]["before"]) == 2
    assert found.content["command"].startswith("fedmate run --dataset digits --method fedavg")


def test_an_error_of_the_program_is_one_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(run, "_train", break_down)
    listener = Listener()
    run_all(work_of(study_of(tmp_path), tmp_path), listener)
    assert listener.problems == dict.fromkeys(FOUR, "CUDA error: an illegal memory access")


def test_a_run_that_others_gave_up_is_taken(tmp_path: Path) -> None:
    """Another process has the first run at the start, and is stopped while we run the second."""
    work, other = work_of(study_of(tmp_path), tmp_path), ExitStack()
    other.enter_context(work.records.claim(work.runs[0].name))

    class Killer(Listener):
        def begun(self, run: str) -> None:
            other.close()

    listener = Killer()
    run_all(work, listener)
    assert not work.left()
    assert listener.done[-1] == work.runs[0].label
