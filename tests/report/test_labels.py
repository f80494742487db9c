"""Names beside points: none lies on another, on a point, or outside, where there is room."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmate.report.labels import ON_LINE, Scene, boxes_around, nearest_in, place_names

FRAME = np.array([0.0, 0.0, 400.0, 300.0])
MARKER = 8.0


def scene(points: list[tuple[float, float]], *, width: float = 50.0, lines: list[list[float]] | None = None) -> Scene:
    sizes = np.tile([width, 9.0], (len(points), 1))
    return Scene(np.array(points), sizes, MARKER, np.array(lines or []).reshape(-1, 4), FRAME)


def named(given: Scene) -> NDArray[np.float64]:
    """Return the boxes of the names."""
    return boxes_around(place_names(given), given.sizes)


def overlap(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return bool((np.maximum(one[:2], other[:2]) < np.minimum(one[2:], other[2:])).all())


CROWD = [(200 + 7.0 * (i % 4), 150 + 6.0 * (i // 4)) for i in range(16)]
CORNERS = [(2.0, 2.0), (398.0, 298.0), (2.0, 298.0), (398.0, 2.0)]
ALIKE = [(200.0, 150.0)] * 5


@pytest.mark.parametrize("points", [CROWD, CORNERS, ALIKE, CORNERS[:1]], ids=["crowd", "corners", "alike", "one"])
def test_names_lie_on_nothing_and_inside(points: list[tuple[float, float]]) -> None:
    given = scene(points)
    boxes, markers = named(given), boxes_around(given.points, np.full(2, MARKER))
    assert len(boxes) == len(points)
    assert not [pair for pair in itertools.combinations(boxes, 2) if overlap(*pair)]
    assert not [pair for pair in itertools.product(boxes, markers) if overlap(*pair)]
    assert (boxes[:, :2] >= FRAME[:2]).all()
    assert (boxes[:, 2:] <= FRAME[2:]).all()


def test_a_name_that_has_room_is_beside_its_point() -> None:
    given = scene([(50.0, 50.0), (200.0, 150.0), (350.0, 250.0)])
    ends = nearest_in(named(given), given.points)
    assert np.linalg.norm(ends - given.points, axis=1) == pytest.approx(6.0, abs=1.5)


def test_lines_are_avoided_where_that_is_not_far() -> None:
    upright = [196.0, 0.0, 204.0, 300.0]
    given = scene([(200.0, 150.0)], lines=[upright, [200.0, 149.0, 400.0, 151.0]])
    (box,) = named(given)
    assert not any(overlap(box, line) for line in given.lines)
    # Away from a line as wide as the frame it is further than the line is bad.
    (box,) = named(scene([(200.0, 150.0)], lines=[[0.0, 150.0 - 2 * ON_LINE, 400.0, 150.0 + 2 * ON_LINE]]))
    assert np.abs(box[:2] - 150).min() < ON_LINE


def test_ways_to_names_do_not_cross() -> None:
    given = scene(CROWD[:8], width=80.0)
    ends = nearest_in(named(given), given.points)

    def left(a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]) -> bool:
        return bool((b - a)[0] * (c - a)[1] > (b - a)[1] * (c - a)[0])

    for (a, b), (c, d) in itertools.combinations(zip(given.points, ends, strict=True), 2):
        assert left(a, b, c) == left(a, b, d) or left(c, d, a) == left(c, d, b)


def test_the_same_scene_gives_the_same_places() -> None:
    assert (place_names(scene(CROWD)) == place_names(scene(CROWD))).all()
