"""A search: the experiment's own settings first, equal budgets, no test split, and nothing run twice."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tune.small import Listener, no_collection, request_of, searched, write_data

from fedmate.errors import DivergedError, UserError
from fedmate.experiment.run import Observer
from fedmate.methods import METHODS
from fedmate.storage import Lock
from fedmate.studies import run as study_run
from fedmate.studies.records import Records
from fedmate.studies.run import Watcher, Work
from fedmate.studies.study import StudyRun
from fedmate.tune import search as module
from fedmate.tune import space
from fedmate.tune.search import TRIALS, Asked, Search, Trial, ranked, run_trials

TWO = Asked(trials=2, shares=(10.0,))
THREE = Asked(trials=3, shares=(10.0, 70.0))


@pytest.fixture(autouse=True, scope="module")
def _no_collection() -> Iterator[None]:
    with no_collection():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Search, list[Trial], Records]:
    """A search to look at, all of it."""
    store = tmp_path_factory.mktemp("store")
    search, trials, listener = searched(request_of("fedrep", data), THREE, store)
    names = [f"s = {share}/trial {number}" for number, share in itertools.product(range(3), (10, 70))]
    assert listener.begun == names
    return search, trials, Records(store, "tuning")


# -------------------- what a trial is


def test_the_first_trial_has_the_experiments_own_settings(done: tuple[Search, list[Trial], Records]) -> None:
    search, trials, store = done
    assert trials[0].settings == {"training.learning_rate": 0.01, "method.classifier_learning_rate": 0.1}
    kept = store.find(trials[0].runs[0])
    assert kept is not None
    assert kept.config["method"] == {"name": "fedrep", **search.experiment.method.options}
    assert kept.config["training"]["learning_rate"] == search.experiment.training.learning_rate


def test_proposals_know_what_the_first_trial_was(data: Path) -> None:
    """Its score belongs to the experiment's own settings, and to no others."""
    search = Search.of(request_of("fedbabu", data), TWO)
    proposed = module._study(search).ask()
    ranges = {one.key: proposed.suggest_float(one.key, one.low, one.high, log=True) for one in search.space}
    assert ranges == {"training.learning_rate": 0.01, "method.tuning_learning_rate": 0.01}


