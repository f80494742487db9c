"""Anchors start as unit vectors, draw the features of their class, and are what a classifier must recognise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from fedmate.components.feature_anchors import anchor_loss, calibration_loss, initial_anchors
from fedmate.core import Batch, Model, make_key, normal

LABELS = torch.tensor([0, 2, 2, 0, 2])


def batch(mask: tuple[bool, ...] = (True,) * 5) -> Batch:
    return Batch(torch.zeros(5, 3), LABELS, torch.tensor(mask), torch.arange(5), make_key(0))


def features() -> Tensor:
    return normal(make_key(8), (5, 3), torch.float64)


def anchors() -> Tensor:
    return normal(make_key(9), (4, 3), torch.float64)


# -------------------- where they start


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


# -------------------- their losses


def test_the_loss_averages_squared_distances_in_each_class_and_then_over_all_classes() -> None:
    """Two samples of class 0, three of class 2, none of classes 1 and 3; distances are summed over the width."""
    z, a = features(), anchors()
    zero = ((z[[0, 3]] - a[0]) ** 2).sum() / 2
    two = ((z[[1, 2, 4]] - a[2]) ** 2).sum() / 3
    assert_close(anchor_loss(z, batch(), a), (zero + two) / 4)


def test_its_gradient_by_hand() -> None:
    z, a = features().requires_grad_(), anchors()
    anchor_loss(z, batch(), a).backward()  # type: ignore[no-untyped-call]
    counts = torch.tensor([2, 3, 3, 2, 3])[:, None]
    assert z.grad is not None
    assert_close(z.grad, 2 * (z.detach() - a[LABELS]) / counts / 4)


def test_calibration_asks_for_each_anchor_its_own_class() -> None:
    model = Model(nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 4)).double(), classifier="1")
    classifier = model.init_params()["classifier"]
    expected = functional.cross_entropy(functional.linear(anchors(), **classifier), torch.arange(4))
    assert_close(calibration_loss(model, classifier, anchors()), expected)
