"""The digits are those of scikit-learn, with the constants that standardise them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedmate.datasets import DATASETS
from fedmate.datasets.base import Arrays
from fedmate.datasets.digits import Digits
from fedmate.models import MODELS
from fedmate.partitions import PARTITIONS
from fedmate.partitions.share import Share


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return Digits().load()


def test_shapes_and_types(arrays: Arrays) -> None:
    assert arrays.train.x.shape == (1797, 1, 8, 8)
    assert arrays.normalisation.apply(arrays.train.x).dtype == np.float32
    assert arrays.normalisation.apply(arrays.train.x).shape == (1797, 1, 8, 8)
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
    standardised = arrays.normalisation.apply(arrays.train.x)
    assert abs(float(standardised.mean(dtype=np.float64))) < 1e-3
    assert abs(float(standardised.std(dtype=np.float64)) - 1) < 1e-3


def test_standardising_undone_gives_the_pixels_back(arrays: Arrays) -> None:
    (mean,), (std,) = arrays.normalisation
    standardised = arrays.normalisation.apply(arrays.train.x)
    np.testing.assert_allclose(standardised.astype(np.float64) * std + mean, arrays.train.x, atol=1e-5)


def test_loading_twice_gives_arrays_of_ones_own(arrays: Arrays) -> None:
    other = Digits().load()
    np.testing.assert_array_equal(other.train.x, arrays.train.x)
    other.train.x[:] = 0
    other.train.y[:] = 0
    assert arrays.train.x.any()
    assert Digits().load().train.y.any()


def test_the_defaults_fit_together(arrays: Arrays) -> None:
    assert DATASETS["digits"] is Digits
    assert set(Digits.defaults) == {"partition", "model"}
    examples = Digits.defaults["partition"]["examples"]
    # `given` deals nothing: it takes clients as they come.
    for name in {*PARTITIONS.names()} - {"given"}:
        hands = PARTITIONS[name](clients=20, examples=examples).split(arrays.train.y, 10, np.random.default_rng(0))
        assert all(1 <= len(hand) <= examples for hand in hands)
    # What no client holds is the test split: every class is in it.
    held = np.concatenate(Share(clients=20, examples=examples).split(arrays.train.y, 10, np.random.default_rng(0)))
    rest = np.setdiff1d(np.arange(1797), held)
    assert len(rest) == 1797 - 20 * examples
    assert np.bincount(arrays.train.y[rest], minlength=10).min() >= 50
    network = MODELS[Digits.defaults["model"]["name"]]()
    assert network.build(arrays.train.x.shape[1:], 10)
