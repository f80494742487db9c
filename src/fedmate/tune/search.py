"""A search: trials one after the other, each of them the same runs with other settings.

Optuna proposes the settings of a trial from the scores of those before it. It starts from a fixed seed and knows
nothing else, so the same search proposes the same settings again: runs that are finished are found in the store, and a
search that was interrupted goes on without a database.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

from fedmate.core.method import Method
from fedmate.errors import DivergedError, UserError
from fedmate.experiment.config import ConfigSource, Experiment, Values, nest, resolve
from fedmate.experiment.metrics_log import VIEWS
from fedmate.experiment.partitioning import split_samples
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.run import Observer
from fedmate.experiment.user_inputs import UserInputs
from fedmate.experiment.values import NONE
from fedmate.methods import METHODS
from fedmate.studies.records import Records
from fedmate.studies.run import Watcher, Work, run_all
from fedmate.studies.study import StudyMethod, StudyRun, StudySetting
from fedmate.tune.space import Dimension, space_of, spread, two_digits

if TYPE_CHECKING:
    from optuna import Study

TRIALS = 12
"""The budget of every method, unless the user has another for all."""

SHARES = (10.0, 70.0)
"""The settings of a trial where the partition is `share`: the two ends of the paper's tables."""

TEST = "balanced"
"""All classes count alike, as they do among the validation samples."""

SEEDS_FROM = 100
"""Seeds are this far above the experiment's, so that nothing is chosen on the very clients that are reported."""

SPREAD = 4
"""How many trials cover the ranges after the first one, before scores are looked at."""

PAUSE = 1.0
"""Seconds between two looks at a run that another process has."""


class Asked(NamedTuple):
    """What is asked of a search besides its experiment.

    Attributes:
        trials: how many settings are tried.
        shares: a run of each trial for each of these; the usual ones if there are none.
        seeds: a run of each trial for each seed.
        view: which models are scored; the method's headline if `None`.
    """

    trials: int = TRIALS
    shares: Sequence[float] = ()
    seeds: int = 1
    view: str | None = None


class Run(NamedTuple):
    """One of the runs of every trial: what it is called, and what is its of an experiment's file."""

    name: str
    values: Values


class Trial(NamedTuple):
    """Settings that were tried.

    Attributes:
        number: from 0; that one has the settings of the experiment itself.
        settings: what was tried, by `section.key`.
        runs: what its runs are called in the store.
        accuracies: what each of them came to, in percent; `None` if it diverged.
    """

    number: int
    settings: Mapping[str, float | None]
    runs: Sequence[str]
    accuracies: Sequence[float | None]

    @property
    def score(self) -> float | None:
        """The mean over its runs; `None`, which is worse than any, if one diverged."""
        finite = [accuracy for accuracy in self.accuracies if accuracy is not None]
        return statistics.fmean(finite) if len(finite) == len(self.accuracies) else None


@final
@dataclass(frozen=True)
class Search:
    """What is searched.

    Attributes:
        experiment: as it was declared.
        space: the settings that vary.
        runs: what each trial runs.
        trials: how many there are.
        view: which models are scored.
    """

    experiment: Experiment
    space: tuple[Dimension, ...]
    runs: tuple[Run, ...]
    trials: int
    view: str

    @classmethod
    def of(cls, request: Request, asked: Asked) -> Search:
        """Plan a search for the method that a request names, or raise `UserError`."""
        (experiment,) = compose(request)
        view = asked.view or METHODS[experiment.method.name].primary_view
        _check_view(experiment.method.name, view)
        runs = _runs(experiment, asked, _shares(request, experiment, asked.shares))
        search = cls(experiment, space_of(experiment), runs, asked.trials, view)
        for cell in search.cells(0, search.start):
            # What is wrong with the data is said before anything is run.
            split_samples(cell.experiment, request.inputs)
        return search

    @property
    def start(self) -> dict[str, float | None]:
        """The settings of the experiment itself."""
        return {dimension.key: dimension.own for dimension in self.space}

    def experiment_with(self, settings: Mapping[str, float | None]) -> Experiment:
        """Return the experiment with other settings."""
        return _over(self.experiment, [_layer(settings)])

    def cells(self, number: int, settings: Mapping[str, float | None]) -> list[StudyRun]:
        """Return the runs of a trial, each of them evaluated on validation samples, and once, at its end."""
        row = StudyMethod(f"trial {number}", f"trial {number}", self.view, {}, {})
        once = {"evaluate_on": "validation", "eval_every": self.experiment.general.rounds}
        cells = []
        for run in self.runs:
            experiment = _over(
                self.experiment, [_layer(settings), ConfigSource(run.name, run.values), ConfigSource("tuning", once)]
            )
            column = StudySetting(run.name, run.name, TEST, run.values)
            # A run of several seeds says in its name which it is.
            cells.append(StudyRun(row, column, 0, experiment))
        return cells


