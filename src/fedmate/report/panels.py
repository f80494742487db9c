"""Panels side by side with one title and one legend, and how rows and classes look in all of them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from fedmate.report.plots import LETTER, POINTS, plain, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#882255")
"""Those that people who see fewer colours tell apart: after Okabe and Ito, a dark red in place of their yellow."""

MARKERS = ("o", "s", "^", "D", "v", "P", "<", "X")

BESIDE = {1: 1, 2: 2, 4: 2}
"""By the number of panels: how many stand side by side; otherwise three."""

PANELS = {1: (4.4, 2.9), 2: (3.3, 2.4), 3: (2.5, 2.1)}
"""By how many stand side by side: the width and height of each, in inches, so that a page is filled."""

SMALL = LETTER - 1
"""Points that letters of legends and axes have."""

BESIDE_NAME = 0.55
"""Inches that the line beside a name of a legend takes, with the space around it."""


class Look(NamedTuple):
    """How a row, or a class, looks in all pictures; 64 are different."""

    colour: str
    marker: str
    filled: bool

    @classmethod
    def of(cls, number: int) -> Look:
        """Return the look of the row or class with this number."""
        group = number // len(COLOURS)
        return cls(COLOURS[number % len(COLOURS)], MARKERS[(number + group) % len(MARKERS)], group % 2 == 0)

    @property
    def line(self) -> str:
        """How its line looks."""
        return "-" if self.filled else "--"

    @property
    def points(self) -> dict[str, Any]:
        """What matplotlib wants to be told of its points."""
        inside = self.colour if self.filled else "white"
        return {"color": self.colour, "marker": self.marker, "markerfacecolor": inside, "markeredgewidth": 0.9}


Entries = list[tuple[str, dict[str, Any]]]
"""A legend: names, and what matplotlib wants to be told of the line beside each."""


class Frame(NamedTuple):
    """What is around panels.

    Attributes:
        title: of them all.
        labels: of their axes: below, and beside.
        entries: the legend.
        size: the width and height of a panel, in inches.
    """

    title: str
    labels: tuple[str, str]
    entries: Entries
    size: tuple[float, float]


class Titled(Protocol):
    """Anything with a title."""

    @property
    def title(self) -> str:
        """What stands above it."""


Part = TypeVar("Part", bound=Titled)


def draw_panels(frame: Frame, panels: Sequence[Part], paint: Callable[[Axes, Part], None], suffix: str) -> bytes:
    """Return a picture of panels, the legend below them."""
    return written(arrange_panels(frame, panels, paint), suffix)


def arrange_panels(frame: Frame, panels: Sequence[Part], paint: Callable[[Axes, Part], None]) -> Figure:
    """Return the same before it is written, for those who add what depends on where everything is."""
    from matplotlib.figure import Figure

    beside = beside_of(panels)
    below, width = math.ceil(len(panels) / beside), beside * frame.size[0]
    title, columns = _wrapped(frame.title, width, LETTER + 1), _columns([name for name, _ in frame.entries], width)
    # Lines of the title and the legend, of which none is taken from the panels.
    around = title.count("\n") + 2 + math.ceil(len(frame.entries) / columns)
    figure = Figure(figsize=(width, below * frame.size[1] + around * 1.5 * LETTER / POINTS), layout="constrained")
    places = figure.subplots(below, beside, squeeze=False).flatten()
    for number, (axes, panel) in enumerate(zip(places, panels, strict=False)):
        paint(axes, panel)
        axes.tick_params(labelsize=SMALL)
        axes.set_title(_wrapped(panel.title, frame.size[0], LETTER), fontsize=LETTER, parse_math=False)
        # Neighbours have the same axes, so it is enough to say it below the lowest and beside the first.
        across, upward = map(plain, frame.labels)
        axes.set_xlabel(across if number + beside >= len(panels) else "", parse_math=False)
        axes.set_ylabel("" if number % beside else upward, parse_math=False)
    for axes in places[len(panels) :]:
        axes.remove()
    figure.suptitle(title, fontsize=LETTER + 1, parse_math=False)
    _add_legend(figure, frame.entries, columns)
    return figure


def _add_legend(figure: Figure, entries: Entries, columns: int) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **looks) for _, looks in entries]
    place: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": SMALL, "ncols": columns}
    # Names are put in afterwards, for some versions of matplotlib leave out those that begin with an underscore.
    legend = figure.legend(handles, ["name"] * len(handles), **place)
    for text, (name, _) in zip(legend.get_texts(), entries, strict=True):
        text.set(text=plain(name), parse_math=False)


def beside_of(panels: Sequence[Titled]) -> int:
    """Return how many panels stand side by side."""
    return BESIDE.get(len(panels), 3)


def _columns(names: Sequence[str], width: float) -> int:
    """Return in how many columns the entries of a legend fit into a width, in inches; they go downwards first."""
    letters = np.array([len(name) for name in names])
    for columns in range(len(names), 1, -1):
        longest = [part.max() for part in np.array_split(letters, columns)]
        if sum(_width_of(number, SMALL) + BESIDE_NAME for number in longest) <= width:
            return columns
    return 1


def _wrapped(text: str, width: float, size: float) -> str:
    """Return text, line by line, in lines that fit into a width, in inches, with letters of a size, in points."""
    most = max(12, int(width / _width_of(1, size)))
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(plain(part), most))


def _width_of(letters: int, size: float) -> float:
    """Return about how many inches wide so many letters of a size, in points, are."""
    return letters * 0.58 * size / POINTS
