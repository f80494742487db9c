"""A plot of two numbers of which more is better: methods as points, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedmate.report.drawing import GREY, GRID, LETTER, Looks, arrange, look, points
from fedmate.report.plots import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FRONT: Looks = {"color": "#999999", "linewidth": 1.1, "zorder": 1.5}


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
        corner = self.corner()
        panels = [_View(self.panel, None, corner)]
        panels += [] if corner is None else [_View("the framed corner, closer", corner, None)]
        size = (6.6, 5.0) if corner is None else (5.4, 4.6)
        return arrange((self.title, self.labels, entries), panels, self._paint, size)

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
            place = np.array([spot.x, spot.y])
            if view.framed is not None and np.all((view.framed[:, 0] <= place) & (place <= view.framed[:, 1])):
                continue
            same = next((numbers for other, numbers in found if np.all(np.abs(place - other) <= near)), None)
            if same is None:
                found.append(((spot.x, spot.y), [number]))
            else:
                same.append(number)
        return found


class _View(NamedTuple):
    """A panel of a trade-off: its edges if they are not to fit all points, and a frame in it."""

    title: str
    edges: NDArray[np.float64] | None
    framed: NDArray[np.float64] | None
