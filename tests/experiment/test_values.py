"""A value is taken as its option declares it, or refused with what was found and what is expected."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from fedmate.errors import UserError
from fedmate.experiment.values import check_type


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
    ("key", "value"),
    [
        ("whole", 3),
        ("whole", -3),
        ("real", 0.5),
        ("flag", True),
        ("flag", False),
        ("word", "3"),
        ("word", ""),
        ("cap", 7),
        ("choice", "float64"),
    ],
)
def test_a_value_of_the_declared_type_passes_unchanged(key: str, value: Any) -> None:
    taken = check(key, value)
    assert taken == value
    assert type(taken) is type(value)


def test_a_whole_number_becomes_the_number_that_is_asked_for() -> None:
    taken = check("real", 2)
    assert taken == 2.0
    assert type(taken) is float


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("whole", np.int64(3), int),
        ("real", np.int64(3), float),
        ("real", np.float32(3), float),
        ("cap", np.uint8(3), int),
    ],
)
def test_numpys_numbers_are_numbers(key: str, value: Any, kind: type) -> None:
    taken = check(key, value)
    assert taken == 3
    assert type(taken) is kind


def test_whole_numbers_in_a_list_become_the_numbers_that_are_asked_for() -> None:
    taken = check("numbers", [2, 0.5, 10**400])
    assert taken == (2.0, 0.5, math.inf)
    assert [type(number) for number in taken] == [float] * 3


@pytest.mark.parametrize(
    ("key", "value", "found", "expected"),
    [
        ("whole", 2.0, "the number 2.0", "a whole number"),
        ("whole", True, "the truth value true", "a whole number"),
        ("whole", "3", "the string '3'", "a whole number"),
        ("whole", np.float64(3), "3.0", "a whole number"),
        ("real", np.bool_(True), "True", "a number"),
        ("whole", [3], "the list [3]", "a whole number"),
        ("real", "fast", "the string 'fast'", "a number"),
        ("real", False, "the truth value false", "a number"),
        ("flag", 1, "the number 1", "true or false"),
        ("flag", "yes", "the string 'yes'", "true or false"),
        ("word", 3, "the number 3", "a string"),
        ("word", False, "the truth value false", "a string"),
        ("cap", 2.5, "the number 2.5", "a whole number"),
        ("cap", True, "the truth value true", "a whole number"),
        ("names", "a", "the string 'a'", "a list of strings"),
        ("names", ["a", 1], "the list ['a', 1]", "a list of strings"),
        ("sizes", [1.0], "the list [1.0]", "a list of whole numbers"),
        ("sizes", [True], "the list [True]", "a list of whole numbers"),
        ("sizes", [[1]], "the list [[1]]", "a list of whole numbers"),
        ("numbers", 1.0, "the number 1.0", "a list of numbers"),
        ("numbers", ["1"], "the list ['1']", "a list of numbers"),
        ("whole", {"a": 1}, "dict {'a': 1}", "a whole number"),
        ("whole", datetime.date(2024, 5, 6), "datetime.date(2024, 5, 6)", "a whole number"),
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
    ("value", "advice"),
    [
        ("float46", "did you mean `float64`?"),
        ("half", "known are `float32`, `float64`."),
        (64, "`float64`"),
        ([], "are"),
    ],
)
def test_a_word_outside_the_choices_is_refused(value: Any, advice: str) -> None:
    with pytest.raises(UserError, match=r"^`section\.choice` in here\.toml is ") as caught:
        check("choice", value)
    assert repr(value) in str(caught.value)
    assert advice in str(caught.value)
