"""A search: the experiment's own settings first, equal budgets, no test split, and nothing run twice."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from tests.studies.test_run import Listener

from fedmate.core.options import options_of
from fedmate.errors import DivergedError
from fedmate.experiment.config import load_file, parse_set
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.prepare import Request, compose
from fedmate.methods import METHODS
from fedmate.studies import tuning
from fedmate.studies.records import Records, RunSummary
from fedmate.studies.run import Work
from fedmate.studies.tuning import RANGES, Search, Trial, ranked, run_trials, save, space_of, spread

SETTINGS = (
    *("rounds=1", "validation_per_class=5", "backend=sequential", "training.epochs=2"),
    *("partition.clients=3", "partition.examples=20", "model.name=mlp", "model.width=16", "model.depth=1"),
)


def write_data(folder: Path, test_labels: int = 0) -> Path:
    """Write digits as a data set `mnist`; `test_labels` moves the labels of its test split, and nothing else."""
    images, labels = load_digits(return_X_y=True)
    x = np.pad(np.kron(images.reshape(-1, 8, 8), np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    x, y = (x * 15).astype(np.uint8)[:700], labels.astype(np.int64)[:700]
    folder.mkdir(exist_ok=True)
    np.savez(
        folder / "mnist.npz", train_x=x[:500], train_y=y[:500], test_x=x[500:], test_y=(y[500:] + test_labels) % 10
    )
    return folder


def request_of(method: str, folder: Path, *settings: str) -> Request:
    return Request(None, [method], "mnist", parse_set([*SETTINGS, *settings]), UserInputs(folder=folder))


class Stopper(Listener):
    """Stops the search at a run."""

    def __init__(self, stop_at: str) -> None:
        super().__init__()
        self._stop_at = stop_at

    def begun(self, run: str) -> None:
        if run == self._stop_at:
            raise KeyboardInterrupt


def searched(search: Search, data: Path, folder: Path) -> tuple[list[Trial], list[str]]:
    """Return the trials of a search, and the runs that were started for it."""
    listener = Listener()
    trials = list(run_trials(search, Records(folder, "s"), UserInputs(folder=data), listener))
    return trials, listener.taken


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


Done = tuple[Search, list[Trial], Records]


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A search to look at."""
    folder, search = tmp_path_factory.mktemp("records"), Search.of(request_of("fedrep", data), 3, (10.0, 70.0))
    trials, runs = searched(search, data, folder)
    assert runs == [f"s = {share}/trial {number}" for number, share in itertools.product(range(3), (10, 70))]
    return search, trials, Records(folder, "s")


def found(records: Records, name: str) -> RunSummary:
    return records.all()[name]


def test_trials_have_the_experiments_own_settings_and_then_others_inside_the_ranges(done: Done) -> None:
    search, trials, records = done
    assert trials[0].settings == {"training.learning_rate": 0.01, "method.classifier_learning_rate": 0.1}
    assert found(records, trials[0].runs[0]).config["method"] == {"name": "fedrep", **search.experiment.method.options}
    assert len({tuple(trial.settings.values()) for trial in trials}) == 3
    for trial in trials[1:]:
        for one in search.space:
            value = trial.settings[one.key]
            assert value is not None
            assert one.low <= value <= one.high
            assert value == float(f"{value:.2g}")
        config = found(records, trial.runs[1]).config
        assert config["training"]["learning_rate"] == trial.settings["training.learning_rate"]
        assert (config["partition"]["share"], config["seed"]) == (70, 100)
        assert (config["evaluate_on"], config["eval_every"]) == ("validation", config["rounds"])
    # A score is the mean over runs of the primary view on the balanced test.
    for trial in trials:
        figures = [found(records, name).summary["accuracy"]["pre"]["balanced"]["mean"] for name in trial.runs]
        assert trial.score == pytest.approx(sum(figures) / 2)
    assert len({trial.score for trial in trials}) > 1


