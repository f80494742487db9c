"""What is made of a search: a table, an experiment, a preset with the command that finds it again."""

from __future__ import annotations

import csv
import dataclasses
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tune.small import no_collection, request_of, searched, write_data

from fedmate.experiment.config import ConfigSource, Experiment, load_file, parse_set, resolve
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.tuned import check_entries
from fedmate.studies.records import Records
from fedmate.tune.outcome import command, header, preset_of, save, sheet_of
from fedmate.tune.search import Asked, Search, Trial

KEYS = ("training.learning_rate", "method.classifier_learning_rate")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def search(data: Path) -> Search:
    return Search.of(request_of("fedrep", data, ["seed=3"]), Asked(trials=3))


def trial(number: int, *accuracies: float | None) -> Trial:
    return Trial(number, {KEYS[0]: 0.01 * (number + 1), KEYS[1]: 0.1}, ["a", "b"], accuracies)


@pytest.fixture
def trials() -> list[Trial]:
    return [trial(0, 10.0, 20.0), trial(1, 33.333, 50.0), trial(2, None, 99.0)]


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Search, list[Trial], Records]]:
    """A search that was made."""
    folder = tmp_path_factory.mktemp("store")
    with no_collection():
        search, trials, _ = searched(request_of("fedbabu", data), Asked(trials=2, shares=(10.0,)), folder)
        yield search, trials, Records(folder, "tuning")


def test_the_table_has_the_best_trial_first(search: Search, trials: list[Trial]) -> None:
    sheet = sheet_of(search, trials)
    assert sheet.title == "fedrep on mnist, 3 trials, the best first"
    assert sheet.head == ["trial", "learning rate", "classifier learning rate", "s = 10", "s = 70", "score"]
    assert sheet.rows == [
        ["1", "0.02", "0.1", "33.33", "50.00", "41.67"],
        ["0", "0.01", "0.1", "10.00", "20.00", "15.00"],
        ["2", "0.03", "0.1", "diverged", "99.00", "diverged"],
    ]
    assert sheet.bold == {(0, column) for column in range(6)}
    assert "`pre`" in sheet.notes[0]


