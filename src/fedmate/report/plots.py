"""Plots of records: lines by round, two numbers against each other, and partitions."""

from __future__ import annotations

import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedmate.errors import UserError
from fedmate.report.drawing import (
    FORMATS,
    GREY,
    GRID,
    LETTER,
    STYLE,
    Looks,
    arrange,
    check_plot,
    look,
    name_axis,
    points,
)
from fedmate.report.tables import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 200
"""Clients, or classes, that a plot of partitions can show."""

FRONT: Looks = {"color": "#999999", "linewidth": 1.1, "zorder": 1.5}


class Series(NamedTuple):
    """Numbers that belong together.

    Attributes:
        name: in the legend, which has one entry for all series of a name.
        look: the number of its colour and marker.
        x, y: NaN where there is no point; `spread` is the standard deviation of each y, empty if unknown.
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


@dataclass(frozen=True)
class Plot(ABC):
    """A plot; `name` is that of its files."""

    name: str
    title: str

    def draw(self, suffix: str) -> bytes:
        """Return it as a file of one of `FORMATS`, in fedmate's style; the same numbers give the same bytes."""
        check_plot(Path(f"{self.name}{suffix}"))
        from matplotlib import style

        file = io.BytesIO()
        with style.context(["default", STYLE]), warnings.catch_warnings():
            # A box stands for a letter that the font lacks; readers of SVG have fonts of their own.
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            options: Looks = {"metadata": FORMATS[suffix], "bbox_inches": "tight", "pad_inches": 0.1, "dpi": 150}
            self._draw().savefig(file, format=suffix.removeprefix("."), **options)
        return file.getvalue()

    @abstractmethod
    def _draw(self) -> Figure: ...


