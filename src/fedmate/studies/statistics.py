"""The results of a study: figures over seeds, paired differences, and the sentences that belong under a table."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

from fedmate.studies.records import Records, RunSummary
from fedmate.studies.study import Choice, Place, Study, StudyMethod, StudyRun, StudySetting

VALIDATION = "validation samples that no client holds, not the test split"


class Figure(NamedTuple):
    """A number over seeds; `std` is the standard deviation between them, `None` for one seed."""

    mean: float
    std: float | None
    seeds: int

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean."""
        return None if self.std is None else self.std / math.sqrt(self.seeds)


def over_seeds(values: Iterable[float | None]) -> Figure | None:
    """Return mean and standard deviation of the values that are numbers, if there is one."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    return Figure(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the points that no other is above in one number and at least equal to in the other."""
    return [i for i, (x, y) in enumerate(points) if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)]


class Group(NamedTuple):
    """Methods that can be compared in a setting; if it is not all, file names have a suffix, and titles say which.

    `fair` are their runs with common seeds, in words `seeds`: one seed's partition may be easier than another's.
    """

    results: Results
    fair: Results
    seeds: str
    suffix: str = ""
    which: str = ""

    @property
    def note(self) -> str:
        """The sentence about the numbers of a table."""
        return f"accuracy in percent, mean over clients, {self.seeds}; ± standard error of the mean over seeds"


