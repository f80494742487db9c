"""Options carry their limits, and a value outside them is answered with one sentence."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmate.core.options import Limits, check_options, option
from fedmate.errors import UserError


@dataclasses.dataclass(frozen=True)
class Example:
    setup: str = "not an option"
    rate: float = option(0.5, "a share", Limits(at_least=0, below=1))
    count: int | None = option(None, "a number", Limits(at_least=1))
    name: str = option("x", "a word")
    flag: bool = option(False, "a switch", Limits(above=5))
    free: float = option(0.0, "anything finite")


bounds = st.none() | st.floats(-10, 10)


class TestLimits:
    @given(at_least=bounds, above=bounds, at_most=bounds, below=bounds, value=st.floats(-12, 12))
    def test_every_bound_counts(
        self, at_least: float | None, above: float | None, at_most: float | None, below: float | None, value: float
    ) -> None:
        refused = (
            (at_least is not None and value < at_least)
            or (above is not None and value <= above)
            or (at_most is not None and value > at_most)
            or (below is not None and value >= below)
        )
        limits = Limits(at_least=at_least, above=above, at_most=at_most, below=below)
        assert limits.allow(value) is not refused

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_only_finite_numbers(self, value: float) -> None:
        assert not Limits().allow(value)
        assert not Limits(at_least=0).allow(value)


class TestOptions:
    @pytest.mark.parametrize(
        ("values", "sentence"),
        [
            ({"rate": 1}, "`section.rate` is 1; set it to a finite number at least 0 and below 1."),
            ({"count": 0}, "`section.count` is 0; set it to a finite number at least 1."),
            ({"free": math.nan}, "`section.free` is nan; set it to a finite number."),
        ],
    )
    def test_bad_values_are_named(self, values: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError) as error:
            check_options("section", Example, values)
        assert str(error.value) == sentence
