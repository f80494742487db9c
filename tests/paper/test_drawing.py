"""Plots of the paper: the numbers are drawn, and the best ones are marked."""

from __future__ import annotations

import math

import pytest
from paper.drawing import Cloud, Clouds, Dots, LossLines, WeightLines
from tests.report.test_plots import LABELS, drawing, panels_of, points_of, texts

from fedmate.report.plots import Panel, Series


def test_the_best_is_marked_with_its_number() -> None:
    parts = [Panel("p", [Series("a", 0, range(3), [1, 3.14159, math.nan]), Series("b", 1, range(3), [9, 8, 7])])]
    root = drawing(WeightLines("x", "t", parts, LABELS, ("0.1", "1", "10")))
    assert {"3.14", "9.00", "best", "0.1", "1", "10"} <= {*texts(root)}
    (panel,) = panels_of(root)
    (x0, _), (x1, y1), (x2, y2) = points_of(panel, 0)
    assert (x2, y2) == (x1, y1), "a ring around the second"
    assert x1 > x0


@pytest.mark.parametrize(
    ("lowest", "numbers"),
    [(0.02, {"0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"}), (1.9, {"1.90", "1.92", "1.94", "1.96", "1.98", "2.00"})],
)
def test_losses_grow_by_factors_where_they_differ_much(lowest: float, numbers: set[str]) -> None:
    parts = [Panel("p", [Series("a", 0, [1, 2, 3], [2.0, lowest, 2.0], line="--")])]
    found = texts(drawing(LossLines("x", "t", parts, LABELS, [("after", "--")])))
    assert numbers <= {*found}
    assert found[-2:] == ["a", "after"]


def test_a_dot_for_each_class_and_row() -> None:
    parts = [
        Panel("p", [Series("a", 0, (), [10, 20, 40]), Series("b", 1, (), [15, math.nan, 20], [1, math.nan, 2])]),
        Panel("q", [Series("a", 0, (), [1, 2, 3])]),
    ]
    one, other = panels_of(drawing(Dots("x", "t", parts, ["cat", "dog", "cow"], "accuracy (%)")))
    (x0, y0), (x1, y1), (x2, y2) = points_of(one, 0)
    assert (x2 - x0) / (x1 - x0) == pytest.approx(3, abs=1e-3)
    assert y1 - y0 == pytest.approx(y2 - y1)
    assert y1 > y0, "the first class is on top"
    assert (len(points_of(one, 1)), len(points_of(other, 0))) == (2, 3)


def test_a_point_for_each_place_in_the_look_of_its_class() -> None:
    parts = [Cloud("FedMate", [(0, 0), (1, 1), (2, 0)], [2, 0, 2]), Cloud("none", [], [])]
    root = drawing(Clouds("x", "t", parts, ["cat", "dog", "cow"]))
    full, empty = panels_of(root)
    assert [len(points_of(full, number)) for number in (0, 1, 2)] == [1, 0, 2]
    assert points_of(empty, 0) == []
    assert {"cat", "cow", "too few to be drawn"} <= {*texts(root)}
    assert "dog" not in texts(root), "it has no point"