def run_trials(search: Search, store: Records, given: UserInputs, watcher: Watcher) -> Iterator[Trial]:
    """Yield the trials of a search as they are finished; runs that the store has are not run again."""
    from optuna.distributions import BaseDistribution, FloatDistribution

    study = _study(search)
    ranges: dict[str, BaseDistribution] = {
        one.key: FloatDistribution(one.low, one.high, log=True) for one in search.space
    }
    for number in range(search.trials):
        proposed = study.ask(ranges)
        settings = {key: two_digits(value) for key, value in proposed.params.items()} if number else search.start
        cells = search.cells(number, settings)
        _finish(Work(cells, store, given), watcher)
        names = [cell.name for cell in cells]
        trial = Trial(number, settings, names, [_accuracy(store, name, search.view) for name in names])
        study.tell(proposed, trial.score or 0.0)
        yield trial


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials from the best to the worst, of equals the earlier first; raise `DivergedError` if all diverged."""
    if all(trial.score is None for trial in trials):
        raise DivergedError("every trial diverged; lower `training.learning_rate`.")
    return sorted(trials, key=lambda trial: (-1.0 if trial.score is None else trial.score, -trial.number), reverse=True)


def check_optuna() -> None:
    """Raise `UserError` unless Optuna is installed."""
    if importlib.util.find_spec("optuna") is None:
        raise UserError("`fedmate tune` searches with Optuna, which is missing; run `pip install 'fedmate[tune]'`.")


def _study(search: Search) -> Study:
    """Return a study that begins with the experiment's own settings, and with some that cover the ranges."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=1 + SPREAD)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial({dimension.key: dimension.start for dimension in search.space})
    for number in range(SPREAD):
        study.enqueue_trial(spread(search.space, number))
    return study


def _check_view(method: str, view: str) -> None:
    """Refuse a view that a method cannot have; what those that it adds are called is known when it has run once."""
    if view not in VIEWS and METHODS[method].extra_views is Method.extra_views:
        known = ", ".join(f"`{one}`" for one in VIEWS)
        raise UserError(f"`--view` got `{view}`, which `{method}` does not have; name one of {known}.")


def _shares(request: Request, experiment: Experiment, asked: Sequence[float]) -> Sequence[float]:
    """Return the values of `partition.share` that each trial is run with; nothing if the partition has none."""
    is_share = experiment.partition.name == "share"
    if asked and not is_share:
        raise UserError(
            f"`--shares` is for the partition `share`, but `partition.name` is `{experiment.partition.name}`; leave it "
            "out."
        )
    if asked or not is_share:
        return asked
    layers = [layer for layer in (request.base, request.settings) if layer is not None]
    said = any("share" in layer.values.get("partition", {}) for layer in layers)
    return [experiment.partition.options["share"]] if said else SHARES


def _runs(experiment: Experiment, asked: Asked, shares: Sequence[float]) -> tuple[Run, ...]:
    first = experiment.general.seed + SEEDS_FROM
    runs = []
    for seed in range(first, first + asked.seeds):
        if not shares:
            runs.append(Run(f"seed {seed}", {"seed": seed}))
        for share in dict.fromkeys(shares):
            name = f"s = {share:g}" if asked.seeds == 1 else f"s = {share:g}, seed {seed}"
            runs.append(Run(name, {"seed": seed, "partition": {"share": share}}))
    return tuple(runs)


def _layer(settings: Mapping[str, float | None]) -> ConfigSource:
    return nest("the trial", [(key, NONE if value is None else value) for key, value in settings.items()])


def _over(experiment: Experiment, layers: Sequence[ConfigSource]) -> Experiment:
    return resolve([ConfigSource("the experiment", tomllib.loads(experiment.to_toml())), *layers])


def _finish(work: Work, watcher: Watcher) -> None:
    """Run the runs of a trial, and wait for those that another process has."""
    relay, waited = _Relay(watcher, work), False
    _check_views(work)
    while work.left():
        run_all(work, relay)
        if relay.failure is not None:
            raise UserError(relay.failure)
        left = [cell.key for cell in work.left()]
        if left and not waited:
            watcher.warned(f"Waiting for {', '.join(left)}, which another process runs.")
            waited = True
        if left:
            time.sleep(PAUSE)


def _check_views(work: Work) -> None:
    """Refuse a view that the runs that are finished do not have, before another is run for it."""
    for cell in work.runs:
        kept, view = work.records.find(cell.name), cell.method.view
        if kept is not None and kept.diverged_in is None and view not in kept.views:
            known = ", ".join(f"`{one}`" for one in kept.views)
            raise UserError(f"`--view` got `{view}`, which the method does not have; known are {known}.")


def _accuracy(store: Records, name: str, view: str) -> float | None:
    """Return what a run came to; `None` if it diverged."""
    kept = store.find(name)
    if kept is None:
        raise UserError(f"`{store.folder}` has lost `{name}` during the search; give the same command again.")
    return kept.accuracy(view, TEST)


@final
class _Relay(Watcher):
    """Passes everything on, remembers why a run could not be finished, and looks at each that could."""

    def __init__(self, watcher: Watcher, work: Work) -> None:
        self._watcher, self._work = watcher, work
        self.failure: str | None = None

    def started(self, cell: str) -> Observer:
        return self._watcher.started(cell)

    def ended(self, cell: str, seconds: float) -> None:
        self._watcher.ended(cell, seconds)
        _check_views(self._work)

    def failed(self, cell: str, sentence: str) -> None:
        self._watcher.failed(cell, sentence)
        self.failure = f"`{cell}` could not be run: {sentence}"

    def warned(self, sentence: str) -> None:
        self._watcher.warned(sentence)
