"""The tables of a study: accuracy beside published figures, every view, differences, trade-off, and the long form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas

from fedmate import storage
from fedmate.experiment.record import VIEWS
from fedmate.report.drawing import FORMATS
from fedmate.report.plots import Plot
from fedmate.report.tables import Table, to_csv, to_latex, to_markdown
from fedmate.studies.statistics import Figure, Group, Results, pareto_front
from fedmate.studies.study import StudyMethod, StudySetting

TESTS = ("balanced", "own")
"""The tests that every run has, shown side by side; a study may compare `local` figures."""

STD_NOTE = "accuracy in percent, mean over clients; ± standard deviation between seeds, where there are several"
TESTS_NOTE = (
    "tests: `balanced` gives all classes the same weight; `own` weighs them as in the client's training samples, and "
    "calibrated models use these weights"
)
VIEWS_NOTE = (
    "views: `pre` is the client's model after a broadcast, before it trains; `post` after local training; `global` is "
    "the aggregated model"
)


def tables(results: Results) -> list[Table]:
    """Return all tables of a study."""
    settings = results.settings
    return [
        accuracy(results),
        *differences(results),
        *(tradeoff(group, setting) for setting in settings for group in results.comparable(setting)),
        *(views(results, setting) for setting in settings),
    ]


def save(results: Results, tables: Sequence[Table], plots: Sequence[Plot], out: Path) -> tuple[Path, list[str]]:
    """Write tables as Markdown, LaTeX and CSV, plots, and all figures in long form; return the folder and the names."""
    folder = out / "tables" / folder_name(results)
    files = {"figures.csv": to_frame(results).to_csv(index=False, float_format="%.2f").encode()}
    for table in tables:
        for suffix, write in {".md": to_markdown, ".tex": to_latex, ".csv": to_csv}.items():
            files[f"{table.name}{suffix}"] = write(table).encode()
    files |= {f"{plot.name}{suffix}": plot.draw(suffix) for plot in plots for suffix in FORMATS}
    storage.make_folder(folder)
    for name, content in files.items():
        storage.replace(folder / name, content)
    return folder, list(dict.fromkeys(name.rpartition(".")[0] for name in files))


def folder_name(results: Results) -> str:
    """Return the name of the folder of tables."""
    return results.study.name + "-tuned" * results.choice.tuned + "-quick" * results.choice.quick


def titled(results: Results, table: Table) -> Table:
    """Return a table with the title of its study, the source of published figures, and the notes of the study."""
    title = f"{results.study.title}; {table.title}" if table.title else results.study.title
    title += ", tuned" * results.choice.tuned + " (--quick)" * results.choice.quick
    source = [f"published in: {results.study.source}"] if results.study.source else []
    return replace(table, title=title, notes=[*table.notes, *source, *results.notes()])


def file_name(kind: str, setting: StudySetting) -> str:
    """Return the name of the files of a table about one setting."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{kind}_{setting.key}")


def with_error(figure: Figure, form: str = ".2f") -> str:
    """Return a number with its standard error, if there are several seeds."""
    error = "" if figure.standard_error is None else f" ± {figure.standard_error:.2f}"
    # Adding zero turns -0.0 into 0.0.
    return f"{round(figure.mean, 2) + 0.0:{form}}{error}"


def cell(results: Results, method: StudyMethod, setting: StudySetting, view: str, test: str) -> str:
    """Return an accuracy, and how many runs diverged; `-` for a view that the method lacks, nothing if not run."""
    figure, runs = results.figure(method, setting, view, test), results.finished(method, setting)
    diverged = sum(one.diverged_in is not None for one in runs)
    if figure is None:
        return "" if not runs else "diverged" if diverged == len(runs) else "-"
    text = f"{figure.mean:.2f}" if figure.std is None else f"{figure.mean:.2f} ± {figure.std:.2f}"
    return f"{text} ({diverged} of {len(runs)} diverged)" if diverged else text


# -------------------- accuracy, beside published figures if there are any


