"""Cost-aware transmission: the rounds in which the extractor travels, against the table of the specification."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedmate.components.feature_transmission import is_transmitted, transmission_period
from fedmate.core import Model, Setup, Training, leaves, make_key
from fedmate.errors import UserError
from fedmate.methods.fedmate import FedMate
from fedmate.models import MODELS

ROUNDS = 200


TABLE = {
    # 200 * 2,570 = 514,000; 106,400 times 200, 198, 99, 0
    "cifar_cnn": ((3, 32, 32), 10, (21_794_000, 21_581_200, 11_047_600, 514_000)),
    # 200 * 15,934 = 3,186,800; 115,776 times 200, 186, 93, 0
    "emnist_cnn": ((1, 28, 28), 62, (26_342_000, 24_721_136, 13_953_968, 3_186_800)),
    # 200 * 204,900 = 40,980,000; 1,438,016 times 200, 186, 93, 0
    "cifar100_cnn": ((3, 32, 32), 100, (328_583_200, 308_450_976, 174_715_488, 40_980_000)),
    # 200 * 2,570 = 514,000; 154,784 times 200, 199, 100, 0
    "animals_cnn": ((3, 32, 32), 10, (31_470_800, 31_316_016, 15_992_400, 514_000)),
}
"""By network: what it reads, its classes, and the numbers sent in all under each schedule, worked out by hand."""
SCHEDULES = ("all", "cft", "half", "null")


def states(schedule: str, period: int | Fraction, rounds: int = ROUNDS) -> list[int]:
    """Return Q."""
    return [state for state in range(1, rounds + 1) if is_transmitted(state, schedule, Fraction(period))]


def method_for(name: str, schedule: str) -> FedMate:
    (shape, classes, _), architecture = TABLE[name], MODELS[name]()
    model = Model(architecture.build(shape, classes), classifier=architecture.classifier)
    return FedMate(setup=Setup(model, classes, ROUNDS, Training()), cft=schedule)


@pytest.mark.parametrize("name", TABLE)
def test_totals_of_uploads(name: str) -> None:
    """From what the method puts on the wire, with the sizes of its own model."""
    found = []
    for schedule in SCHEDULES:
        method = method_for(name, schedule)
        params = method.setup.model.init_params()
        prototypes = method.init_server(params, 1, make_key(0))["prototypes"]
        numbers = {
            **{part: sum(leaf.numel() for leaf in leaves(params[part])) for part in params},
            "prototypes": prototypes.numel(),
        }
        found.append(sum(numbers.get(part, 0) for t in range(ROUNDS) for part in method.wire(t).up))
    assert tuple(found) == TABLE[name][2]


# -------------------- schedules


@given(st.integers(1, 300), st.integers(0, 300))
def test_every_schedule(period: int, rounds: int) -> None:
    numbers = list(range(1, rounds + 1))
    kept = [state for state in numbers if state % period]
    assert states("all", period, rounds) == numbers
    assert states("cft", period, rounds) == kept
    assert states("half", period, rounds) == kept[::2]
    assert states("null", period, rounds) == []
    assert states(f"period:{period}", 7, rounds) == kept


def test_period_below_two_is_exact() -> None:
    """At q = 8/5 five states of eight are left out: 3 extractors and 8 prototypes cost what 8 extractors do."""
    assert transmission_period(40, 20) == transmission_period(59, 20) == 2
    assert transmission_period(8, 5) == Fraction(8, 5)
    assert states("cft", Fraction(8, 5), 8) == [1, 3, 6]
    assert states("half", Fraction(8, 5), 8) == [1, 6]
    assert states("cft", Fraction(39, 20)) == [t for t in range(1, ROUNDS + 1) if t * 20 // 39 == (t - 1) * 20 // 39]
    # Prototypes that cost as much as the extractor leave nothing for it.
    assert states("cft", Fraction(1)) == states("cft", Fraction(1, 4)) == []


@pytest.mark.parametrize(
    ("schedule", "width", "phrase"),
    [("cft", 8, "is sent in 75 of 200 rounds"), ("cft", 5, "is never aggregated"), ("all", 5, None), ("cft", 15, None)],
)
def test_prototypes_that_cost_about_as_much_as_the_extractor_are_warned_of(
    schedule: str, width: int, phrase: str | None
) -> None:
    """An extractor of `width` numbers beside 5 prototypes of one."""
    model = Model(nn.Sequential(nn.Linear(width, 1, bias=False), nn.Linear(1, 5)), classifier="1")
    method = FedMate(setup=Setup(model, 5, ROUNDS, Training()), cft=schedule)
    warned = method.warnings([])
    assert len(warned) == (phrase is not None)
    assert all(phrase in sentence for sentence in warned if phrase)


@pytest.mark.parametrize("schedule", ["", "All", "cft ", "period:", "period:0", "period:n", "period:2.5", "null:3"])
def test_other_schedules_are_refused(schedule: str) -> None:
    with pytest.raises(UserError, match="use `all`, `cft`, `half`, `null` or `period:n`"):
        method_for("cifar_cnn", schedule)
