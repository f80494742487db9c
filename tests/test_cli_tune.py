"""The command `tune`: its output, its files, and its errors."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from tests import test_cli
from tests.studies.test_tuning import SETTINGS, write_data
from tests.test_cli import Fedmate, lacking, refuse

from fedmate.cli.tune import tune
from fedmate.studies import tuning
from fedmate.studies.run import Watcher, Work, run_all

fedmate_ = test_cli.fedmate_


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small search of FedRep."""
    data = write_data(tmp_path_factory.mktemp("data"))
    settings = [word for assignment in SETTINGS for word in ("--set", assignment)]
    return ["tune", "fedrep", "--dataset", "mnist", "--data-dir", str(data), *settings, "--trials", "2"]


def test_a_search_prints_its_trials_and_saves_the_best(fedmate_: Fedmate, tmp_path: Path, words: list[str]) -> None:
    assert inspect.signature(tune).parameters["trials"].default == tuning.TRIALS
    answer = fedmate_(*words)
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].startswith("fedrep on mnist: 2 trials, each with 2 runs (s = 10; s = 70) of 1 rounds. Searched: ")
    scores = [re.fullmatch(r"trial \d: .*training.learning_rate [\d.]+.*: ([\d.]+) %", line) for line in lines]
    folder = tmp_path / "tuned" / "fedrep-mnist"
    assert {path.name for path in folder.iterdir()} >= {"best.toml", "records", "runs", "trials.csv"}
    best = max(float(found[1]) for found in scores if found)
    assert f", {best:.2f}; trial 0, " in (folder / "best.toml").read_text()
    again = fedmate_(*words)
    assert again.status == 0
    assert again.out.splitlines()[-8:] == lines[-8:]
    assert not any(re.match(r"\d+/4 ", line) for line in again.out.splitlines()), "nothing is run again"


def test_a_search_that_is_stopped_says_how_to_continue(
    fedmate_: Fedmate, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_all
    calls = list[int]()

    def stop(work: Work, watcher: Watcher) -> None:
        calls.append(len(work.left()))
        if len(calls) == 2:
            raise KeyboardInterrupt
        whole(work, watcher)

    monkeypatch.setattr(tuning, "run_all", stop)
    answer = fedmate_(*words)
    assert answer.status == 130
    assert answer.err == "Stopped after 1 of 2 trials; the same command continues.\n"
    assert fedmate_(*words).status == 0
    assert calls == [2, 2, 0, 2]


def test_where_everything_diverges_the_status_says_so(fedmate_: Fedmate, words: list[str]) -> None:
    answer = fedmate_(*words, "--set", "training.learning_rate=1e30", "--shares", "10")
    assert (answer.status, answer.err) == (3, "Error: every trial diverged; lower `training.learning_rate`.\n")


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["fedreb"], ["`method.name`", "`fedreb`", "`fedrep`"]),
        (["fedavg"], ["`digits`", "no test split of its own"]),
        (["fedavg", "--shares", "10;70"], ["`--shares`", "`10;70`", "`10,70`"]),
        (["fedavg", "--set", "training.learning_rate=0"], ["`training.learning_rate`", "above 0"]),
    ],
)
def test_mistakes_get_one_sentence(
    arguments: list[str], fragments: list[str], fedmate_: Fedmate, tmp_path: Path
) -> None:
    assert lacking(refuse(fedmate_, tmp_path, "tune", *arguments), fragments) == []


def test_a_view_that_the_method_lacks_is_refused_before_any_run(
    fedmate_: Fedmate, tmp_path: Path, words: list[str]
) -> None:
    error = refuse(fedmate_, tmp_path, *words, "--view", "classifier_tund")
    assert lacking(error, ["`--view`", "`classifier_tund`", "did you mean `classifier_tuned`"]) == []
    fedper = ["fedper" if word == "fedrep" else word for word in words]
    assert "which the method does not have" in refuse(fedmate_, tmp_path, *fedper, "--view", "global")


def test_folders_with_other_files_and_a_missing_optuna_are_refused(
    fedmate_: Fedmate, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine", encoding="utf-8")
    assert "`mine`, which holds other files" in refuse(fedmate_, tmp_path, *words, "--out", "mine")
    assert "which holds other files" in refuse(fedmate_, tmp_path, *words, "--out", "mine/notes.txt")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else find(name, *rest)
    )
    assert "`pip install 'fedmate[tune]'`" in refuse(fedmate_, tmp_path, *words)
