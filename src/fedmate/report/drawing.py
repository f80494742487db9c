"""How all plots look: colours, letters, panels side by side, the legend. Matplotlib is loaded only to draw.

Colours can be told apart with colour vision deficiencies, and every colour has a marker of its own.
"""

from __future__ import annotations

import importlib.util
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

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
GREY, GRID = "#555555", "#dddddd"

WIDTHS = {1: (4.4, 2.9), 2: (3.3, 2.4), 3: (2.5, 2.1)}
"""By the number of panels side by side: width and height of each in inches."""

Looks: TypeAlias = dict[str, Any]
"""Options of matplotlib."""


def check_plot(path: Path) -> None:
    """Raise `UserError` unless a plot can be drawn for a file of this name."""
    if path.suffix not in FORMATS:
        raise UserError(f"`{path}` ends in `{path.suffix}`; name the plot `.svg`, `.png` or `.pdf`.")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"`{path}` cannot be drawn without matplotlib; install it with `pip install 'fedmate[plots]'`.")


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


def arrange(
    around: tuple[str, tuple[str, str], Mapping[str, Looks]],
    panels: Sequence[Any],
    paint: Callable[[Axes, Any], None],
    size: tuple[float, float] | None = None,
) -> Figure:
    """Return panels side by side; around them are the title, the labels of axes, and the legend below."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    (title, labels, entries), beside = around, panels_beside(panels)
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


def panels_beside(panels: Sequence[Any]) -> int:
    """Return how many panels stand side by side."""
    return {1: 1, 2: 2, 4: 2}.get(len(panels), 3)


def name_axis(axis: Axis, names: Sequence[str], size: float = LETTER - 1, rotation: float = 0) -> None:
    """Write names beside an axis, each shortened to 24 characters."""
    shown = [name if len(name) <= 24 else f"{name[:23]}…" for name in map(plain, names)]
    axis.set_ticks(range(len(names)), labels=shown, fontsize=size, rotation=rotation, parse_math=False)
    axis.set_tick_params(length=0)


def _wrap(text: str, width: float, size: float) -> str:
    """Return text in lines that fit into a width in inches, with letters of a size in points."""
    most = max(12, int(width / _inches(1, size)))
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(plain(part), most))


def _inches(letters: int, size: float) -> float:
    return letters * 0.58 * size / 72
