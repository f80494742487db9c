"""Plots of records: lines by round, dots by class, points in a plane, partitions, and trade-offs of two numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedmate.errors import UserError
from fedmate.report.drawing import (
    BLUE,
    GREY,
    GRID,
    LETTER,
    WIDTHS,
    Looks,
    arrange,
    check_picture,
    look,
    name_axis,
    panels_beside,
    points,
    styled,
    written,
)
from fedmate.report.tables import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 200
"""Clients, or classes, that a plot of partitions can show."""


class Series(NamedTuple):
    """Numbers that belong together.

    Attributes:
        name: in the legend, which has one entry for all series of a name.
        look: the number of its colour and marker.
        x, y: NaN where there is no point; in a `Dots`, x is the number of the class.
        spread: the standard deviation of each y; empty if unknown.
        line: matplotlib's style of the line, if not that of the look.
    """

    name: str
    look: int
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()
    line: str | None = None


class Panel(NamedTuple):
    """A part of a plot with axes of its own."""

    title: str
    series: Sequence[Series]


class Cloud(NamedTuple):
    """A panel of points in a plane, `[points, 2]`, and the class of each."""

    title: str
    places: Sequence[tuple[float, float]]
    classes: Sequence[int]


@dataclass(frozen=True)
class Picture(ABC):
    """A plot; `name` is that of its files."""

    name: str
    title: str

    def draw(self, suffix: str) -> bytes:
        """Return it as a file of one of `FORMATS`."""
        check_picture(Path(f"{self.name}{suffix}"))
        with styled():
            return written(self._draw(), suffix)

    @abstractmethod
    def _draw(self) -> Figure:
        """Draw it in fedmate's style."""


@final
@dataclass(frozen=True)
class Lines(Picture):
    """Lines in panels.

    Attributes:
        labels: of the axes.
        ticks: the names of x = 0, 1, 2, ...; without them x are whole numbers.
        logarithmic: whether the y axis may be logarithmic, which it is if numbers differ enough.
        keys: further entries of the legend: a name and the style of a line.
        mark_best: whether the largest number of each line is marked.
    """

    panels: Sequence[Panel]
    labels: tuple[str, str]
    ticks: Sequence[str] = ()
    logarithmic: bool = False
    keys: Sequence[tuple[str, str]] = ()
    mark_best: bool = False

    def _draw(self) -> Figure:
        entries = _entries(self.panels) | {name: {"color": GREY, "linestyle": line} for name, line in self.keys}
        if self.mark_best:
            entries["best"] = _ring(GREY)
        return arrange((self.title, self.labels, entries), self.panels, self._paint)

    def _paint(self, axes: Axes, panel: Panel) -> None:
        from matplotlib.ticker import MaxNLocator

        for series in panel.series:
            looks, y = look(series.look), np.array(series.y, dtype=float)
            looks |= {} if series.line is None else {"linestyle": series.line}
            # Markers of lines that lie close start at different points, so that none hides another.
            every = max(1, len(y) // 8)
            axes.plot(series.x, y, markevery=(series.look % every, every), **looks)
            if len(series.spread):
                spread = np.array(series.spread, dtype=float)
                axes.fill_between(series.x, y - spread, y + spread, color=looks["color"], alpha=0.15, linewidth=0)
            if self.mark_best and np.isfinite(y).any():
                best = (series.x[int(np.nanargmax(y))], float(np.nanmax(y)))
                axes.plot(*([value] for value in best), **_ring(looks["color"]))
                place: Looks = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": LETTER - 1}
                axes.annotate(f"{best[1]:.2f}", best, color=looks["color"], **place)
        if self.ticks:
            name_axis(axes.xaxis, self.ticks)
        else:
            axes.xaxis.set_major_locator(MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True))
        if self.mark_best:
            axes.margins(0.07, 0.16)
        if self.logarithmic:
            _make_logarithmic(axes)
        axes.grid(color=GRID, linewidth=0.4)


@final
@dataclass(frozen=True)
class Dots(Picture):
    """A dot for each class and series, in panels; `label` is that of the x axis."""

    panels: Sequence[Panel]
    classes: Sequence[str]
    label: str

    def _draw(self) -> Figure:
        most = max(len(panel.series) for panel in self.panels)
        row = min(36, 864 / len(self.classes), 4.6 * most + 5)
        size = (WIDTHS[panels_beside(self.panels)][0], len(self.classes) * max(LETTER + 3, row) / 72 + 0.5)
        return arrange(
            (self.title, (self.label, "class"), _entries(self.panels, "none")), self.panels, self._paint, size
        )

    def _paint(self, axes: Axes, panel: Panel) -> None:
        number = len(self.classes)
        for k in range(0, number, 2):
            axes.axhspan(k - 0.5, k + 0.5, color="#f3f3f3", zorder=0)
        for i, series in enumerate(panel.series):
            rows, values = np.arange(number) + 0.8 * ((i + 0.5) / len(panel.series) - 0.5), np.array(series.y, float)
            axes.plot(values, rows, **points(series.look))
            if len(series.spread):
                bars: Looks = {"color": look(series.look)["color"], "linewidth": 0.8, "alpha": 0.6}
                axes.hlines(rows, values - np.array(series.spread), values + np.array(series.spread), **bars)
        axes.set(ylim=(number - 0.5, -0.5))
        name_axis(axes.yaxis, self.classes)
        axes.grid(axis="x", color=GRID, linewidth=0.4)


