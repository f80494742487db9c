"""Plots that only the paper has: losses, lines over a weight, dots by class, and points in a plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from fedmate.report.drawing import GREY, GRID, LETTER, WIDTHS, Looks, arrange, look, name_axis, panels_beside, points
from fedmate.report.plots import Lines, Panel, Plot, Series, entries_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True)
class LossLines(Lines):
    """Lines on a logarithmic axis if numbers differ enough; `keys` are further entries of the legend, by line style."""

    keys: Sequence[tuple[str, str]]

    def _entries(self) -> dict[str, Looks]:
        return super()._entries() | {name: {"color": GREY, "linestyle": line} for name, line in self.keys}

    def _paint(self, axes: Axes, panel: Panel) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        super()._paint(axes, panel)
        found = np.concatenate([[math.nan], *(np.asarray(line.get_ydata(), dtype=float) for line in axes.lines)])
        positive = found[found > 0]
        if len(positive) and positive.max() >= 5 * positive.min():
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.grid(color=GRID, linewidth=0.4)


@final
@dataclass(frozen=True)
class WeightLines(Lines):
    """Lines over named weights; the largest number of each line is marked."""

    ticks: Sequence[str]

    def _entries(self) -> dict[str, Looks]:
        return super()._entries() | {"best": _ring(GREY)}

    def _paint(self, axes: Axes, panel: Panel) -> None:
        super()._paint(axes, panel)
        name_axis(axes.xaxis, self.ticks)
        axes.margins(0.07, 0.16)

    def _paint_line(self, axes: Axes, series: Series) -> None:
        super()._paint_line(axes, series)
        y, colour = np.array(series.y, dtype=float), look(series.look)["color"]
        if np.isfinite(y).any():
            best = (series.x[int(np.nanargmax(y))], float(np.nanmax(y)))
            axes.plot(*([value] for value in best), **_ring(colour))
            place: Looks = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": LETTER - 1}
            axes.annotate(f"{best[1]:.2f}", best, color=colour, **place)


class Cloud(NamedTuple):
    """A panel of points in a plane, `[points, 2]`, and the class of each."""

    title: str
    places: Sequence[tuple[float, float]]
    classes: Sequence[int]


@final
@dataclass(frozen=True)
class Dots(Plot):
    """A dot for each class and series, in panels; `label` is that of the x axis."""

    panels: Sequence[Panel]
    classes: Sequence[str]
    label: str

    def _draw(self) -> Figure:
        most = max(len(panel.series) for panel in self.panels)
        row = min(36, 864 / len(self.classes), 4.6 * most + 5)
        size = (WIDTHS[panels_beside(self.panels)][0], len(self.classes) * max(LETTER + 3, row) / 72 + 0.5)
        return arrange(
            (self.title, (self.label, "class"), entries_of(self.panels, "none")), self.panels, self._paint, size
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
class Clouds(Plot):
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


def _ring(colour: str) -> Looks:
    return {"color": colour, "marker": "o", "markersize": 10, "markerfacecolor": "none", "linestyle": "none"}
