"""Plots of records: lines by round, and partitions."""

from __future__ import annotations

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
    GRID,
    LETTER,
    Looks,
    arrange,
    check_plot,
    look,
    name_axis,
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
        """Return it as a file of one of `FORMATS`."""
        check_plot(Path(f"{self.name}{suffix}"))
        with styled():
            return written(self._draw(), suffix)

    @abstractmethod
    def _draw(self) -> Figure:
        """Draw it in fedmate's style."""


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


def entries_of(panels: Sequence[Panel], line: str | None = None) -> dict[str, Looks]:
    """Return the entries of the legend: the first look of each name."""
    found: dict[str, Looks] = {}
    for series in (series for panel in panels for series in panel.series):
        looks = look(series.look) | {"markersize": 5}
        found.setdefault(series.name, looks | ({"linestyle": line or series.line} if line or series.line else {}))
    return found


def _diameters(shares: NDArray[np.float64], largest: float) -> NDArray[np.float64]:
    return np.round(largest * np.sqrt(shares), 1).clip(min=1)
