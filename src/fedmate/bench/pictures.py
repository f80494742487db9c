"""What was measured, as a picture: samples a second against the number of clients, a line for each runner."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedmate.bench.case import Case
from fedmate.bench.results import Results, Row
from fedmate.errors import UserError
from fedmate.report.plots import FORMATS, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL = (4.2, 3.4)
"""Inches of a panel: its width and its height."""

Line = tuple[list[int], list[float]]


def check_growth(cases: Iterable[Case]) -> None:
    """Raise `UserError` unless some cases differ in nothing but the number of clients."""
    works = {case.work for case in cases}
    if not any(one.clients != other.clients and _kind(one) == _kind(other) for one in works for other in works):
        raise UserError(
            "`--plot` draws speed against the number of clients, which is the same in all cases of a kind; measure "
            "`--suite clients`."
        )


def draw_growth(results: Results, suffix: str) -> bytes:
    """Return a picture with a panel for each kind of work that was measured with several numbers of clients.

    Args:
        results: what to draw.
        suffix: the form of it, one of `report.plots.FORMATS`.
    """
    rows = [row for row in results.rows if row.timing]
    check_growth(row.case for row in rows)
    panels = {kind: lines for kind, lines in _panels(rows).items() if len(_numbers(lines)) > 1}
    names = sorted({name for lines in panels.values() for name in lines})
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]):
        figure = Figure(figsize=(PANEL[0] * len(panels), PANEL[1]), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for place, (kind, lines) in zip(axes, panels.items(), strict=True):
            # One colour for a runner in all panels.
            _draw(place, kind, {name: (f"C{number}", lines.get(name)) for number, name in enumerate(names)})
        hardware = results.about["hardware"]
        figure.suptitle(hardware["gpu"] or f"{hardware['cpu']}, {hardware['cores']} cores")
        picture = io.BytesIO()
        figure.savefig(picture, format=suffix.removeprefix("."), metadata=FORMATS[suffix], dpi=150)
    return picture.getvalue()


def _kind(case: Case) -> str:
    """Say what is done, but for how many clients, in two lines."""
    varied = ", augmented" if case.augment else ""
    first = f"{case.method}, {case.network}, {case.samples} samples each"
    return f"{first}\n{case.classes} classes, batches of {case.batch_size}, {case.epochs} epochs{varied}"


def _panels(rows: list[Row]) -> dict[str, dict[str, Line]]:
    """Return by kind of work, and in it by runner, how many clients there were and how fast it was."""
    panels: dict[str, dict[str, Line]] = {}
    precise = len({row.case.precision for row in rows}) > 1
    for row in sorted(rows, key=lambda row: row.case.clients):
        assert row.timing is not None
        assert row.samples_per_s is not None
        name = f"{row.timing.ran_by}, {row.case.precision}" if precise else row.timing.ran_by
        line = panels.setdefault(_kind(row.case), {}).setdefault(name, ([], []))
        line[0].append(row.case.clients)
        line[1].append(row.samples_per_s)
    return panels


def _numbers(lines: dict[str, Line]) -> list[int]:
    """Return the numbers of clients that were measured."""
    return sorted({number for clients, _ in lines.values() for number in clients})


def _draw(axes: Axes, title: str, coloured: dict[str, tuple[str, Line | None]]) -> None:
    lines = {name: (colour, line) for name, (colour, line) in coloured.items() if line is not None}
    for name, (colour, (clients, speeds)) in lines.items():
        axes.plot(clients, speeds, label=name, color=colour, marker="o", markersize=4, linewidth=1.2)
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="training samples a second")
    shown = _numbers({name: line for name, (_, line) in lines.items()})
    axes.set_xticks(shown, labels=[str(number) for number in shown], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_title(title, fontsize=8)
    axes.grid(which="both", color="#dddddd", linewidth=0.4)
    axes.legend(fontsize=7)
