"""Pictures of what came of a grid: curves, losses, classes, prototypes, who holds what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedmate.experiment.config import flat
from fedmate.report.figures import Circles, Cloud, Clouds, Dots, Lines, Panel, Picture, Series
from fedmate.report.plots import MOST, Holdings
from fedmate.report.sheets import Sheet
from fedmate.studies.embedding import Prototypes, embed, held_prototypes, silhouette
from fedmate.studies.grid import Column, Row
from fedmate.studies.kept import Kept
from fedmate.studies.outcome import Figure, Outcome, over_seeds
from fedmate.studies.sheets import dressed, label, name_for

OURS, PAPERS = 0, 3
"""The looks of our line and of the paper's."""

QUICK = "--quick: cut short, no figures to compare by"


# -------------------- by round


def curves(outcome: Outcome) -> list[Picture]:
    """Return the accuracy by round, each row in its view, with the standard deviation between seeds."""

    def series(row: Row, column: Column) -> list[Series]:
        runs = [_accuracies(kept, row.view, column.test) for kept in _shown(outcome, row, column)]
        return [_series(outcome, row, column, _over_rounds(runs))]

    panels = _panels(outcome, outcome.columns, series, lambda column: _tested(outcome, column))
    labels = ("round", _accuracy_label(outcome))
    return [Lines("curves", title_of(outcome, "accuracy by round"), panels, labels)] if panels else []


def losses(outcome: Outcome) -> list[Picture]:
    """Return the loss on clients' own samples before and after local training, by round."""
    ways = {"before": "-", "after": "--"}

    def series(row: Row, column: Column) -> list[Series]:
        found = {way: [_losses(kept, way) for kept in _shown(outcome, row, column)] for way in ways}
        lines = {way: _series(outcome, row, column, _over_rounds(found[way])) for way in ways}
        return [lines[way]._replace(line=look) for way, look in ways.items()]

    panels = _panels(outcome, outcome.columns, series)
    keys = [(f"{way} local training", look) for way, look in ways.items()]
    labels = ("round", "cross-entropy (nats)")
    title = title_of(outcome, "by round")
    return [Lines("losses", title, panels, labels, logarithmic=True, keys=keys)] if panels else []


class _Points(NamedTuple):
    """Points of a line; NaN where there is none. The spread is between seeds, and nothing if there is but one."""

    x: list[int]
    y: list[float]
    spread: list[float]

    @classmethod
    def of(cls, figures: Mapping[int, Figure | None]) -> _Points:
        """Read them from figures over seeds."""
        y = [math.nan if figure is None else figure.mean for figure in figures.values()]
        spread = [math.nan if figure is None or figure.std is None else figure.std for figure in figures.values()]
        return cls([*figures], y, [] if all(map(math.isnan, spread)) else spread)


def _over_rounds(runs: Sequence[Mapping[int, float]]) -> _Points:
    """Return the mean over runs in the rounds that all of them have."""
    rounds = sorted(set.intersection(*map(set, runs))) if runs else []
    return _Points.of({number: over_seeds([run[number] for run in runs]) for number in rounds})


def _shown(outcome: Outcome, row: Row, column: Column) -> list[Kept]:
    """Return the runs that are drawn: those that came to their end, or all if none did."""
    kept = outcome.kept(row, column)
    return [one for one in kept if one.diverged_in is None] or kept


def _accuracies(kept: Kept, view: str, test: str) -> dict[int, float]:
    found = {point["round"]: point["accuracy"].get(view, {}).get(test) for point in kept.content["curve"]}
    return {number: accuracy for number, accuracy in found.items() if accuracy is not None}


def _losses(kept: Kept, way: str) -> dict[int, float]:
    found = kept.content.get("losses", {}).get(way, [])
    return {number: loss for number, loss in enumerate(found, start=1) if loss is not None}


# -------------------- by class


def classwise(outcome: Outcome) -> list[Picture]:
    """Return the accuracy on each class, mean over clients, a picture for all columns with the same classes."""
    alike: dict[tuple[str, ...], list[Column]] = {}
    for column in outcome.columns:
        if (kept := _any(outcome, column)) is not None:
            alike.setdefault(tuple(_class_names(kept)), []).append(column)

    def series(row: Row, column: Column) -> list[Series]:
        runs = [kept.content.get("classes", {}).get(row.view, []) for kept in _shown(outcome, row, column)]
        by_class = enumerate(zip(*runs, strict=True))
        figures = {k: over_seeds([value for value in values if value is not None]) for k, values in by_class}
        return [_series(outcome, row, column, _Points.of(figures))]

    found: list[Picture] = []
    for classes, columns in alike.items():
        name = "classwise" if len(alike) == 1 else name_for("classwise", columns[0])
        panels, title = _panels(outcome, columns, series), title_of(outcome, "mean over clients")
        if panels:
            found.append(Dots(name, title, panels, classes, "accuracy (%)"))
    return found


