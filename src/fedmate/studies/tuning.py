"""Looks for the settings of a method on validation samples, with the same number of trials for every method.

Optuna proposes the settings of a trial from the scores of the trials before it. Its seed is fixed, so the same search
proposes the same settings: finished runs are found on record, and a search that was interrupted continues.
"""

from __future__ import annotations

import importlib.util
import shlex
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import tomli_w

from fedmate import storage
from fedmate.core.method import Method
from fedmate.core.options import NONE, options_of
from fedmate.data import DATASETS
from fedmate.errors import DivergedError, UserError
from fedmate.experiment.config import ConfigSource, nest, resolve
from fedmate.experiment.inputs import UserInputs, split_samples
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.record import VIEWS
from fedmate.experiment.sections import Experiment, Values
from fedmate.methods import METHODS
from fedmate.report.tables import Table, to_csv
from fedmate.studies.records import Records, command_of
from fedmate.studies.run import Watcher, Work, run_and_wait
from fedmate.studies.search_space import LEARNING_RATE, Dimension, space_of, spread, two_digits
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
        settings = _settings(experiment, seeds, _shares(request, experiment, shares))
        method = METHODS[experiment.method.name]
        view = view or method.primary_view
        if view not in VIEWS and method.extra_views is Method.extra_views:
            raise UserError(f"`--view` got `{view}`, which the method does not have; use one of {', '.join(VIEWS)}.")
        search = cls(experiment, space_of(experiment), settings, trials, view)
        for run in search.runs(0, search.start):
            # Mistakes in the data are reported before anything is run.
            split_samples(run.experiment, request.inputs)
        return search

    @property
    def start(self) -> dict[str, float | None]:
        """The settings of the experiment itself."""
        return {dimension.key: dimension.own for dimension in self.space}

    def with_settings(self, settings: Mapping[str, float | None], *further: ConfigSource) -> Experiment:
        """Return the experiment with other settings."""
        own = ConfigSource("the experiment", tomllib.loads(self.experiment.to_toml()))
        return resolve([own, _nested(settings), *further])

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


def _shares(request: Request, experiment: Experiment, asked: Sequence[float]) -> Sequence[float]:
    """Return the values of `partition.share` that each trial is run with; none if the partition has none."""
    partition = experiment.partition
    if partition.name != "share":
        if asked:
            raise UserError(f"`--shares` needs the partition `share`, but `partition.name` is `{partition.name}`.")
        return ()
    sources = [source for source in (request.base, request.settings) if source is not None]
    is_set = any("share" in source.values.get("partition", {}) for source in sources)
    return asked or ([partition.options["share"]] if is_set else SHARES)


def _settings(experiment: Experiment, seeds: int, shares: Sequence[float]) -> tuple[StudySetting, ...]:
    first, found = experiment.general.seed + SEEDS_FROM, []
    for seed in range(first, first + seeds):
        each: Sequence[float | None] = shares or [None]
        for share in dict.fromkeys(each):
            words = [] if share is None else [f"s = {share:g}"]
            words += [f"seed {seed}"] if seeds > 1 or share is None else []
            values: Values = {"seed": seed} if share is None else {"seed": seed, "partition": {"share": share}}
            found.append(StudySetting(", ".join(words), ", ".join(words), TEST, values))
    return tuple(found)


def _nested(settings: Mapping[str, float | None]) -> ConfigSource:
    return nest("the trial", [(key, NONE if value is None else value) for key, value in settings.items()])


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
    run_and_wait(work, watcher)
    found: list[float | None] = []
    for run in work.runs:
        one = work.records.find(run.name)
        if one is None:
            raise UserError(f"`{run.label}` could not be run; the message above gives the reason.")
        if one.diverged_in is None and view not in one.views:
            known = ", ".join(one.views)
            raise UserError(f"`--view` got `{view}`, which the method does not have; use one of {known}.")
        found.append(one.accuracy(view, TEST))
    return found


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


def save(search: Search, trials: Sequence[Trial], records: Records, folder: Path) -> str | None:
    """Write `trials.csv`, `best.toml` and `preset.toml`; return the preset if the data set can have one."""
    best = ranked(trials)[0]
    about = f"# Trial {best.number} of `{command(search)}`: {_percent(best.score)} % on validation samples."
    preset = preset_of(search, trials, records)
    files = {
        "trials.csv": to_csv(table_of(search, trials)),
        "best.toml": f"{about}\n{search.with_settings(best.settings).to_toml()}",
        **({} if preset is None else {"preset.toml": preset}),
    }
    storage.make_folder(folder)
    for name, text in files.items():
        storage.replace(folder / name, text.encode())
    return preset


def preset_of(search: Search, trials: Sequence[Trial], records: Records) -> str | None:
    """Return the best trial as an entry of `tuned.toml`; `None` for a data set whose name does not say what it is."""
    best, first, dataset = ranked(trials)[0], trials[0], search.experiment.dataset.name
    if dataset == "given" or "path" in options_of(DATASETS[dataset]):
        return None
    contents = [one.content for trial in trials for name in trial.runs if (one := records.find(name)) is not None]
    entry = {
        "date": max(content["date"] for content in contents),
        "commit": contents[-1]["environment"].get("commit"),
        "command": command(search),
        "trials": len(trials),
        "view": search.view,
        "score": float(_percent(best.score)),
        # Without it the defaults diverged.
        "default_score": None if first.score is None else float(_percent(first.score)),
        **_nested(best.settings).values,
    }
    known = {key: value for key, value in entry.items() if value is not None}
    return tomli_w.dumps({search.experiment.method.name: {dataset: known}})


def command(search: Search) -> str:
    """Return the command of a search."""
    experiment, settings = search.experiment, search.settings
    words = ["fedmate", "tune", experiment.method.name, "--dataset", experiment.dataset.name]
    words += shlex.split(command_of(tomllib.loads(experiment.to_toml())))[6:]
    shares = dict.fromkeys(f"{one.values['partition']['share']:g}" for one in settings if "partition" in one.values)
    seeds = {one.values["seed"] for one in settings}
    words += ["--shares", ",".join(shares)] if shares else []
    words += ["--seeds", str(len(seeds))] if len(seeds) > 1 else []
    words += ["--trials", str(search.trials)] if search.trials != TRIALS else []
    words += ["--view", search.view] if search.view != METHODS[experiment.method.name].primary_view else []
    return shlex.join(words)


def as_text(value: float | None) -> str:
    """Return a setting as text."""
    return "none" if value is None else f"{value:g}"


def _percent(figure: float | None) -> str:
    return "diverged" if figure is None else f"{figure:.2f}"
