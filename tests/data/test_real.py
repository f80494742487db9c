"""The real data sets, where they are at hand: as many samples as published, upright, with the right constants."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from fedmate.data import DATASETS
from fedmate.data.dataset import Arrays
from fedmate.data.files import FileDataset
from fedmate.errors import UserError

pytestmark = pytest.mark.data

FOLDER = Path(os.environ.get("FEDMATE_DATA") or Path(__file__).parents[2] / ".data")

MNIST_COUNTS = (
    (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
)


def made(name: str) -> FileDataset:
    dataset = DATASETS[name](**({"split": "balanced"} if name == "emnist" else {}))
    assert isinstance(dataset, FileDataset)
    return dataset


@lru_cache(maxsize=2)
def content(name: str) -> Arrays:
    """Read a data set without its cache, or skip the test."""
    dataset = made(name)
    try:
        found = dataset.find(FOLDER)
    except UserError:
        pytest.skip(f"{name} is not in {FOLDER}")
    return dataset.read(found)


@pytest.mark.parametrize(
    ("name", "train", "test", "shape"),
    [
        ("cifar10", [5000] * 10, [1000] * 10, (3, 32, 32)),
        ("cifar100", [500] * 100, [100] * 100, (3, 32, 32)),
        ("fashion_mnist", [6000] * 10, [1000] * 10, (1, 28, 28)),
        ("mnist", list(MNIST_COUNTS[0]), list(MNIST_COUNTS[1]), (1, 28, 28)),
    ],
)
def test_there_are_as_many_of_each_class_as_published_with_the_published_mean(
    name: str, train: list[int], test: list[int], shape: tuple[int, ...]
) -> None:
    data = content(name)
    assert data.test is not None
    found = [np.bincount(y, minlength=len(data.class_names)).tolist() for y in (data.train.y, data.test.y)]
    assert found == [train, test]
    assert data.train.x.shape == (sum(train), *shape)
    if name != "fashion_mnist":
        # Its constants are those of MNIST.
        np.testing.assert_allclose(data.train.x.mean((0, 2, 3)), made(name).normalisation.mean, atol=0.3)
