"""Cost-aware transmission: the rounds in which the extractor travels, against the table of the specification."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedmate.components.feature_transmission import is_transmitted, parse_schedule, transmission_period
from fedmate.core import Model, Setup, Training, make_key
from fedmate.errors import UserError
from fedmate.methods.fedmate import FedMate
from fedmate.models import MODELS

ROUNDS = 200


class Row(NamedTuple):
    """A network and what its table row says.

    Attributes:
        shape, classes: what it reads and answers.
        extractor, prototypes, head: numbers in each.
        skipped: the states that `cft` leaves out of 200.
        relative: total uploads against those of the model alone, as printed: all, cft, half, null.
        totals: the same as numbers sent, worked out by hand: 200 (H + P) + |Q| E.
    """

    shape: tuple[int, ...]
    classes: int
    extractor: int
    prototypes: int
    head: int
    skipped: list[int]
    relative: tuple[str, str, str, str]
    totals: tuple[int, int, int, int]


TABLE = {
    # 200 * 2,570 = 514,000; 106,400 times 200, 198, 99, 0
    "cifar_cnn": Row(
        (3, 32, 32),
        10,
        106_400,
        1_280,
        1_290,
        [83, 166],
        ("1.0119", "1.0020", "0.513", "0.024"),
        (21_794_000, 21_581_200, 11_047_600, 514_000),
    ),
    # 200 * 15,934 = 3,186,800; 115,776 times 200, 186, 93, 0
    "emnist_cnn": Row(
        (1, 28, 28),
        62,
        115_776,
        7_936,
        7_998,
        [14, 28, 42, 56, 70, 84, 98, 112, 126, 140, 154, 168, 182, 196],
        ("1.0641", "0.9986", "0.564", "0.129"),
        (26_342_000, 24_721_136, 13_953_968, 3_186_800),
    ),
    # 200 * 204,900 = 40,980,000; 1,438,016 times 200, 186, 93, 0
    "cifar100_cnn": Row(
        (3, 32, 32),
        100,
        1_438_016,
        102_400,
        102_500,
        [14, 28, 42, 56, 70, 84, 98, 112, 126, 140, 154, 168, 182, 196],
        ("1.0665", "1.0011", "0.567", "0.133"),
        (328_583_200, 308_450_976, 174_715_488, 40_980_000),
    ),
    # 200 * 2,570 = 514,000; 154,784 times 200, 199, 100, 0
    "animals_cnn": Row(
        (3, 32, 32),
        10,
        154_784,
        1_280,
        1_290,
        [120],
        # The specification prints 0.017, but 2,570 / 156,074 = 0.01647.
        ("1.0082", "1.0032", "0.512", "0.016"),
        (31_470_800, 31_316_016, 15_992_400, 514_000),
    ),
}
SCHEDULES = ("all", "cft", "half", "null")


def states(schedule: str, period: int | Fraction, rounds: int = ROUNDS) -> list[int]:
    """Return Q."""
    return [state for state in range(1, rounds + 1) if is_transmitted(state, schedule, Fraction(period))]


def method_for(name: str, schedule: str) -> FedMate:
    row, architecture = TABLE[name], MODELS[name]()
    model = Model(architecture.build(row.shape, row.classes), classifier=architecture.classifier)
    return FedMate(setup=Setup(model, row.classes, ROUNDS, Training()), cft=schedule)


# -------------------- the table


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", TABLE)
def test_totals_of_uploads(name: str, schedule: str) -> None:
    """From what the method puts on the wire, with the sizes of its own model."""
    row, column = TABLE[name], SCHEDULES.index(schedule)
    method = method_for(name, schedule)
    model = method.setup.model
    params = model.init_params()
    numbers = {
        "extractor": model.extractor_size,
        "classifier": sum(t.numel() for t in params["classifier"].values()),
        "prototypes": method.init_server(params, 1, make_key(0))["prototypes"].numel(),
    }
    assert numbers == {"extractor": row.extractor, "classifier": row.head, "prototypes": row.prototypes}
    up = sum(numbers.get(part, 0) for t in range(ROUNDS) for part in method.wire(t).up)
    assert up == row.totals[column]
    printed = row.relative[column]
    assert f"{up / (ROUNDS * (row.extractor + row.head)):.{len(printed) - 2}f}" == printed
    assert set().union(*(method.wire(t).up for t in range(ROUNDS))) <= {*numbers, "class_counts"}


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


@pytest.mark.parametrize(
    "schedule",
    ["", "All", "cft ", "period", "period:", "period:0", "period:-2", "period:n", "period:2.5", "null:3", "x"],
)
def test_other_schedules_are_refused(schedule: str) -> None:
    sentence = (
        f"`method.cft` is `{schedule}`; use `all`, `cft`, `half`, `null` or `period:n` with a whole number n >= 1."
    )
    with pytest.raises(UserError) as error:
        parse_schedule(schedule)
    assert str(error.value) == sentence
    with pytest.raises(UserError) as error:
        method_for("cifar_cnn", schedule)
    assert str(error.value) == sentence


# -------------------- on the wire


@pytest.mark.parametrize("schedule", [*SCHEDULES, "period:2", "period:3"])
def test_the_extractor_goes_up_for_a_state_of_q_and_comes_down_from_one(schedule: str) -> None:
    method = method_for("emnist_cnn", schedule)
    q = set(states(schedule, 14))
    assert {t for t in range(ROUNDS) if "extractor" in method.wire(t).up} == {state - 1 for state in q}
    assert {t for t in range(ROUNDS) if "extractor" in method.wire(t).down} == {0} | {s for s in q if s < ROUNDS}
    for t in range(ROUNDS):
        assert method.wire(t).down - {"extractor"} == {"classifier", "prototypes", "known", "round"}
        assert method.wire(t).up - {"extractor"} == {"classifier", "prototypes", "class_counts"}
