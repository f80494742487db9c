"""What is searched for each method."""

from __future__ import annotations

import math

import pytest

from fedmate.core.options import options_of
from fedmate.errors import UserError
from fedmate.experiment.config import Experiment, parse_set
from fedmate.experiment.prepare import Request, compose
from fedmate.methods import METHODS
from fedmate.methods.fedper import FedPer
from fedmate.tune.space import SPACES, Dimension, space_of, spread, two_digits


def experiment(method: str, *settings: str, dataset: str = "cifar10") -> Experiment:
    return compose(Request(None, [method], dataset, parse_set(settings)))[0]


def test_it_is_decided_for_every_method() -> None:
    assert list(SPACES) == sorted(METHODS._rows)


@pytest.mark.parametrize("method", SPACES)
def test_few_settings_are_searched_around_their_defaults(method: str) -> None:
    space = space_of(experiment(method))
    assert [one.key for one in space] == ["training.learning_rate", *(f"method.{key}" for key in SPACES[method])]
    assert len(space) <= 4
    for one in space:
        assert one.low < one.start < one.high
        assert 1 <= math.log10(one.high / one.low) <= 3


@pytest.mark.parametrize(("method", "key"), [(method, key) for method, keys in SPACES.items() for key in keys])
def test_every_value_in_a_range_is_one_that_the_method_takes(method: str, key: str) -> None:
    limits = options_of(METHODS[method])[key].metadata["limits"]
    assert all(limits.allow(end) for end in SPACES[method][key])


def test_the_learning_rate_is_searched_around_the_experiments_own() -> None:
    (rate,) = space_of(experiment("fedavg"))
    assert (rate.own, rate.low, rate.high, rate.start) == (0.02, 0.004, 0.1, 0.02)
    (rate,) = space_of(experiment("fedavg", dataset="emnist"))
    assert (rate.low, rate.high) == (0.002, 0.05)
    (rate,) = space_of(experiment("fedavg", "training.learning_rate=1"))
    assert (rate.low, rate.high) == (0.2, 5)


def test_a_range_grows_to_hold_what_the_experiment_says() -> None:
    _, own = space_of(experiment("fedrep", "method.classifier_learning_rate=0.9"))
    assert (own.low, own.high, own.start) == (0.003, 0.9, 0.9)
    _, own = space_of(experiment("fedrep", "method.classifier_learning_rate=1e-4"))
    assert (own.low, own.high) == (1e-4, 0.3)


def test_what_is_off_stays_off() -> None:
    keys = [one.key for one in space_of(experiment("fedmate", "method.centre_weight=0"))]
    assert keys == ["training.learning_rate", "method.classifier_learning_rate", "method.fusion_weight"]


def test_a_step_size_that_is_not_given_starts_from_that_of_training() -> None:
    _, own = space_of(experiment("fedbabu"))
    assert (own.key, own.own, own.start) == ("method.tuning_learning_rate", None, 0.02)


def test_a_method_of_another_package_has_its_learning_rate_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS._rows, "theirs", FedPer)
    assert [one.key for one in space_of(experiment("theirs"))] == ["training.learning_rate"]


def test_nothing_lies_around_zero() -> None:
    with pytest.raises(UserError, match=r"^`training.learning_rate` is 0, .*; set it above 0\.$"):
        space_of(experiment("fedavg", "training.learning_rate=0"))


def test_the_first_settings_cover_the_ranges() -> None:
    points = [spread(space_of(experiment("fedavg")), number) for number in range(4)]
    assert [point["training.learning_rate"] for point in points] == [0.0089, 0.045, 0.006, 0.03]


@pytest.mark.parametrize("method", SPACES)
def test_settings_of_all_methods_are_covered_alike(method: str) -> None:
    space, fedavg = space_of(experiment(method)), space_of(experiment("fedavg"))
    for number in range(4):
        assert spread(space, number).items() >= spread(fedavg, number).items()
    for one in space:
        where = [math.log(spread(space, n)[one.key] / one.low) / math.log(one.high / one.low) for n in range(4)]
        assert 0 <= min(where) < 0.4 < 0.6 < max(where) <= 1


def test_a_range_that_ends_between_two_digits_is_not_left() -> None:
    narrow = Dimension("training.learning_rate", 0.0125, 0.01234, 0.01261, 0.0125)
    found = [spread([narrow], number)["training.learning_rate"] for number in range(4)]
    assert found == [0.01234, 0.01261, 0.01234, 0.01261]


@pytest.mark.parametrize(("value", "read"), [(0.0345678, 0.035), (0.1, 0.1), (123.4, 120), (9.99e-5, 1e-4)])
def test_settings_have_two_digits(value: float, read: float) -> None:
    assert two_digits(value) == read