@final
@dataclass(frozen=True)
class Results:
    """A study: the runs that are wanted, and of these the finished ones by name."""

    study: Study
    choice: Choice
    runs: Sequence[StudyRun]
    found: Mapping[str, RunSummary]

    @classmethod
    def of(cls, study: Study, choice: Choice, records: Records) -> Results:
        """Look for the runs of a study."""
        runs, finished = study.runs(choice), records.all()
        return cls(study, choice, runs, {run.name: finished[run.name] for run in runs if run.name in finished})

    @property
    def settings(self) -> list[StudySetting]:
        """The settings that have a run."""
        keys = {run.setting.key for run in self.runs}
        return [setting for setting in self.study.settings if setting.key in keys]

    @property
    def methods(self) -> list[StudyMethod]:
        """The methods that have a run."""
        keys = {run.method.key for run in self.runs}
        return [method for method in self.study.methods if method.key in keys]

    def names(self, method: StudyMethod, setting: StudySetting) -> list[str]:
        """Return the names of the runs of a method in a setting, one for each seed, finished or not."""
        return [run.name for run in self.runs if (run.method.key, run.setting.key) == (method.key, setting.key)]

    def finished(self, method: StudyMethod, setting: StudySetting) -> list[RunSummary]:
        """Return the finished runs of a method in a setting."""
        return [self.found[name] for name in self.names(method, setting) if name in self.found]

    def figure(self, method: StudyMethod, setting: StudySetting, view: str, test: str) -> Figure | None:
        """Return the accuracy in a view, in percent, over the seeds that are finished and did not diverge."""
        return over_seeds(one.accuracy(view, test) for one in self.finished(method, setting))

    def difference(self, method: StudyMethod, setting: StudySetting) -> float | None:
        """Return our figure, as it is shown, less the published one, if both have the same data and length."""
        figure = self.figure(method, setting, method.view, setting.test)
        published = method.published.get(setting.key)
        if figure is None or published is None or setting.stands_in_for is not None or self.choice.quick:
            return None
        # Adding zero turns -0.0 into 0.0.
        return round(round(figure.mean, 2) - published, 2) + 0.0

    def paired(self, method: StudyMethod, other: StudyMethod, setting: StudySetting, test: str) -> Figure | None:
        """Return how far a method is above another one, over the seeds with which both had the same partition."""
        ours, theirs = (
            {(run.config["seed"], run.summary["partition_sha256"]): run.accuracy(one.view, test) for run in runs}
            for one, runs in ((one, self.finished(one, setting)) for one in (method, other))
        )
        both = [(value, theirs[key]) for key, value in ours.items() if key in theirs]
        return over_seeds(a - b for a, b in both if a is not None and b is not None)

    def distinct(self, setting: StudySetting) -> list[tuple[str, list[StudyMethod]]]:
        """Return the methods of a setting by name; those that are the same runs in other views are one."""
        same: dict[tuple[str, ...], list[StudyMethod]] = {}
        for method in self.methods:
            same.setdefault(tuple(self.names(method, setting)), []).append(method)
        return [(" / ".join(one.name for one in methods), methods) for names, methods in same.items() if names]

    def comparable(self, setting: StudySetting) -> list[Group]:
        """Return the methods of a setting on common seeds; those that have every seed once more among themselves."""
        groups, runs = [self._group(setting)], [run for run in self.runs if run.setting.key == setting.key]
        lacking = {run.method.key for run in runs if run.name not in self.found or self._diverged(run)}
        some = replace(self, runs=[run for run in runs if run.method.key not in lacking])
        if len(self.common_seeds(setting)) < self.choice.seeds and len(some.distinct(setting)) > 1:
            groups.append(some._group(setting, "_seeds", " of those with every seed"))
        return groups

    def _group(self, setting: StudySetting, suffix: str = "", which: str = "") -> Group:
        seeds = self.common_seeds(setting)
        if not seeds:
            return Group(self, self, "on the seeds that each method has, because they share none", suffix, which)
        runs = [run for run in self.runs if run.seed in seeds]
        # A method that diverged with one of the seeds keeps no other run.
        failed = {run.key for run in runs if self._diverged(run)}
        fair = replace(self, runs=[run for run in runs if self._diverged(run) or run.key not in failed])
        diverged = any(run.setting.key == setting.key and self._diverged(run) for run in runs)
        who = "which all methods have" + " except those that diverged" * diverged
        return Group(self, fair, f"on seed{'s' * (len(seeds) > 1)} {_listed(seeds)}, {who}", suffix, which)

    def common_seeds(self, setting: StudySetting) -> list[int]:
        """Return the seeds of a setting that all of its methods have, except methods that diverged with one of them.

        Without these methods there may be more seeds, and other methods that diverged with those.
        """
        runs = [run for run in self.runs if run.setting.key == setting.key and run.name in self.found]
        seeds = {run.method.key: {other.seed for other in runs if other.method == run.method} for run in runs}
        failed = {key: {run.seed for run in runs if run.method.key == key and self._diverged(run)} for key in seeds}
        keys = [key for key in seeds if failed[key] < seeds[key]]
        while keys:
            common = set.intersection(*(seeds[key] for key in keys))
            remaining = [key for key in keys if not failed[key] & common]
            if remaining == keys:
                return sorted(common)
            keys = remaining
        return []

    def _diverged(self, run: StudyRun) -> bool:
        return run.name in self.found and self.found[run.name].diverged_in is not None

    # -------------------- sentences under the tables

    def notes(self) -> list[str]:
        """Return the sentences a reader must know before comparing figures."""
        notes = ["--quick: runs are cut short, their figures cannot be compared"] * self.choice.quick
        stand_ins = [setting for setting in self.settings if setting.stands_in_for is not None]
        notes += [f"{setting.name}: {setting.data} stands in for {setting.stands_in_for}" for setting in stand_ins]
        if self.study.left_out:
            notes.append(f"left out, data missing: {'; '.join(self.study.left_out)}")
        untuned = "left out, not tuned on the data set"
        kinds = defaultdict[str, list[Place]](list, {VALIDATION: [], untuned: self.study.untuned(self.choice)})
        digests = defaultdict[str, set[object]](set)
        for run in self.runs:
            one, place = self.found.get(run.name), (run.setting, run.method)
            if run.experiment.general.evaluate_on == "validation":
                kinds[VALIDATION].append(place)
            if one is None:
                kinds[f"not run, seed {run.seed}"].append(place)
                continue
            if one.diverged_in is not None:
                kinds[f"diverged in round {one.diverged_in}, seed {run.seed}"].append(place)
            elif one.views and run.method.view not in one.views:
                kinds[f"no view `{run.method.view}`, only {', '.join(one.views)}"].append(place)
            samples = f"{run.setting.key}, seed {run.seed}: methods had different samples"
            digests[samples].add(one.summary["partition_sha256"])
            digests[f"{run.setting.key}: runs had different data"] |= {one.content.get("data_sha256")} - {None}
        notes += [f"{kind}: {self._places(found)}" for kind, found in kinds.items() if found]
        return notes + [sentence for sentence, found in digests.items() if len(found) > 1]

    def _places(self, found: Sequence[Place]) -> str:
        """Name methods, and their settings where it is not all of them; methods with the same settings together."""
        by_method = defaultdict[str, dict[str, None]](dict)
        for setting, method in found:
            by_method[method.name][setting.name] = None
        by_settings = defaultdict[tuple[str, ...], list[str]](list)
        for name, settings in by_method.items():
            by_settings[tuple(settings)].append(name)
        texts = []
        for places, names in by_settings.items():
            is_all = len(names) > 1 and {*names} == {method.name for method in self.methods}
            where = "" if {*places} >= {one.name for one in self.settings} else f" ({'; '.join(places)})"
            texts.append(("all methods" if is_all else _listed(names)) + where)
        return "; ".join(texts)


def _listed(names: Iterable[object]) -> str:
    """Return names with commas between, and marks around those that have commas themselves."""
    return ", ".join(f"`{name}`" if "," in str(name) else str(name) for name in names)
