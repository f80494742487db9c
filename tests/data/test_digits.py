"""The digits are those of scikit-learn, with the constants that standardise them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedmate.data import DATASETS
from fedmate.data.dataset import Arrays
from fedmate.data.digits import Digits
from fedmate.data.partitions import PARTITIONS, PartitionInput
from fedmate.data.partitions.share import Share
from fedmate.models import MODELS


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return Digits().load(Path())


def test_shapes_and_types(arrays: Arrays) -> None:
    assert arrays.train.x.shape == (1797, 1, 8, 8)
    assert arrays.train.x.dtype == np.uint8
    assert arrays.train.y.shape == (1797,)
    assert arrays.train.y.dtype == np.int64
    assert arrays.test is None
    assert arrays.class_names == tuple("0123456789")


def test_every_class_is_there(arrays: Arrays) -> None:
    assert np.bincount(arrays.train.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_pixels_are_the_originals(arrays: Arrays) -> None:
    originals = load_digits()
    np.testing.assert_array_equal(arrays.train.x[:, 0], originals.images)
    np.testing.assert_array_equal(arrays.train.y, originals.target)


def test_pixels_are_standardised(arrays: Arrays) -> None:
    source = arrays.normalisation.source(arrays.train.x, Digits().augmentation, torch.float32, "cpu")
    standardised = source.read(torch.arange(1797))
    assert standardised.dtype == torch.float32
    assert abs(float(standardised.double().mean())) < 1e-3
    assert abs(float(standardised.double().std()) - 1) < 1e-3


def test_loading_twice_gives_arrays_of_ones_own(arrays: Arrays) -> None:
    other = Digits().load(Path())
    np.testing.assert_array_equal(other.train.x, arrays.train.x)
    other.train.x[:] = 0
    other.train.y[:] = 0
    assert arrays.train.x.any()
    assert Digits().load(Path()).train.y.any()


def test_the_defaults_fit_together(arrays: Arrays) -> None:
    assert DATASETS["digits"] is Digits
    defaults = Digits().defaults
    assert set(defaults) == {"partition", "model"}
    examples = defaults["partition"]["examples"]
    # `given` deals nothing: it takes clients as they come.
    # `natural` wants to know whose each sample is.
    for name in {*PARTITIONS.names()} - {"given", "natural"}:
        data = PartitionInput(arrays.train.y, 10, np.random.default_rng(0))
        client_rows = PARTITIONS[name](clients=20, examples=examples).split(data)
        assert all(1 <= len(rows) <= examples for rows in client_rows)
    # What no client holds is the test split: every class is in it.
    data = PartitionInput(arrays.train.y, 10, np.random.default_rng(0))
    held = np.concatenate(Share(clients=20, examples=examples).split(data))
    rest = np.setdiff1d(np.arange(1797), held)
    assert len(rest) == 1797 - 20 * examples
    assert np.bincount(arrays.train.y[rest], minlength=10).min() >= 50
    network = MODELS[defaults["model"]["name"]]()
    assert network.build(arrays.train.x.shape[1:], 10)
