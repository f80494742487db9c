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

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, final

from fedmate.core import Method
from fedmate.core.options import options_of
from fedmate.data import DATASETS
from fedmate.data.sources import data_folder
from fedmate.errors import UserError, nearest
from fedmate.experiment.config import DEFAULT_NAMES, TUNED, ConfigSource, load_file, resolve, tuned_on
from fedmate.experiment.record import TESTS, VIEWS
from fedmate.experiment.sections import Experiment, Values
from fedmate.methods import METHODS
from fedmate.studies.records import run_name

KEYS = ("title", "source", "test", "reference", "base", "quick", "settings", "methods")
"""The keys of a study's file."""

DIGITS: Values = {"name": "digits"}
"""The data set that `--quick` uses where another one is missing: it comes with scikit-learn."""


@final
@dataclass(frozen=True)
class StudySetting:
    """Options that every method is run with; `stands_in_for` names its own data set where another one is used."""

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
            values = {**self.values, "dataset": dict(stand_in)}
            # Digits have no test split of their own, and so no samples that no client holds to validate on.
            values |= {"evaluate_on": "test"} if stand_in["name"] == DIGITS["name"] else {}
            yield replace(self, values=values, stands_in_for=str(self.dataset["name"]))


@final
@dataclass(frozen=True)
class StudyMethod:
    """A method with options of its own, the view that is compared, and published figures by the key of a setting."""

    key: str
    name: str
    view: str
    values: Values
    published: Mapping[str, float]

    @property
    def algorithm(self) -> str:
        """The name of the method itself."""
        return str(self.values.get("method", {}).get("name", DEFAULT_NAMES["method"]))


Place = tuple[StudySetting, StudyMethod]


class Choice(NamedTuple):
    """Which runs of a study are wanted: the number of seeds, from 0, and patterns of `SETTING/METHOD`, if not all."""

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
        places = [place for place in self._places(choice.only) if not choice.tuned or _was_tuned(*place)]
        return [
            StudyRun(method, setting, seed, self._experiment(method, setting, seed, choice))
            for seed in range(choice.seeds)
            for setting, method in places
        ]

    def untuned(self, choice: Choice) -> list[Place]:
        """Return the settings and methods that are left out because the method was not tuned on the data set."""
        return [place for place in self._places(choice.only) if choice.tuned and not _was_tuned(*place)]

    def _places(self, patterns: Sequence[str]) -> list[Place]:
        places = [(setting, method) for setting in self.settings for method in self.methods]
        return [
            (setting, method)
            for setting, method in places
            if any(fnmatchcase(f"{setting.key}/{method.key}", pattern) for pattern in patterns or ["*"])
        ]

    def check_patterns(self, patterns: Sequence[str]) -> None:
        """Raise `UserError` if a pattern fits no run."""
        for pattern in patterns:
            if not self._places([pattern]):
                keys = [f"{setting.key}/{method.key}" for setting, method in self._places([])]
                raise UserError(f"`--only` got `{pattern}`, which fits no `SETTING/METHOD`; {nearest(pattern, keys)}")

    def with_data(self, choice: Choice, folder: Path | None) -> tuple[Study, list[str]]:
        """Return the study with data sets that are at hand, and sentences about those that are not."""
        place = data_folder(folder)
        study = self._choose(choice, lambda setting: _missing(setting.dataset, place) is None)
        notes = [
            f"`{one.data}` stands in for `{one.stands_in_for}`, which is not at hand."
            for one in study.settings
            if one.stands_in_for is not None
        ]
        notes += [
            f"`{setting.key}` is left out: {_missing(setting.dataset, place)}"
            for setting in self.settings
            if setting.name in study.left_out
        ]
        return study, list(dict.fromkeys(notes))

    def with_records(self, choice: Choice, finished: Container[str]) -> Study:
        """Return the study with the data sets of which there are finished runs."""
        whole = choice._replace(only=())
        return self._choose(
            choice, lambda setting: any(run.name in finished for run in replace(self, settings=(setting,)).runs(whole))
        )

    def _choose(self, choice: Choice, is_usable: Callable[[StudySetting], bool]) -> Study:
        wanted = {setting.key: setting for setting, _ in self._places(choice.only)}.values()
        chosen = [next(filter(is_usable, setting.candidates(quick=choice.quick)), None) for setting in wanted]
        lacking = tuple(setting.name for setting, one in zip(wanted, chosen, strict=True) if one is None)
        return replace(self, settings=tuple(one for one in chosen if one is not None), left_out=lacking)

    def _experiment(self, method: StudyMethod, setting: StudySetting, seed: int, choice: Choice) -> Experiment:
        values = method.values
        if choice.tuned:
            # A preset lies beneath the options that the method itself gives.
            values = {**values, "method": {**values.get("method", {}), "preset": TUNED}}
        layers = [
            ConfigSource("`[base]`", self.base),
            ConfigSource(f"`[settings.{setting.key}]`", setting.values),
            ConfigSource(f"`[methods.{method.key}]`{' with `--tuned`' * choice.tuned}", values),
            *([ConfigSource("`[quick]`", self.quick)] if choice.quick else []),
        ]
        return resolve([*layers, ConfigSource("--seeds", {"seed": seed})])


