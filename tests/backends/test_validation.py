"""What is admitted, and the sentence for what is not."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedmate.backends.validation import RefusedError, is_sound, validate_upload
from fedmate.core import Tree, flatten


def upload() -> Tree:
    return {
        "classifier": {"weight": torch.randn(3, 2), "bias": torch.zeros(3)},
        "class_counts": torch.tensor([4, 0, 2]),
        "num_samples": torch.tensor(6),
    }


def test_what_a_client_of_the_method_sends_is_admitted_in_the_order_of_the_pattern() -> None:
    sent = flatten(upload())
    found = validate_upload(dict(reversed(sent.items())), upload())
    assert_close(flatten(found), sent)
    assert list(flatten(found)) == list(sent)
    assert is_sound(found, torch.tensor(0.3))
    assert not is_sound({**found, "num_samples": torch.tensor(5)}, torch.tensor(0.3))


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("classifier/weight", torch.full((3, 2), torch.nan), "`classifier/weight` is not finite"),
        ("classifier/weight", torch.zeros(2, 3), "`classifier/weight` is float32 of shape (2, 3), not"),
        ("classifier/bias", torch.zeros(3, dtype=torch.float64), "`classifier/bias` is float64 of shape (3,), not"),
        ("class_counts", torch.tensor([4, -1, 3]), "`class_counts` is negative"),
        ("num_samples", torch.tensor(-6), "`num_samples` is negative"),
        ("num_samples", torch.tensor(7), "`class_counts` do not add up to `num_samples`"),
        ("class_counts", torch.tensor([4.0, 0.0, 2.0]), "`class_counts` is float32 of shape (3,), not int64"),
        ("more", torch.zeros(1), "it does not hold the expected parts (more)"),
    ],
)
def test_anything_else_is_refused_and_named(path: str, value: Tensor, reason: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(reason)):
        validate_upload({**flatten(upload()), path: value}, upload())