# -------------------- by the number that rows are named after


def line(outcome: Outcome) -> list[Picture]:
    """Return the accuracy by what tells rows apart, ours and the paper's, with the best of each marked."""
    found = [(column, [*_beside(outcome, column)]) for column in outcome.columns]
    panels = [Panel(_tested(outcome, column), drawn) for column, drawn in found if drawn]
    labels = (_varied(outcome), _accuracy_label(outcome))
    ticks = [row.name for row in outcome.rows]
    title = title_of(outcome, "ours and the paper's")
    return [Lines("line", title, panels, labels, ticks, mark_best=True)] if panels else []


def _beside(outcome: Outcome, column: Column) -> Iterator[Series]:
    """Yield our line and the published one, each named after its data set if these are different."""
    figures = {i: outcome.figure(row, column, row.view, column.test) for i, row in enumerate(outcome.rows)}
    papers = {i: row.paper[column.key] for i, row in enumerate(outcome.rows) if column.key in row.paper}
    ours, paper = "ours (--quick)" if outcome.wanted.quick else "ours", "paper"
    if column.stands_in_for is not None:
        ours, paper = f"{ours}, on {column.data}", f"{paper}, on {column.stands_in_for}"
    if any(figures.values()):
        yield Series(ours, OURS, *_Points.of(figures))
    if papers:
        yield Series(paper, PAPERS, [*papers], [*papers.values()], line=":")


def _varied(outcome: Outcome) -> str:
    """Name what tells the rows apart: the experiment, and the option if it is a single one."""
    said = [flat(row.values) for row in outcome.rows]
    keys = [
        key for key in dict.fromkeys(key for row in said for key in row) if len({str(r.get(key)) for r in said}) > 1
    ]
    return f"{outcome.grid.name} ({keys[0]})" if len(keys) == 1 else outcome.grid.name


# -------------------- prototypes


def prototypes(outcome: Outcome) -> list[Sheet | Picture]:
    """Return local prototypes by t-SNE, a panel for each row, and how well they tell classes apart."""
    found = {
        (row.key, column.key): _prototypes(outcome, row, column) for column in outcome.columns for row in outcome.rows
    }
    figures = {place: _silhouette(of_seeds) for place, of_seeds in found.items()}
    clouds = [
        _clouds(outcome, column, {row.key: found[row.key, column.key] for row in outcome.rows})
        for column in outcome.columns
    ]
    return [_silhouettes(outcome, figures), *(cloud for cloud in clouds if cloud is not None)]


def _prototypes(outcome: Outcome, row: Row, column: Column) -> list[Prototypes]:
    """Return the prototypes of each seed."""
    names = [name for name in outcome.names(row, column) if "prototypes" in outcome.arrays.get(name, {})]
    return [
        held_prototypes(outcome.arrays[name]["prototypes"], outcome.found[name].content["holdings"]) for name in names
    ]


def _silhouette(of_seeds: Sequence[Prototypes]) -> Figure | None:
    return over_seeds([number for one in of_seeds if (number := silhouette(one)) is not None])


def _clouds(outcome: Outcome, column: Column, found: Mapping[str, Sequence[Prototypes]]) -> Clouds | None:
    """Return the picture of a column: the first seed of each row."""
    panels = [
        _cloud(row.name, found[row.key][0], _word(outcome, row, column)) for row in outcome.rows if found[row.key]
    ]
    kept = _any(outcome, column)
    if not panels or kept is None:
        return None
    name = "prototypes" if len(outcome.columns) == 1 else name_for("prototypes", column)
    seed = ", first seed" if outcome.wanted.seeds > 1 else ""
    title = title_of(outcome, f"t-SNE of local prototypes, {column.name}{seed}")
    return Clouds(name, title, panels, _class_names(kept))


def _word(outcome: Outcome, row: Row, column: Column) -> str:
    """Say why there is no number: the run diverged; nothing if it is not known."""
    return "diverged" if any(kept.diverged_in is not None for kept in outcome.kept(row, column)) else ""


def _cloud(name: str, shown: Prototypes, word: str) -> Cloud:
    number, places = silhouette(shown), embed(shown.points)
    title = f"{name}\n{word or 'silhouette unknown'}" if number is None else f"{name}\nsilhouette {number:.3f}"
    return Cloud(title, [(x, y) for x, y in places.tolist()], shown.classes.tolist() if len(places) else [])


