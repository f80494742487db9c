"""Pictures of two numbers of which more is better: who has how much of both, and whom nobody surpasses."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedmate.report.figures import Picture
from fedmate.report.labels import Scene, boxes_around, nearest_in, place_names
from fedmate.report.panels import Entries, Frame, Look, arrange_panels
from fedmate.report.plots import LETTER, LINES, NAME, POINTS, plain, shortened, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

SIZE, TWO = (6.6, 5.0), (5.4, 4.6)
"""The width and height of the panel, and of each of two, in inches."""

CORNER, CROWD = 0.75, 6
"""From which part of the way to the largest numbers on, and with how many there, the corner is drawn once more."""

CLOSER = "the framed corner, closer"
"""What stands above that."""

MARGIN = 0.12
"""The part of what points and bars cover that is left free on each side."""

MARKER, NAME_SIZE = 5.5, LETTER - 2
"""Points that a marker and a letter beside it have."""

RING = 3.0
"""Points by which a marker is larger for each that lies on it, so that it is seen."""

CLOSE = 0.004
"""How near a point another covers it, in parts of the way from the smallest number to the largest."""

BETWEEN = (8.0, 1.0)
"""Points that are at least between a name and its neighbours: beside it, so that two do not read as one, and above."""

LED = 9.0
"""Points from a point to its name from which on a line leads there."""

GREY = "#555555"
FRONT: dict[str, Any] = {"color": "#999999", "linewidth": 1.1, "linestyle": "-", "zorder": 1.5}
CORNERED: dict[str, Any] = {"edgecolor": GREY, "linewidth": 0.8, "linestyle": ":", "fill": False, "zorder": 1.4}
BARS: dict[str, Any] = {"color": GREY, "marker": "+", "markersize": 11, "markeredgewidth": 0.9, "linestyle": "none"}


class Spot(NamedTuple):
    """Somebody with two numbers.

    Attributes:
        name: what stands beside it.
        entry: what the legend calls it.
        look: the number of its look.
        x, y: the numbers.
        errors: how far each may be off; `None` where that is not known.
        on_front: whether nobody surpasses it.
        beneath: whether it is another view of somebody, drawn beneath everybody else.
    """

    name: str
    entry: str
    look: int
    x: float
    y: float
    errors: tuple[float, float] | None
    on_front: bool
    beneath: bool = False


class Plane(NamedTuple):
    """A panel: what stands above it, who is in it, and its edges, [axis, end], if they are not to fit everybody."""

    title: str
    spots: Sequence[Spot]
    edges: NDArray[np.float64] | None = None


@final
@dataclass(frozen=True)
class Tradeoff(Picture):
    """A point for each with its name beside it, and the front of those whom nobody surpasses.

    Names need room. Where many are good on both, their corner is drawn once more beside the whole, and they have their
    names there.

    Attributes:
        plane: who is drawn.
        labels: what the axes show, with units: to the right, and upwards.
        front: what the legend calls the front.
        bars: what it calls bars, where there are some.
    """

    plane: Plane
    labels: tuple[str, str]
    front: str
    bars: str

    def _draw(self, suffix: str) -> bytes:
        spots = self.plane.spots
        entries: Entries = [
            (spot.entry, {**Look.of(spot.look).points, "linestyle": "none", "markersize": MARKER}) for spot in spots
        ]
        entries.append((self.front, FRONT))
        entries += [(self.bars, BARS)] if any(spot.errors for spot in spots) else []
        edges = corner_of(spots)
        planes = [self.plane] if edges is None else [self.plane, Plane(CLOSER, spots, edges)]
        figure = arrange_panels(Frame(self.title, self.labels, entries, SIZE if edges is None else TWO), planes, _paint)
        # Names find their places once panels have theirs.
        figure.draw_without_rendering()
        if edges is None:
            _name(figure.axes[0], spots)
        else:
            whole, closer = figure.axes
            there = _inside(spots, edges)
            _name(whole, [spot for spot, inside in zip(spots, there, strict=True) if not inside], _framed(whole, edges))
            _name(closer, [spot for spot, inside in zip(spots, there, strict=True) if inside])
        return written(figure, suffix)


def corner_of(spots: Sequence[Spot]) -> NDArray[np.float64] | None:
    """Return the edges of the corner of the largest numbers, [axis, end], if many are in it, but not everybody."""
    places = np.array([(spot.x, spot.y) for spot in spots])
    errors = np.array([spot.errors or (0, 0) for spot in spots])
    crowd = (places >= places.min(0) + CORNER * np.ptp(places, axis=0)).all(1)
    if crowd.sum() < CROWD:
        return None
    low, high = (places - errors)[crowd].min(0), (places + errors)[crowd].max(0)
    if (low == high).any():
        return None
    room = MARGIN * (high - low)
    edges: NDArray[np.float64] = np.stack([low - room, high + room], axis=1)
    # With that room it may hold more than the crowd.
    return None if _inside(spots, edges).all() else edges


def _inside(spots: Sequence[Spot], edges: NDArray[np.float64]) -> NDArray[np.bool_]:
    places = np.array([(spot.x, spot.y) for spot in spots])
    return np.asarray(((edges[:, 0] <= places) & (places <= edges[:, 1])).all(1))


def _framed(axes: Axes, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draw a frame with these edges; return it, in pixels."""
    from matplotlib.patches import Rectangle

    low, high = edges.T
    axes.add_patch(Rectangle((low[0], low[1]), *(high - low), **CORNERED))
    frame: NDArray[np.float64] = axes.transData.transform([low, high]).reshape(1, 4)
    return frame


