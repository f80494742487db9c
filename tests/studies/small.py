"""Grids and outcomes from plain numbers: nothing is run.

grid = grid_of(columns=[column("s10")], rows=[row("fedavg", paper={"s10": 49.39})])
outcome = outcome_of(grid, {"s10/fedavg": [Run({"pre": (50.0, 60.0)}), Run({"pre": (52.0, 61.0)})]})
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedmate.experiment.config import Values
from fedmate.studies.grid import TESTS, Cell, Column, Grid, Row, Wanted
from fedmate.studies.kept import FORMAT, Kept, source_digest
from fedmate.studies.outcome import Outcome

Accuracy = Mapping[str, tuple[float | None, float | None] | None]
"""By view: on the balanced and on the own test; `None` for a view that the method does not have."""


class Run(NamedTuple):
    """What came of a cell.

    Attributes:
        accuracy: at the end.
        curve: evaluated rounds: the round, the seconds until then, the accuracy.
        up, down: bytes by item, over all clients and rounds.
        losses: before and after local training, round by round.
        classes: the accuracy on each class, by view.
        holdings: samples by client and class.
        arrays: what is kept beside it.
        more: further entries of the JSON.
    """

    accuracy: Accuracy
    curve: Sequence[tuple[int, float, Accuracy]] = ()
    up: Mapping[str, int] = {}
    down: Mapping[str, int] = {}
    losses: Mapping[str, Sequence[float | None]] = {"before": (), "after": ()}
    classes: Mapping[str, Sequence[float | None]] = {}
    holdings: Sequence[Sequence[int]] = ((3, 1), (1, 3))
    diverged_in: int | None = None
    sha256: str = "ab" * 32
    arrays: Mapping[str, Tensor] | None = None
    more: Mapping[str, Any] = {}


def column(
    key: str,
    *,
    name: str | None = None,
    test: str = "balanced",
    values: Values | None = None,
    stands_in_for: str | None = None,
) -> Column:
    """Return a column; without `values` it is `digits`, dealt by a share that its key says if it is like `s30`."""
    share = float(key[1:]) if key[:1] == "s" and key[1:].isdigit() else 50.0
    return Column(key, name or key, test, values or {"partition": {"name": "share", "share": share}}, (), stands_in_for)


def row(
    key: str,
    *,
    name: str | None = None,
    view: str = "pre",
    method: Values | None = None,
    paper: Mapping[str, float] | None = None,
) -> Row:
    """Return a row; without `method` its key names one."""
    return Row(key, name or key, view, {"method": method or {"name": key}}, paper or {})


def grid_of(
    columns: Sequence[Column], rows: Sequence[Row], *, title: str = "A table", source: str = "Table 0", rounds: int = 10
) -> Grid:
    """Return a grid."""
    base: Values = {"rounds": rounds, "eval_every": 1}
    quick: Values = {"rounds": 2}
    return Grid("small", title, source, ("accuracy",), (), True, base, quick, tuple(columns), tuple(rows))


def outcome_of(grid: Grid, runs: Mapping[str, Sequence[Run | None]], wanted: Wanted | None = None) -> Outcome:
    """Return what came of a grid.

    Args:
        grid: what was to be run.
        runs: by `column/row`, a run for each seed from 0; `None`, or nothing, where it is not finished.
        wanted: which cells were meant; there are as many seeds as some cell has runs.
    """
    seeds = max((len(of_cell) for of_cell in runs.values()), default=1)
    wanted = (wanted or Wanted())._replace(seeds=seeds)
    cells = grid.cells(wanted)
    found: dict[str, Kept] = {}
    arrays: dict[str, Mapping[str, Tensor]] = {}
    for cell in cells:
        of_cell = runs.get(cell.key, ())
        run = of_cell[cell.seed] if cell.seed < len(of_cell) else None
        if run is not None:
            found[cell.name] = kept_of(cell, run)
            arrays |= {} if run.arrays is None else {cell.name: run.arrays}
    return Outcome(grid, wanted, cells, found, arrays)


def kept_of(cell: Cell, run: Run) -> Kept:
    """Return what would be kept of a cell."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "date": "2025-01-31",
        "command": "fedmate run",
        "environment": {"fedmate": "0"},
        "config": tomllib.loads(cell.experiment.to_toml()),
        "summary": _summary(run),
        "classes": {view: list(figures) for view, figures in run.classes.items()},
        "holdings": [list(client) for client in run.holdings],
        "curve": [
            {"round": number, "seconds": seconds, "accuracy": _by_test(accuracy)}
            for number, seconds, accuracy in run.curve
        ],
        "losses": {when: list(values) for when, values in run.losses.items()},
        "method_sha256": source_digest(cell.experiment.method.name),
        **run.more,
    }
    return Kept(cell.name, content)


def _summary(run: Run) -> dict[str, Any]:
    figures = _by_test(run.accuracy)
    means = {
        view: {test: {"mean": mean, "std": 1.0} for test, mean in means.items()} for view, means in figures.items()
    }
    return {
        "accuracy": {view: means.get(view) for view in run.accuracy},
        "bytes_up": sum(run.up.values()),
        "bytes_down": sum(run.down.values()),
        "bytes_up_items": dict(run.up),
        "bytes_down_items": dict(run.down),
        "seconds": run.curve[-1][1] if run.curve else 1.0,
        "partition_sha256": run.sha256,
        "diverged_in_round": run.diverged_in,
    }


def _by_test(accuracy: Accuracy) -> dict[str, dict[str, float | None]]:
    """Return it without the views that the method does not have."""
    return {view: dict(zip(TESTS, f, strict=True)) for view, f in accuracy.items() if f is not None}