def test_the_best_is_saved_as_the_experiment_that_was_declared(
    search: Search, trials: list[Trial], tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "b"
    save(search, trials, folder)
    with (folder / "trials.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["trial"] for row in rows] == ["1", "0", "2"]
    assert rows[0][KEYS[0]] == "0.02"
    text = (folder / "best.toml").read_text(encoding="utf-8")
    assert text.startswith("# Trial 1 of `fedmate tune fedrep --dataset mnist ")
    best, own = resolve([load_file(folder / "best.toml")]), search.experiment
    assert best.training.learning_rate == 0.02
    assert dataclasses.replace(best, training=own.training) == own
    assert (best.general.evaluate_on, best.general.seed) == ("test", 3)


def test_saving_again_replaces_what_was_saved(search: Search, trials: list[Trial], tmp_path: Path) -> None:
    assert save(search, trials[:1], tmp_path)
    assert save(search, trials, tmp_path)
    assert resolve([load_file(tmp_path / "best.toml")]).training.learning_rate == 0.02
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.toml", "trials.csv"]


def test_fewer_trials_of_a_search_do_not_replace_a_better_one(
    search: Search, trials: list[Trial], tmp_path: Path
) -> None:
    save(search, trials, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fewer = dataclasses.replace(search, trials=1)
    assert not save(fewer, trials[:1], tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    other = dataclasses.replace(fewer, view="post")
    assert save(other, trials[:1], tmp_path), "its scores are of something else"
    assert resolve([load_file(tmp_path / "best.toml")]).training.learning_rate == 0.01
    save(search, trials, tmp_path)
    worse = [trial._replace(accuracies=[1.0] * len(trial.accuracies)) for trial in trials]
    more = dataclasses.replace(search, trials=search.trials + 1)
    assert save(more, worse, tmp_path), "more trials found worse: something else has changed"
    assert not save(search, [trial._replace(accuracies=[0.5] * 2) for trial in trials], tmp_path)
    (tmp_path / "best.toml").write_text("# Mine.\n", encoding="utf-8")
    assert save(fewer, trials[:1], tmp_path)


def test_the_preset_stands_for_the_best_and_says_where_it_comes_from(made: tuple[Search, list[Trial], Records]) -> None:
    search, trials, store = made
    entry = tomllib.loads(preset_of(search, trials, store))["fedbabu"]["mnist"]
    best = max(trials, key=lambda one: one.score or 0)
    section, key = entry["training"], entry["method"]["tuning_learning_rate"]
    assert section == {"learning_rate": best.settings["training.learning_rate"]}
    assert key == (best.settings["method.tuning_learning_rate"] or "none")
    assert (entry["trials"], entry["view"], entry["command"]) == (2, "pre", command(search))
    assert entry["score"] == pytest.approx(best.score, abs=0.005)
    assert entry["default_score"] == pytest.approx(trials[0].score, abs=0.005)
    kept = store.find(best.runs[0])
    assert kept is not None
    assert (entry["date"], entry.get("commit")) == (kept.content["date"], kept.content["environment"]["commit"])


def test_the_experiments_own_settings_are_a_preset_too(made: tuple[Search, list[Trial], Records]) -> None:
    search, trials, store = made
    values = tomllib.loads(preset_of(search, [trials[0]._replace(accuracies=[99.0]), trials[1]], store))
    entry = check_entries("it", values)["fedbabu"]["mnist"]
    assert (entry["training"], entry["method"]) == ({"learning_rate": 0.01}, {"tuning_learning_rate": "none"})
    layer = {"dataset": {"name": "mnist"}, **{section: entry[section] for section in ("training", "method")}}
    layer["method"] = {"name": "fedbabu", **entry["method"]}
    assert resolve([ConfigSource("it", layer)]) == compose(Request(methods=["fedbabu"], dataset="mnist"))[0]


def test_defaults_that_diverged_have_no_score(made: tuple[Search, list[Trial], Records]) -> None:
    search, trials, store = made
    entry = tomllib.loads(preset_of(search, [trials[0]._replace(accuracies=[None]), trials[1]], store))
    assert "default_score" not in entry["fedbabu"]["mnist"]


@pytest.mark.parametrize(
    ("settings", "asked", "words"),
    [
        ([], Asked(), ["--shares", "10,70"]),
        (["partition.share=30"], Asked(trials=5), ["--shares", "30", "--trials", "5"]),
        (["seed=5"], Asked(shares=[20.0], seeds=2, view="post"), ["--shares", "20", "--seeds", "2", "--view", "post"]),
        (["partition.name=iid", "method.classifier_epochs=2"], Asked(), []),
    ],
)
def test_the_command_makes_the_same_search(settings: list[str], asked: Asked, words: list[str], data: Path) -> None:
    search = Search.of(request_of("fedrep", data, settings), asked)
    said = shlex.split(command(search))
    assert said[:5] == ["fedmate", "tune", "fedrep", "--dataset", "mnist"]
    assignments, rest = list[str](), said[5:]
    while rest[:1] == ["--set"]:
        assignments, rest = [*assignments, rest[1]], rest[2:]
    assert rest == words
    again = Request(None, ["fedrep"], "mnist", parse_set(assignments), request_of("fedrep", data).inputs)
    shares = [float(share) for share in rest[1].split(",")] if "--shares" in rest else ()
    assert Search.of(again, asked._replace(shares=shares)) == search


def test_names_that_toml_would_take_for_something_else_are_quoted() -> None:
    assert header("fedmate", "cifar10") == "[fedmate.cifar10]"
    assert header("my-method", "cifar10") == "[my-method.cifar10]"
    assert tomllib.loads(header('a.b"c', "ü ü")) == {'a.b"c': {"ü ü": {}}}


def test_an_experiment_is_what_it_was(made: tuple[Search, list[Trial], Records]) -> None:
    """What a trial has beside its settings is for its runs, not for the experiment that is found."""
    search, trials, _ = made
    found: Experiment = search.experiment_with(trials[0].settings)
    assert found == search.experiment
