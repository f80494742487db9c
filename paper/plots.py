"""Plots that only the paper's experiments need: losses, classes, the two weights, partitions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedmate.experiment.sections import flat
from fedmate.report.plots import MOST, Panel, PartitionPlot, Plot, Series
from fedmate.studies.plots import line, panels, title_of, to_draw
from fedmate.studies.records import RunSummary
from fedmate.studies.statistics import Results, over_seeds
from fedmate.studies.study import StudyMethod, StudySetting
from fedmate.studies.tables import file_name
from paper.drawing import Dots, LossLines, WeightLines


def losses(results: Results) -> list[Plot]:
    """Return the loss on clients' own samples before and after local training, by round."""
    ways = {"before": "-", "after": "--"}

    def series(method: StudyMethod, setting: StudySetting) -> list[Series]:
        return [_losses(results, method, setting, way)._replace(line=look) for way, look in ways.items()]

    keys = [(f"{way} local training", look) for way, look in ways.items()]
    labels = ("round", "cross-entropy (nats)")
    title = title_of(results, "by round")
    return [LossLines("losses", title, panels(results, series), labels, keys)]


def _losses(results: Results, method: StudyMethod, setting: StudySetting, way: str) -> Series:
    found = [one.content["losses"][way] for one in to_draw(results, method, setting)]
    rounds = range(min(map(len, found), default=0))
    return line(results, method, setting, {t + 1: over_seeds(run[t] for run in found) for t in rounds})


def classwise(results: Results) -> list[Plot]:
    """Return the accuracy on each class, mean over clients."""

    def series(method: StudyMethod, setting: StudySetting) -> list[Series]:
        runs = [one.content.get("classes", {}).get(method.view, []) for one in to_draw(results, method, setting)]
        figures = {k: over_seeds(values) for k, values in enumerate(zip(*runs, strict=True))}
        return [line(results, method, setting, figures)]

    title, classes = title_of(results, "mean over clients"), class_names(results, results.settings[0])
    return [Dots("classwise", title, panels(results, series), classes, "accuracy (%)")]


def weights(results: Results) -> list[Plot]:
    """Return the accuracy by the weight that methods are named after, ours and the paper's, the best of each marked."""
    found = [Panel(setting.label, [*_beside_published(results, setting)]) for setting in results.settings]
    given = [flat(method.values) for method in results.methods]
    keys = dict.fromkeys(key for one in given for key in one)
    (option,) = (key for key in keys if len({str(one.get(key)) for one in given}) > 1)
    labels = (f"{results.study.name} ({option})", f"accuracy (%), {results.settings[0].test} test")
    ticks, title = [method.name for method in results.methods], title_of(results, "ours and the paper's")
    return [WeightLines("line", title, found, labels, ticks)]


def _beside_published(results: Results, setting: StudySetting) -> Iterator[Series]:
    ours, published = "ours", "paper"
    if setting.stands_in_for is not None:
        ours, published = f"ours, on {setting.data}", f"paper, on {setting.stands_in_for}"
    figures = {i: results.figure(m, setting, m.view, setting.test) for i, m in enumerate(results.methods)}
    found = {i: figure.mean for i, figure in figures.items() if figure is not None}
    yield Series(ours, 0, [*found], [*found.values()])
    theirs = {i: m.published[setting.key] for i, m in enumerate(results.methods) if setting.key in m.published}
    yield Series(published, 3, [*theirs], [*theirs.values()], line=":")


def holdings(results: Results) -> list[Plot]:
    """Return the samples of each client and class in each setting."""
    found: list[Plot] = []
    for setting in results.settings:
        run = _any(results, setting)
        counts = np.array(run.content["holdings"], dtype=np.int64)
        if max(counts.shape) <= MOST:
            clients = [str(client) for client in range(len(counts))]
            title = title_of(results, setting.name)
            name, classes = file_name("holdings", setting), class_names(results, setting)
            found.append(PartitionPlot(name, title, counts, clients, classes))
    return found


def class_names(results: Results, setting: StudySetting) -> list[str]:
    """Return the names of the classes of a setting."""
    return list(_any(results, setting).content["class_names"])


def _any(results: Results, setting: StudySetting) -> RunSummary:
    return next(run for method in results.methods for run in results.finished(method, setting))