@final
@dataclass(frozen=True)
class Clouds(Picture):
    """Points in a plane, coloured by class, in panels."""

    panels: Sequence[Cloud]
    classes: Sequence[str]

    def _draw(self) -> Figure:
        entries = {self.classes[k]: points(k, 5) for k in sorted({k for panel in self.panels for k in panel.classes})}
        width = WIDTHS[panels_beside(self.panels)][0]
        return arrange((self.title, ("", ""), entries), self.panels, self._paint, (width, width))

    def _paint(self, axes: Axes, panel: Cloud) -> None:
        places, classes = np.array(panel.places).reshape(-1, 2), np.array(panel.classes)
        for k in np.unique(classes):
            axes.plot(*places[classes == k].T, **points(int(k)))
        if not len(places):
            axes.text(0.5, 0.5, "too few to be drawn", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")


@final
@dataclass(frozen=True)
class PartitionPlot(Picture):
    """The samples of each client and class, as circles.

    Attributes:
        counts: `[clients, classes]`.
        clients, classes: their names.
    """

    counts: NDArray[np.int64]
    clients: Sequence[str]
    classes: Sequence[str]

    def _draw(self) -> Figure:
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        clients, classes = self.counts.shape
        if max(clients, classes) > MOST:
            raise UserError(
                f"a plot of {clients} clients and {classes} classes is unreadable; use at most {MOST} of each."
            )
        # Inches of a cell: many cells are small, but not much narrower than high.
        sides = [max(0.09, min(0.28, 12 / number)) for number in self.counts.shape]
        wide, high = (min(side, 1.5 * min(sides)) for side in sides)
        figure = Figure(figsize=(wide * clients, high * classes))
        axes = figure.add_axes((0, 0, 1, 1))
        largest, most = 0.92 * 72 * min(wide, high), self.counts.max()
        x, y = np.nonzero(self.counts)
        # The area is the number of samples; the smallest circle is a point wide.
        diameters = _diameters(self.counts[x, y] / most, largest)
        circle: Looks = {"linestyle": "none", "marker": "o", "markeredgewidth": 0, "color": BLUE}
        for size in np.unique(diameters):
            # Circles of one size together keep the file small.
            axes.plot(x[diameters == size], y[diameters == size], markersize=size, zorder=2, **circle)
        found = np.unique(self.counts[x, y])
        shown = found if len(found) <= 3 else np.unique(-(-most // np.array([16, 4, 1])))
        sizes = _diameters(shown / most, largest)
        handles = [Line2D([], [], markersize=d, label=str(n), **circle) for n, d in zip(shown, sizes, strict=True)]
        place: Looks = {"loc": "upper left", "bbox_to_anchor": (1, 1), "frameon": False, "title": "samples"}
        axes.legend(handles=handles[::-1], labelspacing=max(0.5, largest / LETTER - 0.8), **place)
        axes.set(xlim=(-0.5, clients - 0.5), ylim=(-0.5, classes - 0.5), xlabel="client", ylabel="class")
        axes.set_title("\n".join(map(plain, self.title.split("\n"))), parse_math=False)
        # Names of clients stand upright where they are wider than a cell.
        turned = 90 if max(map(len, self.clients)) * 6 > wide * 72 else 0
        name_axis(axes.xaxis, self.clients, min(LETTER, 0.85 * 72 * wide), turned)
        name_axis(axes.yaxis, self.classes, min(LETTER, 0.85 * 72 * high))
        axes.grid(color=GRID, linewidth=0.4)
        axes.set_axisbelow(True)
        return figure


# -------------------- parts of plots


def _entries(panels: Sequence[Panel], line: str | None = None) -> dict[str, Looks]:
    """Return the entries of the legend: the first look of each name."""
    found: dict[str, Looks] = {}
    for series in (series for panel in panels for series in panel.series):
        looks = look(series.look) | {"markersize": 5}
        found.setdefault(series.name, looks | ({"linestyle": line or series.line} if line or series.line else {}))
    return found


def _ring(colour: str) -> Looks:
    return {"color": colour, "marker": "o", "markersize": 10, "markerfacecolor": "none", "linestyle": "none"}


def _diameters(shares: NDArray[np.float64], largest: float) -> NDArray[np.float64]:
    return np.round(largest * np.sqrt(shares), 1).clip(min=1)


def _make_logarithmic(axes: Axes) -> None:
    """Make the y axis logarithmic if numbers differ by a factor of five."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    found = np.concatenate([[math.nan], *(np.asarray(line.get_ydata(), dtype=float) for line in axes.lines)])
    positive = found[found > 0]
    if not len(positive) or positive.max() < 5 * positive.min():
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
