"""The command `tune`: what it prints, writes, continues and refuses."""

from __future__ import annotations

import importlib.util
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import test_cli
from tests.test_cli import Fedmate, lacking, refuse
from tests.tune.small import SETTINGS, no_collection, write_data

from fedmate.cli.tune import MARK, tune
from fedmate.experiment import tuned
from fedmate.experiment.run import Observer
from fedmate.studies import run as study_run
from fedmate.studies.run import Work
from fedmate.studies.study import StudyRun
from fedmate.tune.search import TRIALS

fedmate_ = test_cli.fedmate_
_one_thread = test_cli._one_thread


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with no_collection():
        yield write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def words(data: Path) -> list[str]:
    """A small search of FedRep."""
    settings = [word for assignment in SETTINGS for word in ("--set", assignment)]
    return ["tune", "fedrep", "--dataset", "mnist", "--data-dir", str(data), *settings, "--trials", "2"]


def test_the_usual_budget_is_that_of_the_search() -> None:
    """The command says it without importing torch."""
    assert inspect.signature(tune).parameters["trials"].default == TRIALS


def test_a_search_prints_its_trials_and_saves_the_best(fedmate_: Fedmate, tmp_path: Path, words: list[str]) -> None:
    answer = fedmate_(*words)
    assert (answer.status, answer.err) == (0, "")
    assert "\x1b" not in answer.out
    lines = answer.out.splitlines()
    assert lines[0].startswith("fedrep on mnist: 2 trials, each of 2 runs (s = 10; s = 70) of 1 rounds. Searched: ")
    assert lines[0].endswith("5 of each class; the test split is not looked at.")
    notes = [line for line in lines if line.startswith("Note: ")]
    assert len(notes) == len({*notes}) > 0
    trials = [line for line in lines if line.startswith("trial ")][:2]
    assert re.fullmatch(
        r"trial 0 \(1/2, the experiment's own\): learning rate 0.01, classifier learning rate 0.1: [\d.]+ %", trials[0]
    )
    assert re.fullmatch(r"trial 1 \(2/2\): learning rate [\d.]+, classifier learning rate [\d.]+: [\d.]+ %", trials[1])
    folder = tmp_path / "tuned" / "fedrep-mnist"
    assert sorted(path.name for path in folder.iterdir()) == [
        MARK,
        "best.toml",
        "locks",
        "records",
        "runs",
        "trials.csv",
    ]
    assert len((folder / "records" / "tuning.jsonl").read_text().splitlines()) == 4
    entry = tomllib.loads("\n".join(lines[lines.index("[fedrep.mnist]") :]))["fedrep"]["mnist"]
    best = tomllib.loads((folder / "best.toml").read_text(encoding="utf-8"))
    assert best["training"]["learning_rate"] == entry["training"]["learning_rate"]
    assert entry["score"] == max(float(re.findall(r"([\d.]+) %$", line)[0]) for line in trials)


