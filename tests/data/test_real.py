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


def counts(name: str) -> tuple[list[int], list[int]]:
    train, test, names = content(name)[:3]
    assert test is not None
    first, second = (np.bincount(part.y, minlength=len(names)).tolist() for part in (train, test))
    return first, second


@pytest.mark.parametrize(
    ("name", "train", "test", "shape"),
    [
        ("cifar10", [5000] * 10, [1000] * 10, (3, 32, 32)),
        ("cifar100", [500] * 100, [100] * 100, (3, 32, 32)),
        ("fashion_mnist", [6000] * 10, [1000] * 10, (1, 28, 28)),
        ("mnist", list(MNIST_COUNTS[0]), list(MNIST_COUNTS[1]), (1, 28, 28)),
    ],
)
def test_there_are_as_many_of_each_class_as_published(
    name: str, train: list[int], test: list[int], shape: tuple[int, ...]
) -> None:
    assert counts(name) == (train, test)
    assert content(name).train.x.shape == (sum(train), *shape)
    assert len(content(name).class_names) == len(train)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist"])
def test_the_constants_are_the_means_of_the_channels(name: str) -> None:
    mean = content(name).train.x.mean((0, 2, 3))
    np.testing.assert_allclose(mean, made(name).normalisation.mean, atol=0.3)


def test_ships_are_in_blue_and_frogs_are_not() -> None:
    """Were the channels exchanged, or the names, this would not be so."""
    for name, blue, other in (("cifar10", "ship", "frog"), ("cifar100", "sea", "lion")):
        data = content(name)
        means = {
            word: data.train.x[data.train.y == data.class_names.index(word)].mean((0, 2, 3)) for word in (blue, other)
        }
        assert means[blue][2] > means[blue][0]
        assert means[other][2] < means[other][0]
