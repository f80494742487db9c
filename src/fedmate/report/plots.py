"""Plots of records, as bytes. Matplotlib is loaded only when something is drawn.

Colours can be told apart with colour vision deficiencies, and every colour has a marker of its own.
"""

from __future__ import annotations

import importlib.util
import io
import math
import textwrap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from fedmate.errors import UserError
from fedmate.report.tables import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS: dict[str, dict[str, None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""By suffix: the metadata that are left out, so that the same numbers give the same bytes."""

LETTER = 9.0
"""The size of letters in points; legends, axes and labels have smaller ones."""

STYLE = {
    "svg.hashsalt": "fedmate",
    # Text stays text: smaller than outlines, and searchable.
    "svg.fonttype": "none",
    "font.size": LETTER,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
}

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#882255")
"""After Okabe and Ito, with a dark red in place of their yellow."""

MARKERS = ("o", "s", "^", "D", "v", "P", "<", "X")
GREY, GRID, BLUE = "#555555", "#dddddd", "#2a6f97"

MOST = 200
"""Clients, or classes, that a plot of partitions can show."""

LONGEST = 24
"""Characters of a name beside an axis or a point."""

WIDTHS = {1: (4.4, 2.9), 2: (3.3, 2.4), 3: (2.5, 2.1)}
"""By the number of panels side by side: width and height of each in inches."""

Looks: TypeAlias = dict[str, Any]
"""Options of matplotlib."""


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


class Spot(NamedTuple):
    """A method with two numbers.

    Attributes:
        name: in the legend.
        look: the number of its colour and marker.
        x, y: the numbers.
        errors: of x and y; `None` if unknown.
        on_front: whether no other is at least as large in both numbers.
        beneath: whether it is drawn below the others.
    """

    name: str
    look: int
    x: float
    y: float
    errors: tuple[float, float] | None
    on_front: bool
    beneath: bool = False


def check_picture(path: Path) -> None:
    """Raise `UserError` unless a plot can be drawn for a file of this name."""
    if path.suffix not in FORMATS:
        raise UserError(f"`{path}` ends in `{path.suffix}`; name the plot `.svg`, `.png` or `.pdf`.")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"`{path}` cannot be drawn without matplotlib; install it with `pip install 'fedmate[plots]'`.")


@contextmanager
def styled() -> Iterator[None]:
    """Draw in fedmate's style, not in the user's."""
    from matplotlib import style

    with style.context(["default", STYLE]), warnings.catch_warnings():
        # A box stands for a letter that the font lacks; readers of SVG have fonts of their own.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def written(figure: Figure, suffix: str) -> bytes:
    """Return a figure as a file; the same figure gives the same bytes."""
    file, form = io.BytesIO(), suffix.removeprefix(".")
    figure.savefig(file, format=form, metadata=FORMATS[suffix], bbox_inches="tight", pad_inches=0.1, dpi=150)
    return file.getvalue()


def look(number: int) -> Looks:
    """Return the colour, marker and line of a method or a class; 64 are different."""
    group = number // len(COLOURS)
    colour, filled = COLOURS[number % len(COLOURS)], group % 2 == 0
    return {
        "color": colour,
        "marker": MARKERS[(number + group) % len(MARKERS)],
        "markerfacecolor": colour if filled else "white",
        "markeredgewidth": 0.9,
        "markersize": 4,
        "linestyle": "-" if filled else "--",
        "linewidth": 1.3,
    }


def points(number: int, size: float = 4) -> Looks:
    """Return the same without a line."""
    return {**look(number), "linestyle": "none", "markersize": size}


# -------------------- plots


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
        return _arrange((self.title, self.labels, entries), self.panels, self._paint)

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
            _name(axes.xaxis, self.ticks)
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
        size = (WIDTHS[_beside(self.panels)][0], len(self.classes) * max(LETTER + 3, row) / 72 + 0.5)
        return _arrange(
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
        _name(axes.yaxis, self.classes)
        axes.grid(axis="x", color=GRID, linewidth=0.4)


@final
@dataclass(frozen=True)
class Clouds(Picture):
    """Points in a plane, coloured by class, in panels."""

    panels: Sequence[Cloud]
    classes: Sequence[str]

    def _draw(self) -> Figure:
        entries = {self.classes[k]: points(k, 5) for k in sorted({k for panel in self.panels for k in panel.classes})}
        width = WIDTHS[_beside(self.panels)][0]
        return _arrange((self.title, ("", ""), entries), self.panels, self._paint, (width, width))

    def _paint(self, axes: Axes, panel: Cloud) -> None:
        places, classes = np.array(panel.places).reshape(-1, 2), np.array(panel.classes)
        for k in np.unique(classes):
            axes.plot(*places[classes == k].T, **points(int(k)))
        if not len(places):
            axes.text(0.5, 0.5, "too few to be drawn", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")


@final
@dataclass(frozen=True)
class Tradeoff(Picture):
    """Methods by two numbers, with error bars and the Pareto front; numbers beside points are those of the legend.

    Where many methods are good on both, a second panel shows their corner once more.

    Attributes:
        panel: the title of the panel.
        spots: the methods.
        labels: of the axes.
        bars: the entry of error bars in the legend.
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
        corner = self.corner()
        panels = [_View(self.panel, None, corner)]
        panels += [] if corner is None else [_View("the framed corner, closer", corner, None)]
        size = (6.6, 5.0) if corner is None else (5.4, 4.6)
        return _arrange((self.title, self.labels, entries), panels, self._paint, size)

    def corner(self) -> NDArray[np.float64] | None:
        """Return the edges, [axis, end], of the corner of the largest numbers if it holds many, but not all."""
        places = np.array([(spot.x, spot.y) for spot in self.spots])
        crowd = places[(places >= places.min(0) + 0.75 * np.ptp(places, axis=0)).all(1)]
        if not 6 <= len(crowd) < len(places) or not np.ptp(crowd, axis=0).all():
            return None
        room = 0.25 * np.ptp(crowd, axis=0)
        edges: NDArray[np.float64] = np.stack([crowd.min(0) - room, crowd.max(0) + room], axis=1)
        return edges

    def _paint(self, axes: Axes, view: _View) -> None:
        for spot in self.spots:
            # The other view of the same runs is larger and below, so that both are seen.
            axes.plot(
                [spot.x], [spot.y], zorder=3 - spot.beneath / 4, **points(spot.look, 8.5 if spot.beneath else 5.5)
            )
            if spot.errors is not None:
                bars: Looks = {"ecolor": look(spot.look)["color"], "elinewidth": 0.9, "alpha": 0.75, "zorder": 2.5}
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
            if _is_inside(spot, view.framed):
                continue
            for (x, y), numbers in found:
                if abs(spot.x - x) <= near[0] and abs(spot.y - y) <= near[1]:
                    numbers.append(number)
                    break
            else:
                found.append(((spot.x, spot.y), [number]))
        return found


class _View(NamedTuple):
    """A panel of a trade-off: its edges if they are not to fit all points, and a frame in it."""

    title: str
    edges: NDArray[np.float64] | None
    framed: NDArray[np.float64] | None


def _is_inside(spot: Spot, edges: NDArray[np.float64] | None) -> bool:
    return edges is not None and bool(np.all((edges[:, 0] <= (spot.x, spot.y)) & ((spot.x, spot.y) <= edges[:, 1])))


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
        _name(axes.xaxis, self.clients, min(LETTER, 0.85 * 72 * wide), turned)
        _name(axes.yaxis, self.classes, min(LETTER, 0.85 * 72 * high))
        axes.grid(color=GRID, linewidth=0.4)
        axes.set_axisbelow(True)
        return figure


# -------------------- parts of plots

FRONT: Looks = {"color": "#999999", "linewidth": 1.1, "zorder": 1.5}


def _arrange(
    around: tuple[str, tuple[str, str], Mapping[str, Looks]],
    panels: Sequence[Any],
    paint: Callable[[Axes, Any], None],
    size: tuple[float, float] | None = None,
) -> Figure:
    """Return panels side by side; around them are the title, the labels of axes, and the legend below."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    (title, labels, entries), beside = around, _beside(panels)
    wide, high = size or WIDTHS[beside]
    below, width, small = math.ceil(len(panels) / beside), beside * wide, LETTER - 1
    title = _wrap(title, width, LETTER + 1)
    columns = max(1, min(len(entries), int(width / (_inches(max(map(len, entries)), small) + 0.55))))
    lines = title.count("\n") + 2 + math.ceil(len(entries) / columns)
    figure = Figure(figsize=(width, below * high + lines * 1.5 * LETTER / 72), layout="constrained")
    places = figure.subplots(below, beside, squeeze=False).flatten()
    for number, (axes, panel) in enumerate(zip(places, panels, strict=False)):
        paint(axes, panel)
        axes.tick_params(labelsize=small)
        axes.set_title(_wrap(panel.title, wide, LETTER), fontsize=LETTER, parse_math=False)
        # Panels have the same axes: labels are below the lowest and beside the first.
        axes.set_xlabel(plain(labels[0]) if number + beside >= len(panels) else "", parse_math=False)
        axes.set_ylabel("" if number % beside else plain(labels[1]), parse_math=False)
    for axes in places[len(panels) :]:
        axes.remove()
    figure.suptitle(title, fontsize=LETTER + 1, parse_math=False)
    handles = [Line2D([], [], **looks) for looks in entries.values()]
    place: Looks = {"loc": "outside lower center", "frameon": False, "fontsize": small, "ncols": columns}
    # Matplotlib leaves out names that begin with an underscore, unless they are set afterwards.
    legend = figure.legend(handles, ["name"] * len(handles), **place)
    for text, name in zip(legend.get_texts(), entries, strict=True):
        text.set(text=plain(name), parse_math=False)
    return figure


def _beside(panels: Sequence[Any]) -> int:
    return {1: 1, 2: 2, 4: 2}.get(len(panels), 3)


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


def _name(axis: Axis, names: Sequence[str], size: float = LETTER - 1, rotation: float = 0) -> None:
    """Write names beside an axis."""
    shown = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in map(plain, names)]
    axis.set_ticks(range(len(names)), labels=shown, fontsize=size, rotation=rotation, parse_math=False)
    axis.set_tick_params(length=0)


def _wrap(text: str, width: float, size: float) -> str:
    """Return text in lines that fit into a width in inches, with letters of a size in points."""
    most = max(12, int(width / _inches(1, size)))
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(plain(part), most))


def _inches(letters: int, size: float) -> float:
    """Return the approximate width of letters of a size in points."""
    return letters * 0.58 * size / 72