def test_what_is_found_becomes_a_preset_without_running_anything_again(
    fedmate_: Fedmate, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, shared = tmp_path / "mine.toml", ["--store", "shared", "--out", "found"]
    own.write_text("# Mine.\n\n[local.mnist]\ntraining = { learning_rate = 0.1 }\n", encoding="utf-8")
    first = fedmate_(*words, *shared)
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == [MARK, "best.toml", "trials.csv"]

    def run(work: Work, *arguments: object) -> None:
        raise AssertionError("nothing is left to run")

    monkeypatch.setattr(study_run, "_train", run)
    answer = fedmate_(*words, *shared, "--write", own)
    assert (answer.status, answer.err) == (0, "")
    text = own.read_text(encoding="utf-8")
    assert text.startswith("# Mine.\n\n[fedrep.mnist]\n")
    assert {*tomllib.loads(text)} == {"fedrep", "local"}
    shown = answer.out[answer.out.index("[fedrep.mnist]") :].strip()
    assert shown in text
    assert shown in first.out
    monkeypatch.setattr(tuned, "FILE", own)
    entry = tomllib.loads(text)["fedrep"]["mnist"]
    assert tuned.tuned_on("fedrep") == {"mnist": {key: entry[key] for key in ("training", "method")}}


def test_a_search_that_is_stopped_says_how_to_continue(
    fedmate_: Fedmate, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, begun = study_run._train, list[str]()

    def stop(work: Work, cell: StudyRun, observer: Observer) -> None:
        begun.append(cell.key)
        if len(begun) == 3:
            raise KeyboardInterrupt
        train(work, cell, observer)

    monkeypatch.setattr(study_run, "_train", stop)
    answer = fedmate_(*words)
    assert answer.status == 130
    assert answer.err == "Stopped after 1 of 2 trials; the same command continues.\n"
    assert fedmate_(*words).status == 0
    assert begun == ["s = 10/trial 0", "s = 70/trial 0", "s = 10/trial 1", "s = 10/trial 1", "s = 70/trial 1"]


def test_where_everything_diverges_the_status_says_so(fedmate_: Fedmate, words: list[str]) -> None:
    answer = fedmate_(*words, "--set", "training.learning_rate=1e30", "--shares", "10")
    assert answer.status == 3
    assert answer.err == "Error: every trial diverged; lower `training.learning_rate`.\n"


REFUSALS = {
    "unknown method": (["fedreb"], ["`method.name`", "`fedreb`", "`fedrep`"]),
    "data without a test split": (["fedavg"], ["`digits`", "no test split of its own"]),
    "shares that are no numbers": (["fedavg", "--shares", "10;70"], ["`--shares`", "`10;70`", "`10,70`"]),
    "a share out of range": (["fedavg", "--shares", "101"], ["`partition.share`", "101", "at most 100"]),
    "shares of another partition": (
        ["fedavg", "--shares", "10", "--set", "partition.name=iid"],
        ["`--shares`", "`iid`", "leave it out"],
    ),
    "no step": (["fedavg", "--set", "training.learning_rate=0"], ["`training.learning_rate`", "above 0"]),
    "a view that there is not": (["fedper", "--view", "nope"], ["`--view`", "`nope`", "`pre`, `post`, `global`"]),
    "method named twice": (["fedavg", "--set", "method.name=local"], ["`--set method.name`"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_makes_no_search_is_refused_in_a_sentence(case: str, fedmate_: Fedmate, tmp_path: Path) -> None:
    arguments, fragments = REFUSALS[case]
    assert lacking(refuse(fedmate_, tmp_path, "tune", *arguments), fragments) == []


def test_files_in_the_way_are_refused_before_anything_is_run(
    fedmate_: Fedmate, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "trials.csv").write_text("mine", encoding="utf-8")
    (tmp_path / "experiment.toml").write_text("rounds = 3\n", encoding="utf-8")
    assert "`mine`, which holds other things" in refuse(fedmate_, tmp_path, *words, "--out", "mine")
    assert "which is a file" in refuse(fedmate_, tmp_path, *words, "--out", "experiment.toml")
    assert "`--out` got `experiment.toml/a`, which cannot be used (Not a directory)" in refuse(
        fedmate_, tmp_path, *words, "--out", "experiment.toml/a"
    )
    assert "`rounds`, which is no entry" in refuse(fedmate_, tmp_path, *words, "--write", "experiment.toml")
    assert "does not exist" in refuse(fedmate_, tmp_path, *words, "--write", "no/mine.toml")


@pytest.mark.parametrize("names", [["best.toml"], ["best.toml", "trials.csv"], ["locks"], ["locks", "records", "runs"]])
def test_a_folder_of_somebodys_own_is_refused_before_anything_is_run(
    names: list[str], fedmate_: Fedmate, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "mine").mkdir()
    for name in names:
        (tmp_path / "mine" / name).write_text("# Mine.\nrounds = 3\n", encoding="utf-8")
    assert "`mine`, which holds other things" in refuse(fedmate_, tmp_path, *words, "--out", "mine")


def test_an_empty_folder_is_taken(fedmate_: Fedmate, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert fedmate_(*words, "--out", "empty", "--trials", "1", "--shares", "10").status == 0
    assert (tmp_path / "empty" / "best.toml").is_file()


def test_a_store_that_cannot_be_one_is_refused_before_anything_is_run(
    fedmate_: Fedmate, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "nowhere").symlink_to("nothing")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "records").write_text("mine", encoding="utf-8")
    assert "`--store` got `file`, which is a file; name a folder." in refuse(
        fedmate_, tmp_path, *words, "--store", "file"
    )
    for folder in ("file/below", "mine", "nowhere"):
        sentence = refuse(fedmate_, tmp_path, *words, "--store", folder)
        assert f"`--store` got `{folder}`, which cannot be used (" in sentence


def test_without_optuna_it_says_what_to_install(
    fedmate_: Fedmate, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else find(name, *rest)
    )
    assert "`pip install 'fedmate[tune]'`" in refuse(fedmate_, tmp_path, *words)


def test_fewer_trials_leave_the_better_one_and_say_so(fedmate_: Fedmate, tmp_path: Path, words: list[str]) -> None:
    fedmate_(*words, "--shares", "10")
    path = tmp_path / "tuned" / "fedrep-mnist" / "best.toml"
    better = re.sub(r": [\d.]+ %", ": 99.99 %", path.read_text(encoding="utf-8"), count=1)
    path.write_text(better, encoding="utf-8")
    answer = fedmate_(*words, "--shares", "10", "--trials", "1")
    assert answer.status == 0
    assert "Left: tuned/fedrep-mnist, where more trials found better. To run the best: fedmate run tuned/" in answer.out
    assert path.read_text(encoding="utf-8") == better


def test_no_preset_is_offered_for_a_name_of_any_data(
    fedmate_: Fedmate, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--write FILE" in fedmate_(*words, "--shares", "10", "--trials", "1").out
    monkeypatch.setattr("fedmate.tune.presets.may_have_presets", lambda dataset: dataset != "mnist")
    assert "--write" not in fedmate_(*words, "--shares", "10", "--trials", "1").out