def accuracy(results: Results) -> Table:
    """Return every method in its view, a column for each setting; published figures are beside ours."""
    columns = [("", "method", [method.name for method in results.methods])]
    columns += [("", "view", [f"`{method.view}`" for method in results.methods])]
    bold = set[tuple[int, int]]()
    for setting in results.settings:
        block = {"accuracy": [cell(results, one, setting, one.view, setting.test) for one in results.methods]}
        if any(setting.key in method.published for method in results.methods):
            block = _beside_published(results, setting, block["accuracy"])
        bold |= {(i, len(columns) + [*block].index("accuracy")) for i in _best(results, setting)}
        columns += [(setting.label, name, cells) for name, cells in block.items()]
    groups, head, cells = map(list, zip(*columns, strict=True))
    tests = {setting.test for setting in results.settings}
    which = [f"`{test}` in {'; '.join(s.name for s in results.settings if s.test == test)}" for test in sorted(tests)]
    notes = [
        STD_NOTE,
        "bold: the largest value of a column, among the methods with most seeds",
        f"test: {'; '.join(which) if len(tests) > 1 else f'`{next(iter(tests))}`'}",
    ]
    rows = [list(row) for row in zip(*cells, strict=True)]
    return titled(results, Table("accuracy", "", head, rows, notes, frozenset(bold), groups))


def _beside_published(results: Results, setting: StudySetting, ours: list[str]) -> dict[str, list[str]]:
    published = [method.published.get(setting.key) for method in results.methods]
    name = "published" if setting.stands_in_for is None else f"published ({setting.stands_in_for})"
    block = {name: ["" if figure is None else f"{figure:.2f}" for figure in published], "accuracy": ours}
    if setting.stands_in_for is None and not results.choice.quick:
        found = [results.difference(method, setting) for method in results.methods]
        block["difference"] = ["" if one is None else f"{one:+.2f}" for one in found]
    return block


def _best(results: Results, setting: StudySetting) -> list[int]:
    """Return the rows with the largest figure, as it is shown; few seeds are not compared with many."""
    figures = [results.figure(method, setting, method.view, setting.test) for method in results.methods]
    most = max((figure.seeds for figure in figures if figure is not None), default=0)
    means = {i: round(f.mean, 2) for i, f in enumerate(figures) if f is not None and f.seeds == most}
    return [i for i, mean in means.items() if mean == max(means.values())]


# -------------------- every view


def views(results: Results, setting: StudySetting) -> Table:
    """Return every view with both tests in one setting; views that a method adds are named over the tests."""
    entries = results.distinct(setting)
    further = sorted({view for _, m in entries for view in _views_of(results, m[0], setting)} - {*VIEWS})
    looks = [(view, test) for test in TESTS for view in VIEWS] + [(view, test) for view in further for test in TESTS]
    names = [(view, test) if view in further else (test, view) for view, test in looks]
    rows = [[name, *(cell(results, m[0], setting, *look) for look in looks)] for name, m in entries]
    bold = {
        (i, 1 + looks.index((method.view, setting.test)))
        for i, (_, methods) in enumerate(entries)
        for method in methods
        if (method.view, setting.test) in looks
    }
    notes = [STD_NOTE, TESTS_NOTE, VIEWS_NOTE, "bold: the view and test that are compared; -: no such view"]
    head, groups = (["", *(f"`{name[place]}`" for name in names)] for place in (1, 0))
    head[0] = "method"
    name, title = file_name("views", setting), f"every view, {setting.label}"
    return titled(results, Table(name, title, head, rows, notes, frozenset(bold), groups))


def _views_of(results: Results, method: StudyMethod, setting: StudySetting) -> list[str]:
    """Return the views that a method has, and the one that is compared in any case."""
    found = [view for one in results.finished(method, setting) for view in one.views]
    return list(dict.fromkeys([*found, method.view]))


# -------------------- differences, seed by seed


def differences(results: Results) -> list[Table]:
    """Return for each setting how far every method is above the `reference` of the study; nothing without one."""
    reference = next((one for one in results.methods if one.key == results.study.reference), None)
    if reference is None:
        return []
    return [_differences(results, s, reference) for s in results.settings if results.names(reference, s)]


