"""Two numbers of everybody: points, bars, the front, and names that can be read."""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.report.test_figures import SVG, drawing, frames, panels_of, points_of, texts, written

from fedmate.report.panels import COLOURS
from fedmate.report.plots import FORMATS
from fedmate.report.tradeoffs import CLOSER, CORNERED, FRONT, Plane, Spot, Tradeoff, corner_of, stairs

LABELS = ("balanced (%)", "own (%)")


def spot(number: int, x: float, y: float, *, error: float | None = None, on_front: bool = False) -> Spot:
    errors = None if error is None else (error, 2 * error)
    return Spot(f"row {number}", f"entry {number}", number, x, y, errors, on_front)


def picture(*spots: Spot, title: str = "a title") -> Tradeoff:
    return Tradeoff("x", title, Plane("a column", spots), LABELS, "the front", "bars")


THREE = (spot(0, 10, 80, on_front=True), spot(1, 50, 40, on_front=True), spot(2, 30, 40))


def dense(number: int) -> list[Spot]:
    """Many close together, and one far from them."""
    close = [
        spot(i, 60 + 1.1 * (i % 5), 70 + 0.9 * (i // 5), error=0.4, on_front=i == number - 2) for i in range(number - 1)
    ]
    return [*close, spot(number - 1, 20, 30, error=1.0)]


def lines(root: ElementTree.Element, colour: str, panel: int = 0) -> list[list[list[float]]]:
    """Return the corners of the lines of a colour inside a panel, but for markers."""
    drawn = [one for one in panels_of(root)[panel].iter(f"{SVG}path") if "clip-path" in one.attrib]
    drawn = [one for one in drawn if f"stroke: {colour.lower()}" in one.attrib["style"]]
    return [np.array(re.findall(r"-?\d+\.?\d*", one.attrib["d"]), dtype=float).reshape(-1, 2).tolist() for one in drawn]


# -------------------- points and bars


def test_points_are_where_the_numbers_are() -> None:
    (panel,) = panels_of(drawing(picture(*THREE)))
    ((x0, y0),), ((x1, y1),), ((x2, y2),) = (points_of(panel, number) for number in range(3))
    assert (x2 - x0) / (x1 - x0) == pytest.approx(0.5, abs=1e-3)
    assert y1 == y2
    assert y0 < y1, "in SVG larger numbers are further up"


def test_bars_are_as_long_as_the_errors() -> None:
    root = drawing(picture(spot(0, 10, 80, error=5.0, on_front=True), spot(1, 50, 40)))
    (panel,) = panels_of(root)
    ((x0, y0),), ((x1, y1),) = (points_of(panel, number) for number in range(2))
    (left, right), (low, high) = lines(root, COLOURS[0])
    unit, rise = (x1 - x0) / 40, (y1 - y0) / 40
    assert [left[0], right[0], left[1]] == pytest.approx([x0 - 5 * unit, x0 + 5 * unit, y0], abs=1e-3)
    assert [low[1], high[1], low[0]] == pytest.approx([y0 + 10 * rise, y0 - 10 * rise, x0], abs=1e-3)
    assert lines(root, COLOURS[1]) == [], "its errors are not known"
    assert "bars" in texts(root)


def test_without_errors_there_are_no_bars_nor_words_of_them() -> None:
    root = drawing(picture(*THREE))
    assert "bars" not in texts(root)
    assert [lines(root, COLOURS[number]) for number in range(3)] == [[]] * 3


def test_who_is_beneath_is_drawn_first_and_seen_around_who_is_on_it() -> None:
    def sizes(*spots: Spot) -> dict[int, float]:
        """By look, in the order in which they are drawn: how large the marker is."""
        (panel,) = panels_of(drawing(picture(*spots)))
        found = {}
        for path in panel.iter(f"{SVG}path"):
            for look in (0, 1):
                if "id" in path.attrib and COLOURS[look].lower() in path.attrib["style"]:
                    corners = np.array(re.findall(r"-?\d+\.?\d*", path.attrib["d"]), dtype=float)
                    found[look] = float(np.ptp(corners))
        return found

    first, other = spot(0, 10, 80, on_front=True), spot(1, 10.05, 80)._replace(beneath=True)
    upon = sizes(first, spot(1, 10.05, 80), THREE[2])
    assert list(upon) == [0, 1]
    assert upon[0] > 1.3 * upon[1]
    both = sizes(first, other, THREE[2])
    assert list(both) == [1, 0]
    assert both[1] > 1.3 * both[0]
    apart = sizes(first, spot(1, 40, 60)._replace(beneath=True), THREE[2])
    assert apart[1] == pytest.approx(apart[0])


# -------------------- the front


def test_the_front_goes_in_stairs_from_edge_to_edge() -> None:
    three = [spot(0, 5, 1, on_front=True), spot(1, 1, 9, on_front=True), spot(2, 3, 4, on_front=True)]
    assert stairs(three, (-1, -2)).tolist() == [
        *([-1, 9], [1, 9]),
        *([1, 4], [3, 4]),
        *([3, 1], [5, 1]),
        [5, -2],
    ]
    twice = [spot(0, 1, 9, on_front=True), spot(1, 1, 9, on_front=True)]
    assert stairs(twice, (0, 0)).tolist() == [[0, 9], [1, 9], [1, 0]]


def test_the_front_is_drawn_and_named() -> None:
    root = drawing(picture(*THREE))
    (panel,), (frame,) = panels_of(root), frames(root)
    (first,), (second,) = (points_of(panel, number) for number in (0, 1))
    (front,) = lines(root, FRONT["color"])
    assert front == [
        pytest.approx(corner, abs=1e-3)
        for corner in ([frame.left, first[1]], first, [first[0], second[1]], second, [second[0], frame.bottom])
    ]
    assert texts(root)[-1] == "the front"


# -------------------- names


@pytest.mark.parametrize("number", [2, 6, 16, 20])
def test_names_can_be_read(number: int) -> None:
    root = drawing(picture(*dense(number)))
    found = [(text, box) for text, box in written(root) if text.startswith("row")]
    assert sorted(text for text, _ in found) == sorted(f"row {i}" for i in range(number))
    for (_, one), (_, other) in itertools.combinations(found, 2):
        assert not one.meets(other)
    seen = 0
    for panel, frame in zip(panels_of(root), frames(root), strict=True):
        # Strokes of the axes are black, too.
        spots = [(x, y) for look in range(8) for x, y in points_of(panel, look) if frame.left < x and y < frame.bottom]
        names = [box for _, box in found if frame.left < box.left < box.right < frame.right]
        assert [frame.top < box.top < box.bottom < frame.bottom for box in names] == [True] * len(names)
        assert not [1 for x, y in spots for box in names if box.left < x < box.right and box.top < y < box.bottom]
        seen += len(names)
        assert len(spots) == (number if frame == frames(root)[0] else number - 1)
    assert seen == number, "each is inside a panel"


def test_everybody_is_in_the_legend() -> None:
    root = drawing(picture(*dense(16)))
    names = {text: box for text, box in written(root) if text.startswith("entry")}
    assert [*names] == [f"entry {i}" for i in range(16)]
    assert min(box.top for box in names.values()) > max(frame.bottom for frame in frames(root))


def test_names_far_from_their_points_have_a_line_to_them() -> None:
    def leads(*spots: Spot) -> int:
        panel = panels_of(drawing(picture(*spots)))[-1]
        return sum("stroke-width: 0.5" in one.attrib.get("style", "") for one in panel.iter(f"{SVG}path"))

    assert leads(*THREE) == 0
    assert leads(*(spot(i, 50, 50, on_front=True) for i in range(12)), spot(12, 20, 20)) > 2


# -------------------- the corner of those who are good on both, closer


def test_many_in_the_corner_of_the_largest_numbers_are_drawn_closer() -> None:
    far, corner = spot(9, 0, 0), [spot(i, 75 + 5 * i, 100 - 5 * i) for i in range(6)]
    edges = corner_of([far, *corner])
    assert edges is not None
    assert edges.ravel().tolist() == pytest.approx([72, 103, 72, 103])
    with_bars = corner_of([far, *corner[:5], corner[5]._replace(errors=(10.0, 5.0))])
    assert with_bars is not None
    assert with_bars.ravel().tolist() == pytest.approx([75 - 0.12 * 35, 110 + 0.12 * 35, 70 - 0.12 * 30, 103.6])
    assert corner_of([far, *corner[1:]]) is None, "five have room"
    assert corner_of(corner) is None, "they are already apart"


def test_good_on_one_number_only_is_not_in_the_corner() -> None:
    few = [spot(i, 80 + i, 90) for i in range(5)]
    assert corner_of([spot(9, 0, 0), *few, spot(8, 100, 50)]) is None
    assert corner_of([spot(9, 0, 0), *few, spot(8, 100, 80)]) is not None


def test_nothing_is_drawn_twice_as_large_as_it_is() -> None:
    assert corner_of([spot(i, 50, 50) for i in range(8)]) is None, "everybody is there"
    assert corner_of([spot(9, 0, 0), *(spot(i, 50, 50) for i in range(8))]) is None, "all in one place"
    corner = [spot(i, 75 + 5 * i, 100 - 5 * i) for i in range(6)]
    wide = [one._replace(errors=(70.0, 70.0)) for one in corner]
    assert corner_of([spot(9, 0, 0), *wide]) is None, "with their bars they fill the panel"


def test_a_crowd_is_drawn_once_more_beside_the_whole_with_its_names_there() -> None:
    root = drawing(picture(*dense(16)))
    whole, closer = frames(root)
    assert texts(root).count(CLOSER) == 1
    names = {text: box for text, box in written(root) if text.startswith("row")}
    assert whole.left < names.pop("row 15").left < whole.right, "who is elsewhere"
    assert all(closer.left < box.left for box in names.values())


def test_a_few_have_one_panel() -> None:
    root = drawing(picture(*THREE))
    assert len(frames(root)) == 1
    assert CLOSER not in texts(root)


def test_who_is_in_the_frame_is_drawn_closer_though_not_of_the_crowd() -> None:
    beside = spot(16, 57, 80)
    root = drawing(picture(*dense(16), beside))
    (framed,) = lines(root, str(CORNERED["edgecolor"]))
    low, high = np.array(framed).min(0), np.array(framed).max(0)
    whole, closer = panels_of(root)
    frame = frames(root)[1]

    def within(panel: ElementTree.Element, low: Any, high: Any) -> int:
        # Strokes of the axes are black, too.
        points = [point for look in range(8) for point in points_of(panel, look)]
        return int(np.logical_and(low < np.array(points), np.array(points) < high).all(1).sum())

    count = within(whole, low, high)
    assert count == within(closer, (frame.left, frame.top), (frame.right, frame.bottom))
    names = [box for text, box in written(root) if text.startswith("row")]
    assert count == sum(frame.left < box.left for box in names)


def test_the_front_is_drawn_in_both_panels() -> None:
    root = drawing(picture(*dense(16)))
    for panel, frame in enumerate(frames(root)):
        ((first, second, last),) = lines(root, FRONT["color"], panel)
        (there,) = [point for point in points_of(panels_of(root)[panel], 14) if point[0] == pytest.approx(second[0])]
        assert second == pytest.approx(there, abs=1e-3)
        assert (first[0], last[1]) == pytest.approx((frame.left, frame.bottom), abs=1e-3)


# -------------------- odd ones, and forms


@pytest.mark.parametrize("suffix", FORMATS)
def test_odd_names_and_single_points_are_drawn(suffix: str) -> None:
    odd = ["$x$ & <b>", "$\\frac{", "_hidden", "猫", "\x00", "a name that is longer than anybody would read"]
    spots = [Spot(name, name, i, 1.0, 1.0, None, True) for i, name in enumerate(odd)]
    data = picture(*spots, title=odd[1]).draw(suffix)
    assert picture(spots[0]).draw(suffix)
    if suffix == ".svg":
        found = texts(ElementTree.fromstring(data))
        assert [found.count(name) for name in [*odd[:4], "?", odd[5]]] == [2, 3, 2, 2, 2, 1]
        assert {"a name that is longer", "than anybody would read"} <= {*found}


def test_a_name_is_two_lines_long_at_most() -> None:
    name = "a name that is longer than anybody would ever read to its end"
    found = texts(drawing(picture(Spot(name, "entry", 0, 1.0, 1.0, None, True))))
    assert {"a name that is longer", "than anybody would ever…"} <= {*found}


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_same_numbers_give_the_same_bytes(suffix: str) -> None:
    assert picture(*THREE).draw(suffix) == picture(*THREE).draw(suffix)