def test_proposals_follow_the_scores(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run: the larger the learning rate, the better the score."""

    def accuracies(work: Work, view: str, watcher: Listener) -> list[float]:
        return [1000 * run.experiment.training.learning_rate for run in work.runs]

    monkeypatch.setattr(tuning, "_accuracies", accuracies)
    trials, _ = searched(Search.of(request_of("fedavg", data), 20, (10.0,)), data, tmp_path)
    tried = [trial.settings["training.learning_rate"] or 0.0 for trial in trials]
    assert np.median(tried[10:]) > 2 * np.median(tried[:10])
    assert tried[:5] == [0.01, 0.0045, 0.022, 0.003, 0.015], "as on record in `tuned.toml`'s searches"


def test_another_test_split_changes_nothing(data: Path, tmp_path: Path) -> None:
    other, request = write_data(tmp_path / "other", test_labels=1), request_of("fedavg", data, "evaluate_on=test")
    search = Search.of(request, 1, (10.0,))
    one, two = (searched(search, folder, tmp_path / folder.name)[0] for folder in (data, other))
    assert one[0].accuracies == two[0].accuracies


def test_a_search_that_was_stopped_continues_and_more_trials_extend_it(done: Done, data: Path, tmp_path: Path) -> None:
    search, whole, _ = done
    with pytest.raises(KeyboardInterrupt):
        list(run_trials(search, Records(tmp_path, "s"), UserInputs(folder=data), Stopper("s = 70/trial 1")))
    trials, runs = searched(search, data, tmp_path)
    assert runs == ["s = 70/trial 1", "s = 10/trial 2", "s = 70/trial 2"]
    assert trials == whole
    trials, runs = searched(Search.of(request_of("fedrep", data), 4, (10.0, 70.0)), data, tmp_path)
    assert runs == ["s = 10/trial 3", "s = 70/trial 3"]
    assert trials[:3] == whole


def test_the_best_is_first_and_a_trial_that_diverged_is_last() -> None:
    figures: Sequence[Sequence[float | None]] = ([50.0], [None], [70.0], [70.0], [0.0])
    trials = [Trial(number, {}, [], accuracies) for number, accuracies in enumerate(figures)]
    assert [trial.number for trial in ranked(trials)] == [2, 3, 0, 4, 1]
    assert Trial(0, {}, [], [80.0, None]).score is None
    with pytest.raises(DivergedError, match="every trial diverged"):
        ranked(trials[1:2])


@pytest.mark.parametrize("method", sorted(METHODS.names()))
def test_few_settings_are_searched_around_their_defaults_alike_for_all_methods(method: str) -> None:
    space, fedavg = (space_of(compose(Request(None, [one], "cifar10"))[0]) for one in (method, "fedavg"))
    keys = RANGES.get(method, {})
    assert [one.key for one in space] == ["training.learning_rate", *(f"method.{key}" for key in keys)]
    for key, ends in keys.items():
        limits = options_of(METHODS[method])[key].metadata["limits"]
        assert all(limits.allow(end) for end in ends)
    for one in space:
        assert one.low < one.start < one.high
        where = [math.log(spread(space, n)[one.key] / one.low) / math.log(one.high / one.low) for n in range(4)]
        assert 0 <= min(where) < 0.4 < 0.6 < max(where) <= 1
    for number in range(4):
        assert spread(space, number).items() >= spread(fedavg, number).items()


def test_the_best_is_saved_as_a_table_and_an_experiment(done: Done, data: Path, tmp_path: Path) -> None:
    search, trials, _ = done
    best = ranked(trials)[0]
    save(search, trials, tmp_path)
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in ranked(trials)]
    assert [row["score"] for row in rows] == [f"{trial.score:.2f}" for trial in ranked(trials)]
    assert float(rows[0]["training.learning_rate"]) == best.settings["training.learning_rate"]
    (again,) = compose(Request(load_file(tmp_path / "best.toml")))
    assert again == search.with_settings(best.settings)
    assert search.with_settings(trials[0].settings) == search.experiment
    about = (tmp_path / "best.toml").read_text()
    assert about.startswith(f"# {search.describe()}\n# Best: trial {best.number}, {best.score:.2f}; trial 0, ")
