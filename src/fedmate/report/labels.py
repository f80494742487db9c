"""Finds places for names beside points: near them, on nothing else, and inside the picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]

DISTANCES = np.geomspace(6.0, 120.0, 11)
"""How far from its point a name may be, in points of a page."""

DIRECTIONS = 24
"""In how many directions, all around a point, each distance is tried."""

PASSES = 8
"""How often names may move again, once all the others have a place."""

ON_NAME, ON_MARKER, ON_LINE, OUTSIDE = 500.0, 300.0, 50.0, 10_000.0
"""What it costs to lie on a name, on a marker or on a line, and to be outside; a point of distance costs 1."""

THROUGH_NAME, THROUGH_MARKER, ACROSS = 100.0, 50.0, 60.0
"""What it costs if the way to a point leads through another name or marker, or across another way."""

LETTERS = 50.0
"""Square points for which it costs the same once more to lie on something."""


class Scene(NamedTuple):
    """What names are put into, in points of a page. Boxes are `[..., 4]`: left, bottom, right, top.

    Attributes:
        points: `[points, 2]`, each with a name.
        sizes: `[points, 2]`, the width and height of each name.
        marker: the side of the square that each point fills.
        lines: boxes around what else is drawn.
        frame: the box that names must stay inside of.
    """

    points: Numbers
    sizes: Numbers
    marker: float
    lines: Numbers
    frame: Numbers


def place_names(scene: Scene) -> Numbers:
    """Return the middle of each name, `[points, 2]`; the same scene gives the same places."""
    choices = [_choices(point, size) for point, size in zip(scene.points, scene.sizes, strict=True)]
    alone = [_alone(scene, i, middles) for i, middles in enumerate(choices)]
    # Those with the fewest good places first, or from one side to the other: none of them is always the best.
    badness = [-np.sort(costs)[:DIRECTIONS].mean() for costs in alone]
    orders = [np.argsort(badness, kind="stable"), *(np.argsort(axis, kind="stable") for axis in scene.points.T)]
    _, places = min((_settle(scene, choices, alone, order.tolist()) for order in orders), key=lambda found: found[0])
    return places


def boxes_around(middles: Numbers, sizes: Numbers) -> Numbers:
    """Return the boxes of these sizes around these places."""
    return np.concatenate([middles - sizes / 2, middles + sizes / 2], axis=-1)


def nearest_in(boxes: Numbers, points: Numbers) -> Numbers:
    """Return the places in boxes that are nearest to points: where the way to a name ends."""
    return np.clip(points, boxes[..., :2], boxes[..., 2:])


def _choices(point: Numbers, size: Numbers) -> Numbers:
    """Return where the middle of a name may be, `[choices, 2]`."""
    angles = np.arange(DIRECTIONS) * 2 * np.pi / DIRECTIONS
    ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    # Its side, not its middle, is at the distance.
    sides = ways / np.abs(ways).max(1, keepdims=True) * size / 2
    places: Numbers = point + sides + DISTANCES[:, None, None] * ways
    return places.reshape(-1, 2)


def _settle(
    scene: Scene, choices: Sequence[Numbers], alone: Sequence[Numbers], order: Sequence[int]
) -> tuple[float, Numbers]:
    """Let names choose in an order, then again until none would move; return what that costs, and their places."""
    places: dict[int, Numbers] = {}
    cost = 0.0
    for _ in range(PASSES):
        before, cost = dict(places), 0.0
        for i in order:
            others = sorted(places.keys() - {i})
            costs = alone[i] + _among(scene, i, choices[i], others, np.array([places[j] for j in others]))
            places[i], cost = choices[i][costs.argmin()], cost + float(costs.min())
        if before and all((places[i] == before[i]).all() for i in order):
            break
    return cost, np.array([places[i] for i in range(len(order))]).reshape(-1, 2)


def _alone(scene: Scene, i: int, middles: Numbers) -> Numbers:
    """Return what each choice of a name costs, whatever the other names do."""
    point, boxes = scene.points[i], boxes_around(middles, scene.sizes[i])
    markers, ends = boxes_around(scene.points, np.full(2, scene.marker)), nearest_in(boxes, point)
    is_outside = (boxes[:, :2] < scene.frame[:2]).any(1) | (boxes[:, 2:] > scene.frame[2:]).any(1)
    covered = ON_MARKER * _covered(boxes, markers) + ON_LINE * _covered(boxes, scene.lines)
    through = THROUGH_MARKER * _lead_through(point, ends, np.delete(markers, i, axis=0)).sum(1)
    cost: Numbers = np.linalg.norm(ends - point, axis=1) + OUTSIDE * is_outside + covered + through
    return cost


def _among(scene: Scene, i: int, middles: Numbers, others: Sequence[int], places: Numbers) -> Numbers:
    """Return what each choice of a name costs for the names that have a place."""
    if not others:
        return np.zeros(len(middles))
    mine, theirs = boxes_around(middles, scene.sizes[i]), boxes_around(places, scene.sizes[others])
    point, points = scene.points[i], scene.points[others]
    ends, their_ends = nearest_in(mine, point), nearest_in(theirs, points)
    through = _lead_through(point, ends, theirs).sum(1) + _lead_through(points, their_ends, mine).sum(0)
    across = _cross(point, ends[:, None], points, their_ends).sum(1)
    cost: Numbers = ON_NAME * _covered(mine, theirs) + THROUGH_NAME * through + ACROSS * across
    return cost


def _covered(boxes: Numbers, others: Numbers) -> Numbers:
    """Return for each box how many of the others it lies on, more if it is by much."""
    low, high = np.maximum(boxes[:, None, :2], others[:, :2]), np.minimum(boxes[:, None, 2:], others[:, 2:])
    area = np.maximum(0, high - low).prod(-1)
    covered: Numbers = ((area > 0) + area / LETTERS).sum(1)
    return covered


def _lead_through(starts: Numbers, ends: Numbers, boxes: Numbers) -> NDArray[np.bool_]:
    """Tell, `[ends, boxes]`, whether the straight way to an end leads through a box."""
    way = ends - starts
    # Along which part of the way one is between the box's sides: in each direction, then in both.
    steps = np.where(way == 0, 1e-9, way)[:, None]
    first, second = (
        (boxes[None, :, side] - np.broadcast_to(starts, ends.shape)[:, None]) / steps
        for side in (slice(2), slice(2, 4))
    )
    enter, leave = np.minimum(first, second).max(-1), np.maximum(first, second).min(-1)
    found: NDArray[np.bool_] = np.maximum(enter, 0) < np.minimum(leave, 1)
    return found


def _cross(starts: Numbers, ends: Numbers, others: Numbers, other_ends: Numbers) -> NDArray[np.bool_]:
    """Tell whether ways cross: each has an end on either side of the other."""
    here = _side(starts, ends, others) * _side(starts, ends, other_ends) < 0
    there = _side(others, other_ends, starts) * _side(others, other_ends, ends) < 0
    return here & there


def _side(starts: Numbers, ends: Numbers, points: Numbers) -> Numbers:
    """Return on which side of a way a point lies: a positive number to the left, a negative to the right."""
    (x, y), (to_x, to_y) = np.moveaxis(ends - starts, -1, 0), np.moveaxis(points - starts, -1, 0)
    side: Numbers = x * to_y - y * to_x
    return side