def _differences(results: Results, setting: StudySetting, reference: StudyMethod) -> Table:
    others = [one for one in results.methods if one.key != reference.key and results.names(one, setting)]
    rows = [_difference(results, setting, one, reference) for one in (reference, *others)]
    notes = [
        "differences in points, for the seeds with which both methods had the same samples; -: no such seed; "
        "± standard error of the mean, where there are several seeds",
        f"first row: accuracy of {reference.name} in percent, mean over clients",
        TESTS_NOTE,
    ]
    title = f"differences, {setting.label}: each method less {reference.name}"
    head = ("method", "view", *TESTS, "seeds")
    return titled(results, Table(file_name("differences", setting), title, head, rows, notes, frozenset({(0, 0)})))


def _difference(results: Results, setting: StudySetting, method: StudyMethod, reference: StudyMethod) -> list[str]:
    row, seeds, is_first = [method.name, f"`{method.view}`"], "", method.key == reference.key
    for test in TESTS:
        own = results.figure(method, setting, method.view, test)
        figure = own if is_first else results.paired(method, reference, setting, test)
        if figure is None:
            row.append("-" if own is not None else cell(results, method, setting, method.view, test))
        else:
            row.append(with_error(figure, ".2f" if is_first else "+.2f"))
            seeds = seeds or str(figure.seeds)
    return [*row, seeds]


# -------------------- both tests at once


class Both(NamedTuple):
    """The accuracy of a method on both tests, over the same seeds."""

    method: StudyMethod
    balanced: Figure
    own: Figure
    is_on_front: bool = False


def both_tests(group: Group, setting: StudySetting) -> list[Both]:
    """Return the methods that have both figures, and which of them no other surpasses."""
    found = []
    for method in group.results.methods:
        balanced, own = (group.fair.figure(method, setting, method.view, test) for test in TESTS)
        if balanced is not None and own is not None:
            found.append(Both(method, balanced, own))
    front = pareto_front([(round(one.balanced.mean, 2), round(one.own.mean, 2)) for one in found])
    return [one._replace(is_on_front=i in front) for i, one in enumerate(found)]


def tradeoff(group: Group, setting: StudySetting) -> Table:
    """Return the accuracy on both tests, and the Pareto front."""
    results, rows = group.results, list[list[str]]()
    lacking = {method.key: method.name for method in results.methods if results.names(method, setting)}
    for method, balanced, own, is_on_front in both_tests(group, setting):
        figures = [with_error(balanced), with_error(own), str(own.seeds)]
        rows.append([method.name, f"`{method.view}`", *figures, "yes" if is_on_front else "no"])
        del lacking[method.key]
    notes = [
        TESTS_NOTE,
        group.note,
        "front: no other method is better on one test and at least as good on the other",
        *([f"left out, no figures: {', '.join(lacking.values())}"] if lacking else []),
    ]
    name, title = file_name(f"front{group.suffix}", setting), f"balanced and own accuracy{group.which}, {setting.label}"
    head = ("method", "view", "balanced", "own", "seeds", "front")
    return titled(results, Table(name, title, head, rows, notes))


# -------------------- for machines


def to_frame(results: Results) -> pandas.DataFrame:
    """Return all accuracies, a row for each setting, method, view and test."""
    return pandas.DataFrame(
        _line(results, method, setting, view, test)
        for setting in results.settings
        for method in results.methods
        if results.names(method, setting)
        for view in _views_of(results, method, setting)
        for test in TESTS
    )


def _line(results: Results, method: StudyMethod, setting: StudySetting, view: str, test: str) -> dict[str, object]:
    runs, figure = results.finished(method, setting), results.figure(method, setting, view, test)
    is_compared = view == method.view and test == setting.test
    return {
        "study": results.study.name,
        "tuned": results.choice.tuned,
        "quick": results.choice.quick,
        "setting": setting.key,
        "stands_in_for": setting.stands_in_for,
        "method": method.key,
        "algorithm": method.values.get("method", {}).get("name"),
        "view": view,
        "test": test,
        "compared": is_compared,
        "mean": None if figure is None else round(figure.mean, 2),
        "std": None if figure is None or figure.std is None else round(figure.std, 2),
        "seeds": 0 if figure is None else figure.seeds,
        "published": method.published.get(setting.key) if is_compared else None,
        "difference": results.difference(method, setting) if is_compared else None,
        "diverged": sum(one.diverged_in is not None for one in runs),
        "partition_sha256": " ".join(dict.fromkeys(one.summary["partition_sha256"] for one in runs)),
    }
