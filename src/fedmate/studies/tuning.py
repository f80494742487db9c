"""Looks for the settings of a method on validation samples, with the same number of trials for every method.

Optuna proposes the settings of a trial from the scores of the trials before it. Its seed is fixed, so the same search
proposes the same settings: finished runs are found on record, and a search that was interrupted continues.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import torch

from fedmate import storage
from fedmate.core import make_key, select
from fedmate.core.options import NONE
from fedmate.errors import DivergedError, UserError, nearest
from fedmate.experiment.build import build
from fedmate.experiment.config import ConfigSource, nest, resolve
from fedmate.experiment.inputs import UserInputs, split_samples
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.run import initial_server
from fedmate.experiment.sections import Experiment, Values
from fedmate.methods import METHODS
from fedmate.report.tables import Table, to_csv
from fedmate.studies.records import Records
from fedmate.studies.run import Watcher, Work, run_all
from fedmate.studies.study import StudyMethod, StudyRun, StudySetting

if TYPE_CHECKING:
    from optuna import Study

TRIALS = 12
SHARES = (10.0, 70.0)
"""The runs of a trial where the partition is `share`: the two ends of the paper's tables."""

TEST = "balanced"
SEEDS_FROM = 100
"""Seeds are this far above the experiment's, so that tuning does not use the clients that are reported."""

SPREAD = 4
"""Trials that cover the ranges evenly after the first one, before scores count."""

LEARNING_RATE = "training.learning_rate"
FACTOR = 5.0
"""The learning rate is searched from the experiment's own divided by this to its product with this."""

RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "ditto": {"proximal_weight": (0.05, 5.0)},
    "fedbabu": {"tuning_learning_rate": (0.001, 0.1)},
    "fedfa": {"anchor_weight": (0.01, 1.0), "calibration_learning_rate": (1e-4, 1e-2)},
    "fedmate": {"classifier_learning_rate": (0.003, 0.3), "centre_weight": (0.1, 10.0), "fusion_weight": (0.1, 3.0)},
    "fedpac": {"classifier_learning_rate": (0.003, 0.3), "alignment_weight": (0.1, 10.0)},
    "fedproto": {"prototype_weight": (0.1, 10.0)},
    "fedprox": {"proximal_weight": (0.001, 1.0)},
    "fedrep": {"classifier_learning_rate": (0.003, 0.3)},
    "moon": {"contrastive_weight": (0.01, 5.0)},
    "scaffold": {"server_learning_rate": (0.3, 3.0)},
}
RANGES["fedmate_plus"] = RANGES["fedmate"]
"""Options by method and their ranges, on a logarithmic scale; other methods are tuned in their learning rate alone."""


class Dimension(NamedTuple):
    """A setting `section.key` that is searched; `start` is the experiment's `own` value as a number."""

    key: str
    own: float | None
    low: float
    high: float
    start: float


def space_of(experiment: Experiment) -> tuple[Dimension, ...]:
    """Return the settings that are searched for an experiment; an option that is 0 is off, and stays off."""
    rate = experiment.training.learning_rate
    if not rate:
        raise UserError(f"`{LEARNING_RATE}` is 0, and the search covers values around it; set it above 0.")
    found = [Dimension(LEARNING_RATE, rate, two_digits(rate / FACTOR), two_digits(rate * FACTOR), rate)]
    for key, (low, high) in RANGES.get(experiment.method.name, {}).items():
        own: float | None = experiment.method.options[key]
        # A learning rate that is not given is that of training.
        start = rate if own is None else own
        if start:
            found.append(Dimension(f"method.{key}", own, min(low, start), max(high, start), start))
    return tuple(found)


def spread(space: Sequence[Dimension], number: int) -> dict[str, float]:
    """Return a point of Halton's sequence: a few points cover the ranges more evenly than random ones.

    The learning rates are the same for all methods.
    """
    found = {}
    for one, base in zip(space, (2, 3, 5, 7), strict=False):
        # The sequence starts with its second point: the learning rate has the first, the middle, in trial 0.
        index, share, place = number + 2, 0.0, 1.0
        while index:
            index, digit = divmod(index, base)
            place /= base
            share += digit * place
        found[one.key] = min(max(two_digits(one.low * (one.high / one.low) ** share), one.low), one.high)
    return found


