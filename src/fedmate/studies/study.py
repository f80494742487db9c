"""A study: methods x settings x seeds, each of which is a run.

A study is read from a TOML file:

title = "..."                  the title of its tables
source = "..."                 where the published figures are from, if there are any
test = "balanced"              the test that is compared, or "own"; a setting may have another
reference = "KEY"              the method that the others are compared with, seed by seed
[base], [quick]                options of all runs, as in an experiment's file; those that `--quick` puts on top
[settings.KEY]                 `name`, `test`, and options of the experiment
    stand_ins = [{name = ...}]     data sets for `[dataset]`: the first one at hand is used where its own is missing
[methods.KEY]                  `name`, `view` (which models are compared), and options of the experiment
    published = {KEY = 49.39}      published figures by setting, if there are any
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, final

from fedmate.core.options import options_of
from fedmate.data import DATASETS
from fedmate.data.sources import data_folder
from fedmate.errors import UserError, closest
from fedmate.experiment.config import DEFAULT_NAMES, ConfigSource, Experiment, Values, resolve
from fedmate.experiment.tuned import TUNED, tuned_on
from fedmate.methods import METHODS
from fedmate.studies.records import run_name

TESTS = ("balanced", "own")
DIGITS: Values = {"name": "digits"}
"""The data set that `--quick` uses where another one is missing: it comes with scikit-learn."""


@final
@dataclass(frozen=True)
class StudySetting:
    """Options that every method is run with.

    Attributes:
        stands_in_for: the name of the data set that is missing; `None` if its own is used.
    """

    key: str
    name: str
    test: str
    values: Values
    stand_ins: tuple[Values, ...] = ()
    stands_in_for: str | None = None

    @property
    def dataset(self) -> Values:
        """The options of its data set that it gives."""
        return dict(DIGITS | self.values.get("dataset", {}))

    @property
    def data(self) -> str:
        """Its data set in words: the name, and the options that it gives."""
        options = ", ".join(f"{key} = {value}" for key, value in self.dataset.items() if key != "name")
        return f"{self.dataset['name']} ({options})" if options else str(self.dataset["name"])

    @property
    def label(self) -> str:
        """Its name, and the data set that was used if that is another one."""
        return self.name if self.stands_in_for is None else f"{self.name} (run with {self.data})"

    def candidates(self, *, quick: bool) -> Iterator[StudySetting]:
        """Yield the setting itself, and with each data set that may stand in."""
        yield self
        for stand_in in (*self.stand_ins, *([DIGITS] if quick else [])):
            values, missing = {**self.values, "dataset": dict(stand_in)}, str(self.dataset["name"])
            # Digits have no test split of their own, and so no samples that no client holds to validate on.
            values |= {"evaluate_on": "test"} if stand_in["name"] == DIGITS["name"] else {}
            yield replace(self, values=values, stands_in_for=missing)


@final
@dataclass(frozen=True)
class StudyMethod:
    """A method with options of its own.

    Attributes:
        view: which models are compared.
        published: published figures by the key of a setting.
    """

    key: str
    name: str
    view: str
    values: Values
    published: Mapping[str, float]


class Choice(NamedTuple):
    """Which runs of a study are wanted.

    Attributes:
        seeds: how many, from 0.
        tuned: whether methods have their preset `tuned`.
        quick: whether the runs are cut short.
        only: patterns of `SETTING/METHOD`; all runs if there are none.
    """

    seeds: int = 1
    tuned: bool = False
    quick: bool = False
    only: Sequence[str] = ()


@final
@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    method: StudyMethod
    setting: StudySetting
    seed: int
    experiment: Experiment

    @property
    def key(self) -> str:
        """The name that `--only` has for it."""
        return f"{self.setting.key}/{self.method.key}"

    @property
    def label(self) -> str:
        """Its name while it is run."""
        return f"{self.key}, seed {self.seed}" if self.seed else self.key

    @cached_property
    def name(self) -> str:
        """The name of its record."""
        return run_name(self.experiment)


@final
@dataclass(frozen=True)
class Study:
    """Methods x settings x seeds.

    Attributes:
        reference: the key of the method that the others are compared with; empty if there is none.
        left_out: the names of settings whose data set is missing.
    """

    name: str
    title: str
    source: str
    base: Values
    quick: Values
    settings: tuple[StudySetting, ...]
    methods: tuple[StudyMethod, ...]
    reference: str = ""
    left_out: tuple[str, ...] = ()

    def runs(self, choice: Choice) -> list[StudyRun]:
        """Return the runs that are wanted, method by method in a setting, the first seed of all before the second."""
        places = [place for place in self._places(choice) if not choice.tuned or _was_tuned(*place)]
        return [
            StudyRun(method, setting, seed, self._experiment(method, setting, seed, choice))
            for seed in range(choice.seeds)
            for setting, method in places
        ]

    def untuned(self, choice: Choice) -> list[tuple[StudySetting, StudyMethod]]:
        """Return the settings and methods that are left out because the method was not tuned on the data set."""
        return [place for place in self._places(choice) if choice.tuned and not _was_tuned(*place)]

    def _places(self, choice: Choice) -> list[tuple[StudySetting, StudyMethod]]:
        return [(s, m) for s in self.settings for m in self.methods if _fits(f"{s.key}/{m.key}", choice.only)]

    def check_patterns(self, patterns: Sequence[str]) -> None:
        """Raise `UserError` if a pattern fits no run."""
        keys = [f"{setting.key}/{method.key}" for setting in self.settings for method in self.methods]
        whole = [*(f"{one.key}/*" for one in self.settings), *(f"*/{one.key}" for one in self.methods)]
        for pattern in patterns:
            if not any(fnmatchcase(key, pattern) for key in keys):
                close, known = closest(pattern, [*keys, *whole]), ", ".join(f"`{key}`" for key in keys)
                hint = f"did you mean `{close}`?" if close else f"known are {known}."
                raise UserError(f"`--only` got `{pattern}`, which fits no `SETTING/METHOD`; {hint}")

    def check(self) -> None:
        """Raise `UserError` unless every method, every setting and every data set that may stand in can be used."""
        for setting in self.settings:
            for candidate in setting.candidates(quick=False):
                self._experiment(self.methods[0], candidate, 0, Choice(quick=True))
        for method in self.methods:
            self._experiment(method, self.settings[0], 0, Choice(quick=True))

    def with_data(self, choice: Choice, folder: Path | None) -> tuple[Study, list[str]]:
        """Return the study with data sets that are at hand, and sentences about those that are not."""
        place = data_folder(folder)
        study = self._choose(choice, lambda setting: _missing(setting.dataset, place) is None)
        notes = [
            f"`{one.data}` stands in for `{one.stands_in_for}`, which is not at hand."
            for one in study.settings
            if one.stands_in_for is not None
        ]
        for setting in self.settings:
            if setting.name in study.left_out:
                notes.append(f"`{setting.key}` is left out: {_missing(setting.dataset, place)}")
        return study, list(dict.fromkeys(notes))

    def with_records(self, choice: Choice, has: Callable[[str], bool]) -> Study:
        """Return the study with the data sets of which finished runs are there."""

        def has_runs(setting: StudySetting) -> bool:
            return any(has(run.name) for run in replace(self, settings=(setting,)).runs(choice._replace(only=())))

        return self._choose(choice, has_runs)

    def _choose(self, choice: Choice, usable: Callable[[StudySetting], bool]) -> Study:
        wanted = {setting.key for setting, _ in self._places(choice)}
        found, left_out = [], []
        for setting in (one for one in self.settings if one.key in wanted):
            chosen = next(filter(usable, setting.candidates(quick=choice.quick)), None)
            found += [] if chosen is None else [chosen]
            left_out += [setting.name] if chosen is None else []
        return replace(self, settings=tuple(found), left_out=tuple(left_out))

    def _experiment(self, method: StudyMethod, setting: StudySetting, seed: int, choice: Choice) -> Experiment:
        values, source = method.values, f"`{self.name}`"
        if choice.tuned:
            # A preset lies beneath the options that the method itself gives.
            values = {**values, "method": {**values.get("method", {}), "preset": TUNED}}
        layers = [
            ConfigSource(f"[base] of {source}", self.base),
            ConfigSource(f"[settings.{setting.key}] of {source}", setting.values),
            ConfigSource(f"[methods.{method.key}] of {source}{' with `--tuned`' if choice.tuned else ''}", values),
            *([ConfigSource(f"[quick] of {source}", self.quick)] if choice.quick else []),
        ]
        return resolve([*layers, ConfigSource("--seeds", {"seed": seed})])


def _fits(key: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(key, pattern) for pattern in patterns)


def _was_tuned(setting: StudySetting, method: StudyMethod) -> bool:
    name = method.values.get("method", {}).get("name", DEFAULT_NAMES["method"])
    return setting.dataset["name"] in tuned_on(name) or TUNED in METHODS[name].presets


def _missing(values: Values, folder: Path) -> str | None:
    """Return why a data set cannot be used, or `None` if it can."""
    cls = DATASETS[str(values["name"])]
    try:
        cls(**{key: value for key, value in values.items() if key in options_of(cls)}).load(folder)
    except (UserError, OSError) as error:
        return str(error)
    return None
