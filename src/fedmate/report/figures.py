"""Pictures of what experiments found. They need matplotlib, which is loaded only when something is drawn."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from fedmate.report.panels import PANELS, SMALL, Entries, Frame, Look, beside_of, draw_panels
from fedmate.report.plots import (
    LETTER,
    LINES,
    POINTS,
    SHEET,
    Holdings,
    check_picture,
    draw_holdings,
    plain,
    shortened,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_MARKERS = 8
"""About how many points of a long line have a marker."""

WIDE = 5.0
"""The factor between the largest and the smallest number from which on they are drawn by factors."""


class Series(NamedTuple):
    """Numbers that belong together.

    Attributes:
        name: what the legend calls it; one entry for all of a name.
        look: the number of its look.
        x, y: of its points; NaN where there is none. What has classes for x has none.
        spread: how far numbers may be off, up and down; nothing where that is not known.
        line: how it is drawn, if not as its look says.
    """

    name: str
    look: int
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()
    line: str | None = None


class Panel(NamedTuple):
    """A part of a picture with axes of its own."""

    title: str
    series: Sequence[Series]


class Cloud(NamedTuple):
    """A panel of points in a plane: places `[points, 2]`, and the class of each."""

    title: str
    places: Sequence[tuple[float, float]]
    classes: Sequence[int]


@dataclass(frozen=True)
class Picture(ABC):
    """Something to draw; fields are what it shows.

    Attributes:
        name: what its files are called.
        title: what stands above it.
    """

    name: str
    title: str

    def draw(self, suffix: str) -> bytes:
        """Return it in one of the forms `plots.FORMATS`; the same numbers give the same bytes."""
        check_picture(Path(f"{self.name}{suffix}"))
        with styled():
            return self._draw(suffix)

    @abstractmethod
    def _draw(self, suffix: str) -> bytes:
        """Draw it, in fedmate's style."""


