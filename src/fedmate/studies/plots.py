"""The plots of a study: accuracy by round, and both tests against each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedmate.report.plots import Lines, Panel, Plot, Series, Spot, Tradeoff
from fedmate.studies.records import RunSummary
from fedmate.studies.statistics import Figure, Group, Results, over_seeds
from fedmate.studies.study import StudyMethod, StudySetting
from fedmate.studies.tables import both_tests, file_name


def plots(results: Results) -> list[Plot]:
    """Return all plots of a study."""
    return [*curves(results), *tradeoffs(results)]


def curves(results: Results) -> list[Plot]:
    """Return the accuracy by round, with the standard deviation between seeds, if rounds were evaluated on the way."""

    def series(method: StudyMethod, setting: StudySetting) -> list[Series]:
        curves = [
            {point["round"]: point["accuracy"].get(method.view, {}).get(setting.test) for point in one.content["curve"]}
            for one in to_draw(results, method, setting)
        ]
        runs = [{number: accuracy for number, accuracy in one.items() if accuracy is not None} for one in curves]
        rounds = sorted(set.intersection(*map(set, runs))) if runs else []
        return [line(results, method, setting, {number: over_seeds(run[number] for run in runs) for number in rounds})]

    found = panels(results, series)
    if not any(len(one.x) > 1 for panel in found for one in panel.series):
        return []
    tests = {setting.test for setting in results.settings}
    label = f"accuracy (%), {min(tests)} test" if len(tests) == 1 else "accuracy (%)"
    return [Lines("curves", title_of(results, "accuracy by round"), found, ("round", label))]


def tradeoffs(results: Results) -> Iterator[Plot]:
    """Yield the accuracies on both tests against each other, a plot for each setting and group of seeds."""
    for setting in results.settings:
        for group in results.comparable(setting):
            if both_tests(group, setting):
                yield _tradeoff(group, setting)


def _tradeoff(group: Group, setting: StudySetting) -> Plot:
    results, seen, several, spots = group.results, set[tuple[str, ...]](), set[int](), list[Spot]()
    for method, balanced, own, is_on_front in both_tests(group, setting):
        names, (number, label) = tuple(results.names(method, setting)), _look(results, method)
        across, upward = balanced.standard_error, own.standard_error
        errors = None if across is None or upward is None else (across, upward)
        spots.append(
            Spot(label, number, round(balanced.mean, 2), round(own.mean, 2), errors, is_on_front, names in seen)
        )
        seen.add(names)
        several |= {own.seeds} - {1}
    alone = replace(results, runs=[run for run in results.runs if run.setting.key == setting.key])
    return Tradeoff(
        file_name(f"tradeoff{group.suffix}", setting),
        title_of(alone, f"balanced and own accuracy{group.which}"),
        panel_title(setting),
        spots,
        ("accuracy (%), balanced test", "accuracy (%), own test"),
        f"± standard error over {' or '.join(map(str, sorted(several)))} seeds" if several else "",
    )


def to_draw(results: Results, method: StudyMethod, setting: StudySetting) -> list[RunSummary]:
    """Return the runs that came to their end, or all if none did."""
    runs = results.finished(method, setting)
    return [one for one in runs if one.diverged_in is None] or runs


def line(results: Results, method: StudyMethod, setting: StudySetting, figures: Mapping[int, Figure | None]) -> Series:
    """Return the line of a method, which has the same look in all plots of a study."""
    number, label = _look(results, method)
    diverged = ", diverged" if all(one.diverged_in is not None for one in results.finished(method, setting)) else ""
    y = [math.nan if figure is None else figure.mean for figure in figures.values()]
    spread = [math.nan if figure is None or figure.std is None else figure.std for figure in figures.values()]
    return Series(label + diverged, number, [*figures], y, [] if all(map(math.isnan, spread)) else spread)


def panels(results: Results, series: Callable[[StudyMethod, StudySetting], Sequence[Series]]) -> list[Panel]:
    """Return a panel for each setting in which there is something to draw."""
    found = []
    several = len({setting.test for setting in results.settings}) > 1
    for setting in results.settings:
        drawn = [one for method in results.methods for one in series(method, setting) if np.isfinite(one.y).any()]
        named = replace(setting, name=f"{setting.name}, {setting.test} test") if several else setting
        found += [Panel(panel_title(named), drawn)] if drawn else []
    return found


def panel_title(setting: StudySetting) -> str:
    """Return the name of a setting, and below it the data set that was used if it is another one."""
    return setting.name if setting.stands_in_for is None else f"{setting.name}\n(run with {setting.data})"


def title_of(results: Results, what: str) -> str:
    """Return the title of a plot."""
    hints = ["--quick"] * results.choice.quick
    hints += sorted({f"{s.data} stands in for {s.stands_in_for}" for s in results.settings if s.stands_in_for})
    if any(run.experiment.general.evaluate_on == "validation" for run in results.runs):
        hints.append("validation samples")
    title = f"{results.study.title}; {what}{', tuned' * results.choice.tuned}"
    return f"{title} ({'; '.join(hints)})" if hints else title


def _look(results: Results, method: StudyMethod) -> tuple[int, str]:
    """Return the number of a method's look, and its label."""
    number = next(i for i, one in enumerate(results.study.methods) if one.key == method.key)
    several = len({one.view for one in results.methods}) > 1
    return number, f"{method.name} ({method.view})" if several else method.name
