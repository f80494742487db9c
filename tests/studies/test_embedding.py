"""Prototypes of classes that clients hold, where they lie in a plane, and a number for how they tell classes apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedmate.studies.embedding import Prototypes, embed, held_prototypes, silhouette


def blobs(classes: int = 3, of_each: int = 6, gap: float = 30.0) -> Prototypes:
    """Points around a place for each class."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), of_each)
    return Prototypes(gap * random.normal(size=(classes, 5))[labels] + random.normal(size=(len(labels), 5)), labels)


# -------------------- which prototypes count


def test_classes_that_nobody_holds_and_clients_without_numbers_are_left_out() -> None:
    prototypes = torch.arange(12.0).reshape(3, 2, 2)
    prototypes[2] = math.nan
    newcomer = [5, 5]
    found = held_prototypes(prototypes, [[1, 0], [2, 3], [1, 1], newcomer])
    assert found.points.tolist() == [[0, 1], [4, 5], [6, 7]]
    assert found.classes.tolist() == [0, 0, 1]
    assert found.points.dtype == np.float64


def test_one_number_that_is_not_finite_is_enough() -> None:
    found = held_prototypes(torch.tensor([[[1.0, math.inf], [1.0, 2.0]]]), [[1, 1]])
    assert found.classes.tolist() == [1]


def test_a_run_without_prototypes_has_none() -> None:
    found = held_prototypes(torch.zeros(0, 0, 0), [[3, 1], [1, 3]])
    assert len(found.points) == len(found.classes) == 0
    assert silhouette(found) is None
    assert embed(found.points).shape == (0, 2)


# -------------------- in a plane


def nearest(places: NDArray[np.float64]) -> NDArray[np.int64]:
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1) + np.diag(np.full(len(places), np.inf))
    found: NDArray[np.int64] = distances.argmin(1)
    return found


def test_neighbours_stay_neighbours_and_the_same_points_have_the_same_places() -> None:
    points, labels = blobs()
    places = embed(points)
    assert places.shape == (18, 2)
    assert (labels[nearest(places)] == labels).all()
    assert np.array_equal(places, embed(points))
    assert not np.array_equal(places, embed(points + np.eye(18, 5)))


@pytest.mark.parametrize(("count", "width"), [(4, 1), (5, 8), (40, 2)])
def test_few_points_and_narrow_ones_have_places(count: int, width: int) -> None:
    places = embed(np.random.default_rng(1).normal(size=(count, width)))
    assert places.shape == (count, 2)
    assert np.isfinite(places).all()


@pytest.mark.parametrize("points", [np.zeros((0, 3)), np.eye(3), np.ones((20, 3))], ids=["none", "three", "the same"])
def test_what_has_no_places(points: NDArray[np.float64]) -> None:
    assert embed(points).shape == (0, 2)


# -------------------- as a number


def test_silhouette_by_hand() -> None:
    """Classes {0, 1} and {10}: (b - a) / max(a, b) with a to one's own and b to the other, 0 for a class of one."""
    prototypes = Prototypes(np.array([[0.0], [1.0], [10.0]]), np.array([0, 0, 1]))
    assert silhouette(prototypes) == pytest.approx(((10 - 1) / 10 + (9 - 1) / 9 + 0) / 3)


def test_silhouette_is_about_classes_and_not_about_scale() -> None:
    apart, mixed = blobs(), blobs(gap=0.0)
    assert (silhouette(apart) or 0) > 0.8
    assert abs(silhouette(mixed) or 0) < 0.2
    assert silhouette(apart._replace(points=1e3 * apart.points)) == pytest.approx(silhouette(apart))


@pytest.mark.parametrize("classes", [[], [0, 0, 0], [0, 1, 2]], ids=["none", "one class", "one of each"])
def test_what_has_no_silhouette(classes: list[int]) -> None:
    prototypes = Prototypes(np.random.default_rng(0).normal(size=(len(classes), 2)), np.array(classes, dtype=np.int64))
    assert silhouette(prototypes) is None