@final
@dataclass(frozen=True)
class Lines(Picture):
    """Lines, some panels of them.

    Attributes:
        labels: what the axes show, with units: to the right, and upwards.
        ticks: what stands at 0, 1, 2, ... to the right; whole numbers if there is nothing.
        logarithmic: whether numbers grow by factors upwards, where they differ enough for that.
        keys: further entries of the legend: a name, and how a line looks that means it.
        mark_best: whether the largest number of each line has a ring around it.
    """

    panels: Sequence[Panel]
    labels: tuple[str, str]
    ticks: Sequence[str] = ()
    logarithmic: bool = False
    keys: Sequence[tuple[str, str]] = ()
    mark_best: bool = False

    def _draw(self, suffix: str) -> bytes:
        frame = Frame(self.title, self.labels, _entries(self.panels), PANELS[beside_of(self.panels)])
        for name, line in self.keys:
            frame.entries.append((name, {"color": "#555555", "linestyle": line}))
        if self.mark_best:
            frame.entries.append(("best", _ring("#555555")))
        return draw_panels(frame, self.panels, self._paint, suffix)

    def _paint(self, axes: Axes, panel: Panel) -> None:
        from matplotlib.ticker import MaxNLocator

        for series in panel.series:
            look = Look.of(series.look)
            x, y = np.array(series.x), np.array(series.y, dtype=float)
            every = max(1, len(x) // SHOWN_MARKERS)
            # Each begins elsewhere, or markers of lines that lie close would cover each other.
            seen = (series.look % every, every)
            line = look.line if series.line is None else series.line
            axes.plot(x, y, linestyle=line, linewidth=1.3, markersize=4, markevery=seen, **look.points)
            if len(series.spread):
                spread = np.array(series.spread, dtype=float)
                axes.fill_between(x, y - spread, y + spread, color=look.colour, alpha=0.15, linewidth=0)
            if self.mark_best and np.isfinite(y).any():
                _mark(axes, float(x[np.nanargmax(y)]), float(np.nanmax(y)), look.colour)
        if self.ticks:
            axes.set_xticks(range(len(self.ticks)), labels=[shortened(plain(t)) for t in self.ticks], parse_math=False)
        else:
            axes.xaxis.set_major_locator(MaxNLocator("auto", steps=(1, 2, 5, 10), integer=True))
        if self.mark_best:
            axes.margins(0.07, 0.16)
        if self.logarithmic:
            _grow_by_factors(axes)
        axes.grid(color=LINES, linewidth=0.4)


@final
@dataclass(frozen=True)
class Dots(Picture):
    """A dot for each class and series, some panels of them; what is upwards in other pictures is to the right here.

    Attributes:
        classes: what each is called.
        label: what dots show, with its unit.
    """

    panels: Sequence[Panel]
    classes: Sequence[str]
    label: str

    def _draw(self, suffix: str) -> bytes:
        most = max(len(panel.series) for panel in self.panels)
        width, _ = PANELS[beside_of(self.panels)]
        # As high as dots need that lie below each other, in points, unless there are many; a letter at least.
        largest = min(36, SHEET * POINTS / len(self.classes))
        height = len(self.classes) * max(LETTER + 3, min(largest, 4.6 * most + 5)) / POINTS + 0.5
        frame = Frame(self.title, (self.label, "class"), _entries(self.panels, lines=False), (width, height))
        return draw_panels(frame, self.panels, self._paint, suffix)

    def _paint(self, axes: Axes, panel: Panel) -> None:
        number = len(self.classes)
        for k in range(0, number, 2):
            axes.axhspan(k - 0.5, k + 0.5, color="#f3f3f3", zorder=0)
        for i, series in enumerate(panel.series):
            look, rows = Look.of(series.look), np.arange(number) + 0.8 * ((i + 0.5) / len(panel.series) - 0.5)
            values = np.array(series.y, dtype=float)
            if len(series.spread):
                spread = np.array(series.spread, dtype=float)
                axes.hlines(rows, values - spread, values + spread, color=look.colour, linewidth=0.8, alpha=0.6)
            axes.plot(values, rows, linestyle="none", markersize=4, **look.points)
        axes.set(ylim=(number - 0.5, -0.5))
        axes.set_yticks(range(number), labels=[shortened(plain(name)) for name in self.classes], parse_math=False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=LINES, linewidth=0.4)


@final
@dataclass(frozen=True)
class Clouds(Picture):
    """Points in a plane, coloured by class, some panels of them; `classes` is what each is called."""

    panels: Sequence[Cloud]
    classes: Sequence[str]

    def _draw(self, suffix: str) -> bytes:
        seen = sorted({k for panel in self.panels for k in panel.classes})
        entries: Entries = [
            (self.classes[k], {**Look.of(k).points, "linestyle": "none", "markersize": 5}) for k in seen
        ]
        width, _ = PANELS[beside_of(self.panels)]
        # The axes of such a plane mean nothing.
        frame = Frame(self.title, ("", ""), entries, (width, width))
        return draw_panels(frame, self.panels, self._paint, suffix)

    def _paint(self, axes: Axes, panel: Cloud) -> None:
        places, classes = np.array(panel.places).reshape(-1, 2), np.array(panel.classes)
        for k in np.unique(classes):
            x, y = places[classes == k].T
            axes.plot(x, y, linestyle="none", markersize=4, **Look.of(int(k)).points)
        if not len(places):
            axes.text(0.5, 0.5, "too few to be drawn", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")


@final
@dataclass(frozen=True)
class Circles(Picture):
    """Who holds what: a circle for each client and class."""

    holdings: Holdings

    def _draw(self, suffix: str) -> bytes:
        return draw_holdings(self.holdings, suffix)


# -------------------- what they share


def _entries(panels: Sequence[Panel], *, lines: bool = True) -> Entries:
    """Return an entry for each name, as it looks first."""
    found: dict[str, dict[str, Any]] = {}
    for series in (series for panel in panels for series in panel.series):
        look = Look.of(series.look)
        line = (look.line if series.line is None else series.line) if lines else "none"
        found.setdefault(series.name, {**look.points, "linestyle": line, "linewidth": 1.3, "markersize": 5})
    return list(found.items())


def _ring(colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "o", "markersize": 10, "markerfacecolor": "none", "linestyle": "none"}


def _mark(axes: Axes, x: float, y: float, colour: str) -> None:
    """Put a ring around a point, and its number above it."""
    axes.plot([x], [y], **_ring(colour))
    place: dict[str, Any] = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
    axes.annotate(f"{y:.2f}", (x, y), color=colour, fontsize=SMALL, **place)


def _grow_by_factors(axes: Axes) -> None:
    """Let numbers grow by factors upwards, with a few of them written beside, unless they are much alike."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    found = np.concatenate([[math.nan], *(line.get_ydata() for line in axes.lines)])
    positive = found[found > 0]
    if not len(positive) or positive.max() < WIDE * positive.min():
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