def _paint(axes: Axes, plane: Plane) -> None:
    """Draw points and bars, and below them the front up to the edges."""
    spots = sorted(plane.spots, key=lambda spot: not spot.beneath)
    places = np.array([(spot.x, spot.y) for spot in spots])
    near = CLOSE * (np.ptp(places, axis=0) if plane.edges is None else np.ptp(plane.edges, axis=1))
    for i, spot in enumerate(spots):
        look = Look.of(spot.look)
        size = MARKER + RING * _covering(places, i, near)
        axes.plot([spot.x], [spot.y], linestyle="none", markersize=size, zorder=3, **look.points)
        if spot.errors is not None:
            across, upward = spot.errors
            bars: dict[str, Any] = {"color": look.colour, "linewidth": 0.9, "alpha": 0.75, "zorder": 2.5}
            axes.plot([spot.x - across, spot.x + across], [spot.y, spot.y], **bars)
            axes.plot([spot.x, spot.x], [spot.y - upward, spot.y + upward], **bars)
    axes.margins(MARGIN, MARGIN)
    # From here on the edges stay where points and bars have put them, or where they are to be.
    edges = np.array([axes.get_xlim(), axes.get_ylim()]) if plane.edges is None else plane.edges
    axes.set(xlim=edges[0], ylim=edges[1])
    axes.plot(*stairs(plane.spots, (edges[0, 0], edges[1, 0])).T, **FRONT)
    axes.grid(color=LINES, linewidth=0.4)


def _covering(places: NDArray[np.float64], i: int, near: NDArray[np.float64]) -> int:
    """Return how many of those that are drawn after a point lie on it; more than two need not be told apart."""
    return min(2, int((np.abs(places[i + 1 :] - places[i]) <= near).all(1).sum()))


def stairs(spots: Sequence[Spot], edges: tuple[float, float]) -> NDArray[np.float64]:
    """Return the corners of the front, `[corners, 2]`: from the left edge by way of its points to the lower edge."""
    front = sorted({(spot.x, spot.y) for spot in spots if spot.on_front})
    corners = [(edges[0], front[0][1])]
    for x, y in front:
        corners += [(corners[-1][0], y), (x, y)]
    return np.array([*corners[1:], (front[-1][0], edges[1])])


# -------------------- names


def _name(axes: Axes, spots: Sequence[Spot], free: NDArray[np.float64] | None = None) -> None:
    """Write a name beside each point, and draw a line to those that are further away.

    Args:
        axes: where the points are.
        spots: those that have their names here.
        free: boxes to be kept free, in pixels.
    """
    texts = [_text(axes, spot) for spot in spots]
    extents = [text.get_window_extent() for text in texts]
    frame = axes.get_window_extent()
    scale = POINTS / axes.figure.dpi
    points = axes.transData.transform([(spot.x, spot.y) for spot in spots]) * scale
    sizes = np.array([(extent.width, extent.height) for extent in extents]) * scale + BETWEEN
    edges = np.array([frame.x0, frame.y0, frame.x1, frame.y1]) * scale + (2, 2, -2, -2)
    taken = _lines(axes) if free is None else np.concatenate([_lines(axes), free])
    places = place_names(Scene(points, sizes, MARKER + 2, taken * scale, edges))
    for spot, text, point, size, middle in zip(spots, texts, points, sizes, places, strict=True):
        text.set_position(tuple(middle - point))
        end = nearest_in(boxes_around(middle, size), point) - point
        if np.linalg.norm(end) > LED:
            _lead(axes, spot, end)


def _text(axes: Axes, spot: Spot) -> Annotation:
    """Write a name on its point, from where it is moved."""
    place: dict[str, Any] = {"xytext": (0, 0), "textcoords": "offset points", "ha": "center", "va": "center"}
    looks: dict[str, Any] = {"color": _dark(spot.look), "fontsize": NAME_SIZE, "zorder": 4, "parse_math": False}
    return axes.annotate(_in_lines(plain(spot.name)), (spot.x, spot.y), in_layout=False, **looks, **place)


def _in_lines(name: str) -> str:
    """Return a name in two lines if it is long, and no more of it than is useful."""
    first, *rest = textwrap.wrap(name, NAME) or [name]
    return "\n".join([first, *([shortened(" ".join(rest))] if rest else [])])


def _lead(axes: Axes, spot: Spot, end: NDArray[np.float64]) -> None:
    """Draw a line from a point to where its name is, so many points of a page away."""
    line = {"arrowstyle": "-", "color": _dark(spot.look), "linewidth": 0.5, "shrinkA": 0, "shrinkB": MARKER / 2}
    place = (float(end[0]), float(end[1]))
    axes.annotate("", (spot.x, spot.y), place, textcoords="offset points", arrowprops=line, in_layout=False)


def _dark(look: int) -> tuple[float, ...]:
    """Return the colour of a look, dark enough for small letters."""
    from matplotlib.colors import to_rgb

    return tuple(0.65 * part for part in to_rgb(Look.of(look).colour))


def _lines(axes: Axes) -> NDArray[np.float64]:
    """Return boxes around the bars and the front, whose parts are all upright or level, in pixels."""
    corners = [line.get_transform().transform(line.get_xydata()) for line in axes.lines]
    starts, ends = (np.concatenate([part[side] for part in corners]) for side in (slice(-1), slice(1, None)))
    return np.concatenate([np.minimum(starts, ends) - 1, np.maximum(starts, ends) + 1], axis=1)