def two_digits(value: float) -> float:
    """Return a number with two digits: more would mean nothing, and would make another run."""
    return float(f"{value:.2g}")


class Trial(NamedTuple):
    """Settings that were tried, by `section.key`; trial 0 has those of the experiment itself.

    `runs` are the names of its runs on record, `accuracies` theirs in percent; `None` for one that diverged.
    """

    number: int
    settings: Mapping[str, float | None]
    runs: Sequence[str]
    accuracies: Sequence[float | None]

    @property
    def score(self) -> float | None:
        """The mean over its runs; `None` if one diverged."""
        finite = [accuracy for accuracy in self.accuracies if accuracy is not None]
        return statistics.fmean(finite) if len(finite) == len(self.accuracies) else None


@final
@dataclass(frozen=True)
class Search:
    """A search in a space of settings: each trial is run in all of `settings`, and scored in one view."""

    experiment: Experiment
    space: tuple[Dimension, ...]
    settings: tuple[StudySetting, ...]
    trials: int
    view: str

    @classmethod
    def of(
        cls, request: Request, trials: int = TRIALS, shares: Sequence[float] = (), seeds: int = 1, view: str = ""
    ) -> Search:
        """Plan a search for the method that a request names, or raise `UserError`."""
        if importlib.util.find_spec("optuna") is None:
            raise UserError("`fedmate tune` needs Optuna, which is missing; run `pip install 'fedmate[tune]'`.")
        (experiment,) = compose(request)
        settings = _settings(request, experiment, seeds, shares)
        primary = METHODS[experiment.method.name].primary_view
        search = cls(experiment, space_of(experiment), settings, trials, view or primary)
        runs = search.runs(0, search.start)
        for run in runs:
            # Mistakes in the data are reported before anything is run.
            split_samples(run.experiment, request.inputs)
        if view and view not in (known := views_of(runs[0].experiment, request.inputs)):
            raise UserError(f"`--view` got `{view}`, which the method does not have; {nearest(view, known)}")
        return search

    @property
    def start(self) -> dict[str, float | None]:
        """The settings of the experiment itself."""
        return {dimension.key: dimension.own for dimension in self.space}

    def with_settings(self, settings: Mapping[str, float | None], *further: ConfigSource) -> Experiment:
        """Return the experiment with other settings."""
        own = ConfigSource("the experiment", tomllib.loads(self.experiment.to_toml()))
        chosen = nest("the trial", [(key, NONE if value is None else value) for key, value in settings.items()])
        return resolve([own, chosen, *further])

    def runs(self, number: int, settings: Mapping[str, float | None]) -> list[StudyRun]:
        """Return the runs of a trial, each evaluated once, at its end, on validation samples."""
        method = StudyMethod(f"trial {number}", f"trial {number}", self.view, {}, {})
        once = {"evaluate_on": "validation", "eval_every": self.experiment.general.rounds}
        return [
            StudyRun(method, one, 0, self.with_settings(settings, ConfigSource(one.name, {**one.values, **once})))
            for one in self.settings
        ]

    def describe(self) -> str:
        """Return in a few sentences what the search does."""
        names, general = "; ".join(setting.name for setting in self.settings), self.experiment.general
        return (
            f"{self.experiment.method.name} on {self.experiment.dataset.name}: {self.trials} trials, each with "
            f"{len(self.settings)} run{'s' * (len(self.settings) > 1)} ({names}) of {general.rounds} rounds. "
            f"Searched: {', '.join(dimension.key for dimension in self.space)}. "
            f"Score: balanced accuracy of `{self.view}` on training samples that no client holds, "
            f"{general.validation_per_class} of each class; the test split is not used."
        )


def _settings(request: Request, experiment: Experiment, seeds: int, asked: Sequence[float]) -> tuple[StudySetting, ...]:
    """Return the seeds, and the values of `partition.share` if it has one, that each trial is run with."""
    partition, shares = experiment.partition, list[float | None](asked)
    if partition.name != "share" and asked:
        raise UserError(f"`--shares` needs the partition `share`, but `partition.name` is `{partition.name}`.")
    if not asked:
        sources = [source for source in (request.base, request.settings) if source is not None]
        is_set = any("share" in source.values.get("partition", {}) for source in sources)
        shares = [partition.options["share"]] if is_set else [*SHARES]
    if partition.name != "share":
        shares = [None]
    first, found = experiment.general.seed + SEEDS_FROM, []
    for seed, share in itertools.product(range(first, first + seeds), dict.fromkeys(shares)):
        words = [] if share is None else [f"s = {share:g}"]
        words += [f"seed {seed}"] if seeds > 1 or share is None else []
        values: Values = {"seed": seed} if share is None else {"seed": seed, "partition": {"share": share}}
        found.append(StudySetting(", ".join(words), ", ".join(words), TEST, values))
    return tuple(found)


