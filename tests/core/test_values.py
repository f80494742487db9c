"""A value is taken as its option declares it, or refused with what was found and what is expected."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from fedmate.core.options import check_type
from fedmate.errors import UserError


@dataclass
class Options:
    whole: int = 0
    real: float = 0.0
    flag: bool = False
    word: str = ""
    cap: int | None = None
    choice: Literal["float32", "float64"] = "float32"
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()


def check(key: str, value: Any) -> Any:
    return check_type(f"section.{key}", Options, key, value, "here.toml")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("whole", -3, -3),
        ("whole", np.int64(3), 3),
        ("real", 2, 2.0),
        ("cap", "none", None),
        ("names", ["a", "b"], ("a", "b")),
        ("numbers", [2, 0.5, 10**400], (2.0, 0.5, math.inf)),
    ],
)
def test_a_value_becomes_what_its_option_declares(key: str, value: Any, expected: Any) -> None:
    taken = check(key, value)
    assert taken == expected
    assert type(taken) is type(expected)
    if isinstance(expected, tuple):
        assert [type(one) for one in taken] == [type(one) for one in expected]


@pytest.mark.parametrize(
    ("key", "value", "found", "expected"),
    [
        ("whole", 2.0, "the number 2.0", "a whole number"),
        ("whole", True, "the truth value true", "a whole number"),
        ("whole", datetime.date(2024, 5, 6), "2024-05-06", "a whole number"),
        ("whole", None, "empty", "a whole number"),
        ("whole", {"a": (True, None)}, "the table {a = [true, none]}", "a whole number"),
        ("real", "fast", "the string 'fast'", "a number"),
        ("flag", 1, "the number 1", "true or false"),
        ("sizes", [True], "the list [true]", "a list of whole numbers"),
        ("numbers", ["1"], "the list ['1']", "a list of numbers"),
    ],
)
def test_another_type_is_refused(key: str, value: Any, found: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        check(key, value)
    sentence = str(caught.value)
    assert sentence.startswith(f"`section.{key}` in here.toml is ")
    assert found in sentence
    assert sentence.endswith(f"; it must be {expected}.")


@pytest.mark.parametrize(
    ("value", "advice"), [("float46", "did you mean `float64`?"), ("half", "known are `float32`, `float64`."), ([], "")]
)
def test_a_word_outside_the_choices_is_refused(value: Any, advice: str) -> None:
    with pytest.raises(UserError, match=r"^`section\.choice` in here\.toml is ") as caught:
        check("choice", value)
    assert repr(value) in str(caught.value)
    assert advice in str(caught.value)
