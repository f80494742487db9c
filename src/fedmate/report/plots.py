"""Pictures, as bytes. They need matplotlib, which is loaded only when something is drawn."""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmate.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS: dict[str, dict[str, None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""By suffix: what is not written into a picture, so that the same numbers give the same bytes."""

MOST = 200
"""Clients, or classes, that a picture can show."""

LETTER = 9.0
"""Points that a letter has; less where there are many names."""

STYLE = {
    "svg.hashsalt": "fedmate",
    "svg.fonttype": "none",
    "font.size": LETTER,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "sans-serif"],
}
"""On top of matplotlib's own defaults, whatever a user has set. Text stays text: smaller than outlines, and found."""

POINTS = 72
"""Points, in which circles are measured, to an inch, in which paper is."""

CELL = 0.28
"""Inches from one client, or class, to the next; less where there are many."""

SHEET = 12.0
"""Inches that a picture's sides have, about, unless there are so many that they need more."""

LARGEST, SMALLEST = 0.92, 1.0
"""Diameters: of the largest circle in cells, of the smallest in points, so that it is seen."""

NAME = 24
"""Characters of a class's name that are shown."""

COLOUR, LINES = "#2a6f97", "#dddddd"


class Holdings(NamedTuple):
    """Who holds how many samples of what.

    Attributes:
        counts: `[clients, classes]`.
        clients: what each client is called.
        classes: what each class is called.
        title: what stands above.
        notes: further lines of the title.
    """

    counts: NDArray[np.int64]
    clients: Sequence[str]
    classes: Sequence[str]
    title: str
    notes: Sequence[str] = ()


def check_picture(path: Path) -> None:
    """Raise `UserError` unless a picture can be drawn for a file of this name."""
    if path.suffix not in FORMATS:
        raise UserError(f"`{path}` ends in `{path.suffix}`; name the picture `.svg`, `.png` or `.pdf`.")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"`{path}` cannot be drawn without matplotlib; install it with `pip install 'fedmate[plots]'`.")


@contextmanager
def styled() -> Iterator[None]:
    """Draw in fedmate's style, whatever a user has set."""
    from matplotlib import style

    with style.context(["default", STYLE]), warnings.catch_warnings():
        # Letters that the font lacks are shown as boxes; not so in SVG, whose reader has fonts of its own.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def written(figure: Figure, suffix: str) -> bytes:
    """Return a drawing in one of the forms `FORMATS`; the same drawing gives the same bytes."""
    picture = io.BytesIO()
    figure.savefig(
        picture,
        format=suffix.removeprefix("."),
        metadata=FORMATS[suffix],
        bbox_inches="tight",
        pad_inches=0.1,
        dpi=150,
    )
    return picture.getvalue()


def plain(text: str) -> str:
    """Replace what no picture can show: line breaks and control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


def shortened(name: str) -> str:
    """Return a name no longer than is useful."""
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def draw_holdings(holdings: Holdings, suffix: str) -> bytes:
    """Return a picture with a circle for each client and class: its area is the number of samples.

    Args:
        holdings: what to draw, at least one sample.
        suffix: the form of it, one of `FORMATS`.
    """
    counts = holdings.counts
    if max(counts.shape) > MOST:
        clients, classes = counts.shape
        raise UserError(
            f"`--plot` would draw {clients} clients and {classes} classes, too many to tell apart; use at most {MOST} "
            "of each."
        )
    from matplotlib.figure import Figure

    wide, high = _cell(counts.shape)
    with styled():
        figure = Figure(figsize=(wide * counts.shape[0], high * counts.shape[1]))
        axes = figure.add_axes((0, 0, 1, 1))
        _draw_circles(axes, counts, LARGEST * POINTS * min(wide, high))
        _label(axes, holdings, (wide, high))
        return written(figure, suffix)


def _cell(shape: tuple[int, ...]) -> tuple[float, float]:
    """Return how wide and how high a cell is, in inches: many make it small, but not much narrower than high."""
    sides = [max(0.09, min(CELL, SHEET / number)) for number in shape]
    wide, high = (min(side, 1.5 * min(sides)) for side in sides)
    return wide, high


def _draw_circles(axes: Axes, counts: NDArray[np.int64], largest: float) -> None:
    """Draw the circles, and beside the picture some of them with the number they stand for."""
    from matplotlib.lines import Line2D

    looks: dict[str, Any] = {"linestyle": "none", "marker": "o", "markeredgewidth": 0, "color": COLOUR}
    found = np.unique(counts[counts > 0])
    diameters = _diameters(counts, found[-1], largest)
    # Those of one size together, which keeps the file small.
    for size in np.unique(diameters[counts > 0]):
        clients, classes = np.nonzero((diameters == size) & (counts > 0))
        axes.plot(clients, classes, markersize=size, zorder=2, **looks)
    shown = found if len(found) <= 3 else np.unique(-(-found[-1] // np.array([16, 4, 1])))
    sizes = _diameters(shown, found[-1], largest)
    named = [Line2D([], [], markersize=size, label=str(n), **looks) for n, size in zip(shown, sizes, strict=True)]
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1), "frameon": False}
    # In letters: as far apart as large circles need.
    axes.legend(handles=named[::-1], title="samples", labelspacing=max(0.5, largest / LETTER - 0.8), **place)


def _diameters(counts: NDArray[np.int64], most: int, largest: float) -> NDArray[np.float64]:
    """Return the diameters of circles whose areas are `counts`, in tenths of a point; `most` has the largest."""
    return np.round(largest * np.sqrt(counts / most), 1).clip(min=SMALLEST)


def _label(axes: Axes, holdings: Holdings, cell: tuple[float, float]) -> None:
    """Say what stands where, and draw lines to follow."""
    clients, classes = holdings.counts.shape
    across = np.array([(-0.5, clients - 0.5, math.nan)] * classes).ravel()
    upward = np.array([(-0.5, classes - 0.5, math.nan)] * clients).ravel()
    axes.plot(across, np.repeat(np.arange(classes), 3), color=LINES, linewidth=0.4, zorder=1)
    axes.plot(np.repeat(np.arange(clients), 3), upward, color=LINES, linewidth=0.4, zorder=1)
    axes.set(xlim=(-0.5, clients - 0.5), ylim=(-0.5, classes - 0.5))
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_title("\n".join(map(plain, (holdings.title, *holdings.notes))), parse_math=False)
    axes.tick_params(length=0)
    # Names of clients stand upright where they are longer than their cell is wide.
    turned = 90 if max(map(len, holdings.clients)) * 6 > cell[0] * POINTS else 0
    _name(axes.xaxis, holdings.clients, cell[0], turned)
    _name(axes.yaxis, holdings.classes, cell[1], 0)


def _name(axis: Axis, names: Sequence[str], cell: float, rotation: float) -> None:
    """Write the names beside an axis, as large as a cell allows and no longer than is useful."""
    shown = [shortened(plain(name)) for name in names]
    size = min(LETTER, 0.85 * POINTS * cell)
    axis.set_ticks(range(len(names)), labels=shown, fontsize=size, rotation=rotation, parse_math=False)