def load_study(path: Path) -> Study:
    """Read a study, or raise `UserError`."""
    source, values = load_file(path)
    try:
        study = _read(path.stem, values)
        # Every method and setting can be used.
        study.runs(Choice(quick=True))
    except (UserError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"`{source}` is no study that can be run: {error}") from None
    return study


def _read(name: str, top: Values) -> Study:
    for key in top:
        if key not in KEYS:
            raise UserError(f"`{key}` is no key of a study; {nearest(key, KEYS)}")
    for kind in ("settings", "methods"):
        tables = top.get(kind)
        if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()) or not tables:
            raise UserError(f"it has no tables `{kind}`; write `[{kind}.KEY]` and options for each.")
    base, quick = top.get("base", {}), top.get("quick", {})
    shared: Values = {"dataset": base["dataset"]} if "dataset" in base else {}
    settings = tuple(
        _setting(key, {"test": top.get("test", "balanced"), **shared, **values})
        for key, values in top["settings"].items()
    )
    methods = tuple(_method(key, dict(values), [one.key for one in settings]) for key, values in top["methods"].items())
    reference, keys = top.get("reference", ""), [method.key for method in methods]
    if reference and reference not in keys:
        raise UserError(f"`reference` is `{reference}`, which is no method; {nearest(reference, keys)}")
    given = [base, quick, *(one.values for one in settings), *(one.values for one in methods)]
    if any("seed" in values for values in given):
        raise UserError("it has a `seed`, but a study has seeds from 0; use `--seeds`.")
    title, source = str(top.get("title", name)), str(top.get("source", ""))
    return Study(name, title, source, base, quick, settings, methods, reference)


def _setting(key: str, values: Values) -> StudySetting:
    name, test, stand_ins = str(values.pop("name", key)), values.pop("test"), values.pop("stand_ins", [])
    if test not in TESTS:
        raise UserError(f"`test` is `{test}`; {nearest(str(test), TESTS)}")
    if not all(isinstance(one, dict) and "name" in one for one in stand_ins):
        raise UserError(f"`stand_ins` in `[settings.{key}]` are no data sets; write `[{{name = ...}}]`.")
    return StudySetting(key, name, test, values, tuple(stand_ins))


def _method(key: str, values: Values, settings: Sequence[str]) -> StudyMethod:
    name, view, published = str(values.pop("name", key)), values.pop("view", None), values.pop("published", {})
    for setting in published:
        if setting not in settings:
            raise UserError(
                f"`published` in `[methods.{key}]` has `{setting}`, which is no setting; {nearest(setting, settings)}"
            )
    figures = {setting: float(figure) for setting, figure in published.items()}
    method = StudyMethod(key, name, view or "", values, figures)
    cls = METHODS[method.algorithm]
    # The names of views that a method adds are known when it has run.
    if view not in (None, *VIEWS) and cls.extra_views is Method.extra_views:
        raise UserError(f"`view` in `[methods.{key}]` is `{view}`; {nearest(str(view), VIEWS)}")
    return replace(method, view=view or cls.primary_view)


def _was_tuned(setting: StudySetting, method: StudyMethod) -> bool:
    return setting.dataset["name"] in tuned_on(method.algorithm) or TUNED in METHODS[method.algorithm].presets


def _missing(values: Values, folder: Path) -> str | None:
    """Return why a data set cannot be used, or `None` if it can."""
    cls = DATASETS[str(values["name"])]
    try:
        cls(**{key: value for key, value in values.items() if key in options_of(cls)}).load(folder)
    except (UserError, OSError) as error:
        return str(error)
    return None
