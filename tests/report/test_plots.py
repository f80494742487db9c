"""Plots: the numbers are drawn, everything can be read, and the same numbers give the same bytes."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmate.errors import UserError
from fedmate.report.drawing import COLOURS, FORMATS, check_plot
from fedmate.report.plots import MOST, Lines, Panel, PartitionPlot, Plot, Series, Spot, Tradeoff

SVG, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
LABELS = ("round", "accuracy (%)")


def drawing(plot: Plot) -> ElementTree.Element:
    return ElementTree.fromstring(plot.draw(".svg"))


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def panels_of(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [group for group in root.iter(f"{SVG}g") if group.attrib.get("id", "").startswith("axes_")]


def points_of(panel: ElementTree.Element, number: int) -> list[tuple[float, float]]:
    """Return the places of the points that have the colour of a look."""
    uses = [use for use in panel.iter(f"{SVG}use") if f"stroke: {COLOURS[number % 8].lower()}" in use.attrib["style"]]
    return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in uses]


def lines() -> Lines:
    rows = [Series(f"row {number}", number, [1, 2, 3], [10.0 * number, 1.0, math.sqrt(2)]) for number in range(2)]
    return Lines("lines", "a title", [Panel("panel 0", rows)], LABELS)


# -------------------- lines


def test_a_line_goes_through_its_points() -> None:
    (panel,) = panels_of(drawing(Lines("x", "t", [Panel("p", [Series("a", 0, [1, 2, 4], [0, 2, 1])])], LABELS)))
    (x0, y0), (x1, y1), (x2, y2) = points_of(panel, 0)
    assert (x2 - x0) / (x1 - x0) == pytest.approx(3, abs=1e-3)
    # In SVG larger numbers are lower.
    assert (y0 - y2) / (y0 - y1) == pytest.approx(0.5, abs=1e-3)


# -------------------- odd names


@pytest.mark.parametrize("suffix", FORMATS)
def test_names_are_shown_as_they_are(suffix: str) -> None:
    odd = ["$x$ & <b>", "$\\frac{", "_hidden", "猫", "\x00"]
    parts = [Panel(odd[0], [Series(name, i, [0], [1.0]) for i, name in enumerate(odd)])]
    data = Lines("x", odd[0], parts, (odd[1], odd[0])).draw(suffix)
    if suffix == ".svg":
        found = texts(ElementTree.fromstring(data))
        # The legend has each of them once more.
        assert [found.count(name) - 1 for name in [*odd[:4], "?"]] == [3, 1, 0, 0, 0]


# -------------------- two numbers


def spot(number: int, x: float, y: float, *, error: float | None = None, on_front: bool = False) -> Spot:
    return Spot(f"row {number}", number, x, y, None if error is None else (error, 2 * error), on_front)


def tradeoff(*spots: Spot) -> ElementTree.Element:
    return drawing(Tradeoff("x", "a title", "a setting", spots, ("balanced (%)", "own (%)"), "bars"))


def corners_of(root: ElementTree.Element, colour: str) -> list[list[list[float]]]:
    """Return the corners of the lines of a colour inside the first panel."""
    drawn = [one for one in panels_of(root)[0].iter(f"{SVG}path") if "clip-path" in one.attrib]
    drawn = [one for one in drawn if f"stroke: {colour.lower()}" in one.attrib["style"]]
    return [np.array(re.findall(r"-?\d+\.?\d*", one.attrib["d"]), dtype=float).reshape(-1, 2).tolist() for one in drawn]


def test_points_are_where_the_numbers_are_with_bars_as_long_as_errors() -> None:
    root = tradeoff(spot(0, 10, 80, error=5.0, on_front=True), spot(1, 50, 40, on_front=True), spot(2, 30, 40))
    (panel,) = panels_of(root)
    ((x0, y0),), ((x1, y1),), ((x2, y2),) = (points_of(panel, number) for number in range(3))
    assert (x2 - x0) / (x1 - x0) == pytest.approx(0.5, abs=1e-3)
    assert y1 == y2
    assert y0 < y1, "in SVG larger numbers are further up"
    (left, right), (low, high) = corners_of(root, COLOURS[0])
    unit, rise = (x1 - x0) / 40, (y1 - y0) / 40
    assert [left[0], right[0], left[1]] == pytest.approx([x0 - 5 * unit, x0 + 5 * unit, y0], abs=1e-3)
    assert [low[1], high[1], low[0]] == pytest.approx([y0 + 10 * rise, y0 - 10 * rise, x0], abs=1e-3)
    assert corners_of(root, COLOURS[1]) == [], "its errors are unknown"
    assert {"bars", "1 row 0", "1", "2", "3", "Pareto front"} <= {*texts(root)}


def test_a_crowded_corner_is_drawn_once_more_and_equal_points_share_a_label() -> None:
    crowd = [spot(i, 60 + i, 70 - i / 2, on_front=i == 6) for i in range(7)]
    root = tradeoff(*crowd, spot(7, 20, 30), spot(8, 20, 30))
    whole, closer = panels_of(root)
    assert "the framed corner, closer" in texts(root)
    labels = [[text.text for text in panel.iter(f"{SVG}text")] for panel in (whole, closer)]
    assert "8, 9" in labels[0]
    assert {str(i) for i in range(1, 8)} <= {*labels[1]}
    assert len(panels_of(tradeoff(*crowd))) == 1, "all of them are in the corner"


# -------------------- partitions


COUNTS = np.array([[9, 0, 1], [0, 4, 9]], dtype=np.int64)


def partition(counts: NDArray[np.int64] = COUNTS) -> PartitionPlot:
    clients, classes = ([str(i) for i in range(count)] for count in counts.shape)
    return PartitionPlot("x", "toys, iid", counts, clients, classes)


def circles(root: ElementTree.Element) -> list[tuple[float, float, float]]:
    """Return place and diameter of all circles, from their outlines."""
    found = {f"#{one.attrib['id']}": one.attrib["d"] for one in root.iter(f"{SVG}path") if "id" in one.attrib}
    sizes = {key: float(np.ptp([float(n) for n in re.findall(r"-?\d+\.?\d*", d)])) for key, d in found.items()}
    uses = [use for use in root.iter(f"{SVG}use") if "#2a6f97" in use.attrib["style"] and use.attrib[LINK] in sizes]
    return [(float(use.attrib["x"]), float(use.attrib["y"]), sizes[use.attrib[LINK]]) for use in uses]


def test_areas_are_numbers_of_samples_whose_sizes_are_explained() -> None:
    root = drawing(partition())
    diameters = sorted(diameter for _, _, diameter in circles(root))
    # Four for clients, three in the legend.
    assert [9 * (diameter / diameters[-1]) ** 2 for diameter in diameters] == pytest.approx(
        [1, 1, 4, 4, 9, 9, 9], rel=0.03
    )
    assert {"client", "class", "toys, iid", "samples", "9", "4"} <= {*texts(root)}
    many = circles(drawing(partition(np.array([[100_000, 1, 0]]))))
    assert min(diameter for _, _, diameter in many) >= 1, "a single sample is seen"


# -------------------- forms


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG\r\n"), (".pdf", b"%PDF-")])
def test_the_same_numbers_give_the_same_bytes(suffix: str, start: bytes) -> None:
    first, again = (lines().draw(suffix) for _ in range(2))
    assert first == again
    assert first.startswith(start)
    assert [word for word in (b"Date", b"dc:date", b"Matplotlib", b"Software") if word in first] == []


def test_mistakes_get_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"`lines.jpg` ends in `.jpg`; name the plot"):
        lines().draw(".jpg")
    with pytest.raises(UserError, match=f"use at most {MOST} of each"):
        partition(np.ones((MOST + 1, 2), dtype=np.int64)).draw(".svg")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"install it with `pip install 'fedmate\[plots\]'`"):
        check_plot(Path("p.svg"))
