"""Anchors start as unit vectors."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from fedmate.components.feature_anchors import initial_anchors
from fedmate.core import make_key


@pytest.mark.parametrize("num_classes", [1, 4, 6])
def test_with_axes_enough_anchors_are_different_rows_of_the_identity(num_classes: int) -> None:
    found = initial_anchors(num_classes, 6, make_key(1), torch.float64)
    assert torch.equal(found @ found.T, torch.eye(num_classes, dtype=torch.float64))
    assert ((found == 0) | (found == 1)).all()


def test_without_axes_enough_they_are_random_unit_vectors() -> None:
    found = initial_anchors(5, 3, make_key(1), torch.float32)
    assert found.dtype == torch.float32
    assert_close(found.norm(dim=-1), torch.ones(5))
    assert (found != 0).all()
    assert (found < 0).any()