def _silhouettes(outcome: Outcome, figures: Mapping[tuple[str, str], Figure | None]) -> Sheet:
    head = ["method", *(label(column) for column in outcome.columns)]
    rows = [[row.name] for row in outcome.rows]
    bold = set()
    for i, column in enumerate(outcome.columns, start=1):
        found = [figures[row.key, column.key] for row in outcome.rows]
        means = [math.nan if figure is None else round(figure.mean, 3) for figure in found]
        bold |= {(j, i) for j, mean in enumerate(means) if mean == np.nanmax([*means, -math.inf])}
        words = [
            _digits(figure) or _word(outcome, row, column) for row, figure in zip(outcome.rows, found, strict=True)
        ]
        rows = [[*row, word] for row, word in zip(rows, words, strict=True)]
    notes = [
        "silhouette of clients' prototypes by class, in the space of features: 1 is apart, 0 mixed, below 0 astray",
        "prototypes of the last round, of classes that a client holds; bold: the largest of a column",
        "± standard deviation between seeds, where there are several",
    ]
    return dressed(
        outcome, Sheet("silhouette", "how well prototypes tell classes apart", head, rows, notes, frozenset(bold))
    )


def _digits(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return f"{figure.mean:.3f}" if figure.std is None else f"{figure.mean:.3f} ± {figure.std:.3f}"


# -------------------- who holds what


def holdings(outcome: Outcome) -> list[Picture]:
    """Return who holds what in each column, with its first seed; none of more clients or classes than can be shown."""
    found: list[Picture] = []
    for column in outcome.columns:
        kept = _any(outcome, column)
        counts = np.array([] if kept is None else kept.content["holdings"], dtype=np.int64)
        if kept is None or not counts.any() or max(counts.shape) > MOST:
            continue
        about = Holdings(
            counts,
            [str(client) for client in range(len(counts))],
            _class_names(kept),
            f"{column.name}, seed {kept.config['seed']}",
            _warnings(outcome, [column]),
        )
        found.append(Circles(name_for("holdings", column), title_of(outcome, column.name), about))
    return found


# -------------------- what they share


def title_of(outcome: Outcome, what: str) -> str:
    """Return what stands above a picture: what it belongs to, what it shows, and what a reader must know."""
    tuned = ", tuned settings" if outcome.wanted.settings == "tuned" else ""
    warnings = _warnings(outcome, outcome.columns)
    return f"{outcome.grid.title}; {what}{tuned}" + (f" ({'; '.join(warnings)})" if warnings else "")


def _warnings(outcome: Outcome, columns: Sequence[Column]) -> list[str]:
    """Say what a reader must know before comparing what is drawn with what was published."""
    quick = [QUICK if outcome.grid.trains else "--quick"] if outcome.wanted.quick else []
    asked = {cell.column.key for cell in outcome.validated()} & {column.key for column in columns}
    missing: dict[str, list[str]] = {}
    for column in columns:
        if column.stands_in_for is not None and column.stands_in_for not in missing.get(column.data, []):
            missing.setdefault(column.data, []).append(column.stands_in_for)
    instead = [f"{data} stands in for {', '.join(names)}" for data, names in missing.items()]
    return [*quick, *instead, *(["validation samples, not the test split"] if asked else [])]


def run_with(column: Column) -> str:
    """Return a column's name, and what it was run with if that is something else."""
    return column.name if column.stands_in_for is None else f"{column.name}\n(run with {column.data})"


def _tested(outcome: Outcome, column: Column) -> str:
    """Return the same, and the test if other columns have another."""
    name, *rest = run_with(column).split("\n")
    test = f", {column.test} test" if len({one.test for one in outcome.columns}) > 1 else ""
    return "\n".join([name + test, *rest])


def _panels(
    outcome: Outcome,
    columns: Sequence[Column],
    series: Callable[[Row, Column], list[Series]],
    title: Callable[[Column], str] = run_with,
) -> list[Panel]:
    """Return a panel for each column in which there is something to draw."""
    found = []
    for column in columns:
        drawn = [one for row in outcome.rows for one in series(row, column) if np.isfinite(one.y).any()]
        found += [Panel(title(column), drawn)] if drawn else []
    return found


def _series(outcome: Outcome, row: Row, column: Column, points: _Points) -> Series:
    """Return a row's line: it looks alike in all pictures of a grid, whichever of its cells were meant."""
    number = next(i for i, one in enumerate(outcome.grid.rows) if one.key == row.key)
    view = f" ({row.view})" if len({one.view for one in outcome.rows}) > 1 else ""
    diverged = ", diverged" if all(kept.diverged_in is not None for kept in outcome.kept(row, column)) else ""
    return Series(f"{row.name}{view}{diverged}", number, *points)


def _accuracy_label(outcome: Outcome) -> str:
    tests = {column.test for column in outcome.columns}
    return f"accuracy (%), {min(tests)} test" if len(tests) == 1 else "accuracy (%)"


def _any(outcome: Outcome, column: Column) -> Kept | None:
    """Return one of the runs of a column, of the first seed if that is there."""
    names = [cell.name for cell in outcome.cells if cell.column.key == column.key]
    return next((outcome.found[name] for name in names if name in outcome.found), None)


def _class_names(kept: Kept) -> list[str]:
    numbers = [str(k) for k in range(len(kept.content["holdings"][0]))]
    return list(kept.content.get("class_names", numbers))
