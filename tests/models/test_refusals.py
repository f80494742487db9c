"""Inputs that a network cannot read, and options that do not fit each other, are refused."""

from __future__ import annotations

import pytest

from fedmate.errors import UserError
from fedmate.models import MODELS


@pytest.mark.parametrize(
    ("name", "shape", "phrase"),
    [
        *((name, (3, 2, 2), "cannot read inputs of shape") for name in ("cifar_cnn", "emnist_cnn", "animals_cnn")),
        ("cifar100_cnn", (3072,), "cannot read inputs of shape"),
        ("digits_cnn", (1, 8, 3), "at least 4 x 4, not"),
        ("resnet18", (3, 7, 8), "at least 8 x 8, not"),
    ],
)
def test_other_inputs_are_refused(name: str, shape: tuple[int, ...], phrase: str) -> None:
    with pytest.raises(UserError) as error:
        MODELS[name]().build(shape, 10)
    assert f"{phrase} {shape}; " in str(error.value)


@pytest.mark.parametrize(("groups", "width"), [(32, 4), (3, 64), (64, 32)])
def test_groups_that_do_not_divide_the_channels_are_refused(groups: int, width: int) -> None:
    with pytest.raises(UserError, match=rf"^`model.groups` is {groups}, which does not divide the {width} channels"):
        MODELS["resnet18"](groups=groups, width=width)  # type: ignore[call-arg]