def views_of(experiment: Experiment, inputs: UserInputs) -> list[str]:
    """Return the views that a method has, as its first client has them before round 1."""
    built = build(experiment, inputs)
    method, data, server = built.method, built.federation.clients[0], initial_server(built)
    message = select(method.download(server, torch.tensor(0, device=data.y.device)), method.wire(0).down)
    key = make_key(0, str(data.y.device))
    return [
        *("pre", "post", *["global"] * (method.global_params(server) is not None)),
        *method.extra_views(built.backend.clients[0], message, data, key),
    ]


# -------------------- trials


def run_trials(search: Search, records: Records, inputs: UserInputs, watcher: Watcher) -> Iterator[Trial]:
    """Yield the trials of a search as they are finished; runs on record are not run again."""
    from optuna.distributions import BaseDistribution, FloatDistribution

    study = _study(search)
    ranges: dict[str, BaseDistribution] = {d.key: FloatDistribution(d.low, d.high, log=True) for d in search.space}
    for number in range(search.trials):
        proposed = study.ask(ranges)
        settings = {key: two_digits(value) for key, value in proposed.params.items()} if number else search.start
        runs = search.runs(number, settings)
        accuracies = _accuracies(Work(runs, records, inputs), search.view, watcher)
        trial = Trial(number, settings, [run.name for run in runs], accuracies)
        study.tell(proposed, trial.score or 0.0)
        yield trial


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


def _accuracies(work: Work, view: str, watcher: Watcher) -> list[float | None]:
    """Run the runs of a trial and return their accuracies; `None` for one that diverged."""
    run_all(work, watcher)
    if left := work.left():
        raise UserError(f"`{left[0].label}` could not be run; the message above gives the reason.")
    finished = work.records.all()
    return [finished[run.name].accuracy(view, TEST) for run in work.runs]


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials from the best to the worst, or raise `DivergedError` if all diverged."""
    if all(trial.score is None for trial in trials):
        raise DivergedError(f"every trial diverged; lower `{LEARNING_RATE}`.")
    return sorted(trials, key=lambda trial: (trial.score is None, -(trial.score or 0.0), trial.number))


# -------------------- results


def table_of(search: Search, trials: Sequence[Trial]) -> Table:
    """Return the trials as a table, the best first."""
    head = ["trial", *search.start, *(setting.name for setting in search.settings), "score"]
    rows = [
        [str(trial.number), *map(as_text, trial.settings.values()), *map(_percent, (*trial.accuracies, trial.score))]
        for trial in ranked(trials)
    ]
    note = f"balanced accuracy of `{search.view}` on validation samples, in percent; score: the mean over the runs"
    title = f"{search.experiment.method.name} on {search.experiment.dataset.name}, {len(trials)} trials, the best first"
    return Table("trials", title, head, rows, [note], frozenset((0, column) for column in range(len(head))))


def save(search: Search, trials: Sequence[Trial], folder: Path) -> None:
    """Write `trials.csv`, and the best experiment as `best.toml`."""
    best, first = ranked(trials)[0], trials[0]
    scores = f"trial {best.number}, {_percent(best.score)}; trial 0, {_percent(first.score)}"
    about = f"# {search.describe()}\n# Best: {scores}.\n"
    storage.make_folder(folder)
    storage.replace(folder / "trials.csv", to_csv(table_of(search, trials)).encode())
    storage.replace(folder / "best.toml", f"{about}{search.with_settings(best.settings).to_toml()}".encode())


def as_text(value: float | None) -> str:
    """Return a setting as text."""
    return "none" if value is None else f"{value:g}"


def _percent(figure: float | None) -> str:
    return "diverged" if figure is None else f"{figure:.2f}"