def test_proposals_follow_the_scores(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run: the larger the learning rate, the better the score."""
    rates: dict[str, float] = {}

    def finish(work: Work, watcher: Watcher) -> None:
        rates.update({cell.name: cell.experiment.training.learning_rate for cell in work.runs})

    monkeypatch.setattr(module, "_finish", finish)
    monkeypatch.setattr(module, "_accuracy", lambda store, name, view: 1000 * rates[name])
    _, trials, _ = searched(request_of("fedavg", data), TWO._replace(trials=20), tmp_path)
    tried = [trial.settings["training.learning_rate"] or 0 for trial in trials]
    assert statistics.median(tried[10:]) > 2 * statistics.median(tried[:10])


def test_runs_are_evaluated_once(data: Path) -> None:
    search = Search.of(request_of("fedavg", data, ["rounds=30"]), TWO)
    assert [cell.experiment.general.eval_every for cell in search.cells(0, search.start)] == [30]


def test_a_step_size_that_is_not_given_is_not_given_in_the_first_trial(data: Path) -> None:
    search = Search.of(request_of("fedbabu", data), TWO)
    assert search.start["method.tuning_learning_rate"] is None
    (cell,) = search.cells(0, search.start)
    assert cell.experiment.method == search.experiment.method


def test_other_trials_have_other_settings_of_two_digits_inside_the_ranges(
    done: tuple[Search, list[Trial], Records],
) -> None:
    search, trials, store = done
    assert len({tuple(trial.settings.values()) for trial in trials}) == 3
    for trial in trials[1:]:
        for one in search.space:
            value = trial.settings[one.key]
            assert value is not None
            assert one.low <= value <= one.high
            assert value == float(f"{value:.2g}")
        kept = store.find(trial.runs[1])
        assert kept is not None
        assert kept.config["training"]["learning_rate"] == trial.settings["training.learning_rate"]
        assert kept.config["partition"]["share"] == 70


def test_a_score_is_the_mean_over_runs_of_the_headline_on_the_balanced_test(
    done: tuple[Search, list[Trial], Records],
) -> None:
    _, trials, store = done
    for trial in trials:
        kept = [store.find(name) for name in trial.runs]
        figures = [one.summary["accuracy"]["pre"]["balanced"]["mean"] for one in kept if one is not None]
        assert trial.score == pytest.approx(sum(figures) / 2)
    assert len({trial.score for trial in trials}) > 1


def test_another_view_can_be_scored(data: Path, tmp_path: Path) -> None:
    _, trials, _ = searched(request_of("fedrep", data), TWO._replace(view="post"), tmp_path)
    kept = Records(tmp_path, "tuning").find(trials[0].runs[0])
    assert kept is not None
    assert trials[0].score == kept.accuracy("post", "balanced") != kept.accuracy("pre", "balanced")
    with pytest.raises(
        UserError, match=r"^`--view` got `gobal`, which .*; known are `pre`, `post`, `classifier_tuned`"
    ):
        searched(request_of("fedrep", data), TWO._replace(view="gobal"), tmp_path)


def test_a_view_that_no_method_has_is_refused_before_anything_is_run(data: Path) -> None:
    with pytest.raises(
        UserError, match=r"^`--view` got `nope`, which `fedper` .*; name one of `pre`, `post`, `global`"
    ):
        Search.of(request_of("fedper", data), TWO._replace(view="nope"))


def test_a_view_that_a_method_might_have_had_is_refused_after_the_first_run(data: Path, tmp_path: Path) -> None:
    request, listener, store = request_of("fedrep", data), Listener(), Records(tmp_path, "tuning")
    search = Search.of(request, THREE._replace(view="nope"))
    for _ in range(2):
        with pytest.raises(UserError, match=r"^`--view` got `nope`, .*; known are `pre`, `post`, `classifier_tuned`"):
            next(run_trials(search, store, request.inputs, listener))
        # The second time, the first run is in the store, and says so itself.
        assert listener.begun == ["s = 10/trial 0"]


@pytest.mark.parametrize("method", ["local", "fedmate"])
def test_every_method_has_the_same_budget(method: str, data: Path) -> None:
    search = Search.of(request_of(method, data), Asked())
    assert search.trials == TRIALS == 12
    assert [run.name for run in search.runs] == ["s = 10", "s = 70"]
    assert search.view == METHODS[method].primary_view


# -------------------- on what


def test_the_test_split_is_never_looked_at(tmp_path: Path) -> None:
    """Another test split changes nothing, also where the experiment asks for it."""
    plain, other = write_data(tmp_path / "a"), write_data(tmp_path / "b", test_labels=1)
    settings = ["evaluate_on=test"]
    _, one, _ = searched(request_of("fedavg", plain, settings), TWO, tmp_path / "one")
    _, two, _ = searched(request_of("fedavg", other, settings), TWO, tmp_path / "two")
    assert [trial.accuracies for trial in one] == [trial.accuracies for trial in two]
    for trial in one:
        kept = Records(tmp_path / "one", "tuning").find(trial.runs[0])
        assert kept is not None
        assert kept.config["evaluate_on"] == "validation"


def test_the_other_test_split_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would find nothing."""
    cells = Search.cells

    def on_test(self: Search, number: int, settings: dict[str, float | None]) -> list[StudyRun]:
        return [
            StudyRun(cell.method, cell.setting, cell.seed, cell.experiment.with_general(evaluate_on="test"))
            for cell in cells(self, number, settings)
        ]

    monkeypatch.setattr(Search, "cells", on_test)
    plain, other = write_data(tmp_path / "a"), write_data(tmp_path / "b", test_labels=1)
    _, one, _ = searched(request_of("fedavg", plain), TWO._replace(trials=1), tmp_path / "one")
    _, two, _ = searched(request_of("fedavg", other), TWO._replace(trials=1), tmp_path / "two")
    assert one[0].accuracies != two[0].accuracies


def test_data_without_a_test_split_are_refused_before_anything_is_run(data: Path) -> None:
    request = request_of("fedavg", data)._replace(dataset="digits")
    with pytest.raises(UserError, match="`digits` has no test split of its own"):
        Search.of(request, TWO)


def test_seeds_are_other_than_those_of_the_experiment(data: Path) -> None:
    runs = Search.of(request_of("fedavg", data, ["seed=7"]), Asked(seeds=2)).runs
    assert [(run.name, run.values["seed"]) for run in runs] == [
        ("s = 10, seed 107", 107),
        ("s = 70, seed 107", 107),
        ("s = 10, seed 108", 108),
        ("s = 70, seed 108", 108),
    ]


def test_a_share_that_was_set_is_kept_and_another_partition_has_none(data: Path) -> None:
    (run,) = Search.of(request_of("fedavg", data, ["partition.share=30"]), Asked()).runs
    assert run.values["partition"] == {"share": 30}
    named = Search.of(request_of("fedavg", data, ["partition.share=30"]), Asked(shares=[20.0, 40.0, 20.0])).runs
    assert [run.name for run in named] == ["s = 20", "s = 40"]
    (run,) = Search.of(request_of("fedavg", data, ["partition.name=iid"]), Asked()).runs
    assert run == ("seed 100", {"seed": 100})
    with pytest.raises(UserError, match=r"^`--shares` is for the partition `share`, but .* `iid`; leave it out\.$"):
        Search.of(request_of("fedavg", data, ["partition.name=iid"]), THREE)


# -------------------- again, and beside others


class Impatient(Listener):
    """Stops the search when a run begins."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at

    def started(self, cell: str) -> Observer:
        if cell == self._at:
            raise KeyboardInterrupt
        return super().started(cell)


def test_a_search_that_was_stopped_goes_on_with_the_same_trials_and_runs_nothing_again(
    done: tuple[Search, list[Trial], Records], data: Path, tmp_path: Path
) -> None:
    search, whole, _ = done
    first, begun = Impatient("s = 70/trial 1"), list[Trial]()
    with pytest.raises(KeyboardInterrupt):
        begun.extend(run_trials(search, Records(tmp_path, "tuning"), request_of("fedrep", data).inputs, first))
    assert first.begun == ["s = 10/trial 0", "s = 70/trial 0", "s = 10/trial 1"]
    _, trials, second = searched(request_of("fedrep", data), THREE, tmp_path)
    assert second.begun == ["s = 70/trial 1", "s = 10/trial 2", "s = 70/trial 2"]
    assert trials == whole
    _, trials, third = searched(request_of("fedrep", data), THREE, tmp_path)
    assert (trials, third.begun) == (whole, [])


def test_more_trials_begin_with_the_same_ones(done: tuple[Search, list[Trial], Records], data: Path) -> None:
    _, whole, store = done
    _, trials, listener = searched(request_of("fedrep", data), THREE._replace(trials=4), store.folder)
    assert trials[:3] == whole
    assert listener.begun == ["s = 10/trial 3", "s = 70/trial 3"]


class Colleague(Listener):
    """Holds a run until somebody waits for it."""

    def __init__(self, lock: Lock) -> None:
        super().__init__()
        self._lock = lock

    def warned(self, sentence: str) -> None:
        super().warned(sentence)
        self._lock.__exit__(None, None, None)


def test_a_run_that_another_process_has_is_waited_for(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    request, store = request_of("fedavg", data), Records(tmp_path, "tuning")
    search = Search.of(request, Asked(trials=1))
    busy = search.cells(0, search.start)[0]
    listener = Colleague(store.claim(busy.name))
    (trial,) = run_trials(search, store, request.inputs, listener)
    assert listener.sentences == ["Waiting for s = 10/trial 0, which another process runs."]
    assert listener.begun == ["s = 70/trial 0", "s = 10/trial 0"]
    assert trial.score is not None


# -------------------- what goes wrong


def test_a_trial_that_diverges_is_the_worst_and_does_not_end_the_search(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "FACTOR", 1e30)
    _, trials, _ = searched(request_of("fedavg", data), TWO._replace(trials=5), tmp_path)
    diverged = {trial.number for trial in trials if trial.score is None}
    assert len(trials) == 5
    assert diverged
    assert 0 not in diverged
    order = [trial.number for trial in ranked(trials)]
    assert {*order[-len(diverged) :]} == diverged
    assert all((trials[number].settings["training.learning_rate"] or 0) > 1e3 for number in diverged)


def test_one_run_that_diverges_spoils_its_trial() -> None:
    assert Trial(1, {}, ["a", "b"], [90.0, None]).score is None
    assert Trial(1, {}, ["a", "b"], [90.0, 0.0]).score == 45


def test_of_equals_the_earlier_is_better() -> None:
    trials = [Trial(number, {}, [], [score]) for number, score in enumerate([3.0, None, 5.0, 5.0, 0.0])]
    assert [trial.number for trial in ranked(trials)] == [2, 3, 0, 4, 1]


def test_where_everything_diverges_nothing_is_found() -> None:
    with pytest.raises(DivergedError, match="every trial diverged"):
        ranked([Trial(0, {}, [], [None])])


def test_a_run_that_fails_ends_the_search_in_a_sentence(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(study_run, "_train", fail)
    with pytest.raises(UserError, match=r"^`s = 10/trial 0` could not be run: out of memory$"):
        searched(request_of("fedavg", data), TWO, tmp_path)
