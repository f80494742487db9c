"""Options carry their limits, and a value outside them is answered with one sentence."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from fedmate.core.options import Limits, check_options, option
from fedmate.errors import UserError


@dataclasses.dataclass(frozen=True)
class Example:
    rate: float = option(0.5, "a share", Limits(at_least=0, below=1))
    count: int | None = option(None, "a number", Limits(at_least=1))
    share: float = option(0.5, "another share", Limits(above=0, at_most=1))
    free: float = option(0.0, "anything finite")


@pytest.mark.parametrize(
    "values", [{"rate": 0}, {"rate": 0.999}, {"count": None}, {"count": 1}, {"share": 1}, {"share": 1e-9}, {"free": -5}]
)
def test_values_on_their_bounds_are_allowed(values: dict[str, Any]) -> None:
    check_options("section", Example, values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rate": 1}, "`section.rate` is 1; set it to a finite number at least 0 and below 1."),
        ({"rate": -0.1}, "`section.rate` is -0.1; set it to a finite number at least 0 and below 1."),
        ({"count": 0}, "`section.count` is 0; set it to a finite number at least 1."),
        ({"share": 0}, "`section.share` is 0; set it to a finite number above 0 and at most 1."),
        ({"share": 1.1}, "`section.share` is 1.1; set it to a finite number above 0 and at most 1."),
        ({"free": math.nan}, "`section.free` is nan; set it to a finite number."),
        ({"free": -math.inf}, "`section.free` is -inf; set it to a finite number."),
    ],
)
def test_values_outside_are_named(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        check_options("section", Example, values)
    assert str(error.value) == sentence