@dataclass(frozen=True)
class Lines(Plot):
    """Lines in panels; `labels` are those of the axes."""

    panels: Sequence[Panel]
    labels: tuple[str, str]

    def _draw(self) -> Figure:
        return arrange((self.title, self.labels, self._entries()), self.panels, self._paint)

    def _entries(self) -> dict[str, Looks]:
        return entries_of(self.panels)

    def _paint(self, axes: Axes, panel: Panel) -> None:
        from matplotlib.ticker import MaxNLocator

        for series in panel.series:
            self._paint_line(axes, series)
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True))
        axes.grid(color=GRID, linewidth=0.4)

    def _paint_line(self, axes: Axes, series: Series) -> None:
        looks, y = look(series.look), np.array(series.y, dtype=float)
        looks |= {} if series.line is None else {"linestyle": series.line}
        # Markers of lines that lie close start at different points, so that none hides another.
        every = max(1, len(y) // 8)
        axes.plot(series.x, y, markevery=(series.look % every, every), **looks)
        if len(series.spread):
            spread = np.array(series.spread, dtype=float)
            axes.fill_between(series.x, y - spread, y + spread, color=looks["color"], alpha=0.15, linewidth=0)


def entries_of(panels: Sequence[Panel], line: str | None = None) -> dict[str, Looks]:
    """Return the entries of the legend: the first look of each name."""
    found: dict[str, Looks] = {}
    for series in (series for panel in panels for series in panel.series):
        style = line or series.line
        found.setdefault(series.name, {**look(series.look), "markersize": 5, **({"linestyle": style} if style else {})})
    return found


class Spot(NamedTuple):
    """A method with two numbers; `look` is the number of its colour and marker, `errors` are of x and y.

    `on_front`: no other is at least as large in both numbers. `beneath`: it is drawn below the others.
    """

    name: str
    look: int
    x: float
    y: float
    errors: tuple[float, float] | None
    on_front: bool
    beneath: bool = False


class _View(NamedTuple):
    """A panel of a trade-off: its edges, [axis, end], if they are not to fit all points, and a frame in it."""

    title: str
    edges: NDArray[np.float64] | None
    framed: NDArray[np.float64] | None


@final
@dataclass(frozen=True)
class Tradeoff(Plot):
    """Methods by two numbers, with error bars and the Pareto front; numbers beside points are those of the legend.

    Where many methods are good on both, a second panel shows their corner once more. `panel` is the title of the first
    one, `bars` the entry of error bars in the legend.
    """

    panel: str
    spots: Sequence[Spot]
    labels: tuple[str, str]
    bars: str

    def _draw(self) -> Figure:
        entries = {f"{i} {spot.name}": points(spot.look, 5.5) for i, spot in enumerate(self.spots, 1)}
        entries["Pareto front"] = FRONT
        if any(spot.errors for spot in self.spots):
            entries[self.bars] = {"color": GREY, "marker": "+", "markersize": 11, "linestyle": "none"}
        panels, size = [_View(self.panel, None, None)], (6.6, 5.0)
        places = np.array([(spot.x, spot.y) for spot in self.spots])
        crowd = places[(places >= places.min(0) + 0.75 * np.ptp(places, axis=0)).all(1)]
        if 6 <= len(crowd) < len(places) and np.ptp(crowd, axis=0).all():
            room = 0.25 * np.ptp(crowd, axis=0)
            corner = np.stack([crowd.min(0) - room, crowd.max(0) + room], axis=1)
            panels, size = (
                [_View(self.panel, None, corner), _View("the framed corner, closer", corner, None)],
                (5.4, 4.6),
            )
        return arrange((self.title, self.labels, entries), panels, self._paint, size)

    def _paint(self, axes: Axes, view: _View) -> None:
        for spot in self.spots:
            # The other view of the same runs is larger and below, so that both are seen.
            looks = points(spot.look, 8.5 if spot.beneath else 5.5)
            axes.plot([spot.x], [spot.y], zorder=3 - spot.beneath / 4, **looks)
            if spot.errors is not None:
                bars: Looks = {"ecolor": looks["color"], "elinewidth": 0.9, "alpha": 0.75, "zorder": 2.5}
                axes.errorbar(spot.x, spot.y, spot.errors[1], spot.errors[0], fmt="none", **bars)
        axes.margins(0.08)
        (left, right), (low, high) = (axes.get_xlim(), axes.get_ylim()) if view.edges is None else view.edges
        axes.set(xlim=(left, right), ylim=(low, high))
        front = sorted((spot.x, spot.y) for spot in self.spots if spot.on_front)
        # From the left edge along the points of the front to the lower edge.
        corners = [(left, front[0][1]), *front, (front[-1][0], low)]
        axes.step(*zip(*corners, strict=True), where="pre", **FRONT)
        if view.framed is not None:
            from matplotlib.patches import Rectangle

            start, size = view.framed[:, 0], np.ptp(view.framed, axis=1)
            axes.add_patch(Rectangle((start[0], start[1]), *size, fill=False, linestyle=":", edgecolor=GREY))
        axes.grid(color=GRID, linewidth=0.4)
        for (x, y), numbers in self._labels(view, 0.015 * np.array([right - left, high - low])):
            place: Looks = {"xytext": (4, 4), "textcoords": "offset points", "annotation_clip": True}
            axes.annotate(", ".join(map(str, numbers)), (x, y), fontsize=LETTER - 2, zorder=4, **place)

    def _labels(self, view: _View, near: NDArray[np.float64]) -> list[tuple[tuple[float, float], list[int]]]:
        """Return where numbers stand; those of points that are near each other stand together."""
        found: list[tuple[tuple[float, float], list[int]]] = []
        for number, spot in enumerate(self.spots, 1):
            place = np.array([spot.x, spot.y])
            if view.framed is not None and np.all((view.framed[:, 0] <= place) & (place <= view.framed[:, 1])):
                continue
            same = next((numbers for other, numbers in found if np.all(np.abs(place - other) <= near)), None)
            if same is None:
                found.append(((spot.x, spot.y), [number]))
            else:
                same.append(number)
        return found


@final
@dataclass(frozen=True)
class PartitionPlot(Plot):
    """The samples of each client and class, `[clients, classes]`, as circles."""

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
        circle: Looks = {"linestyle": "none", "marker": "o", "markeredgewidth": 0, "color": "#2a6f97"}
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


def _diameters(shares: NDArray[np.float64], largest: float) -> NDArray[np.float64]:
    return np.round(largest * np.sqrt(shares), 1).clip(min=1)
