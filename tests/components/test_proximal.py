"""The proximal term: half the squared distance, over what is trained, and nothing at all with weight 0."""

from __future__ import annotations

import torch
from tests.methods.small import normed_model
from torch.testing import assert_close

from fedmate.components.proximal import proximal, proximal_loss
from fedmate.core import (
    Batch,
    make_key,
    normal,
    supervised_loss,
    tree_map,
)
from fedmate.core.layers import sample_context


def make_batch() -> Batch:
    ids = torch.arange(4)
    return Batch(
        x=normal(make_key(1), (4, 1, 8), torch.float64),
        y=torch.tensor([0, 1, 2, 1]),
        mask=torch.tensor([True, True, True, False]),
        ids=ids,
        key=make_key(2),
    )


def test_distance_by_hand() -> None:
    """((1 - 3)^2 + (2 - 1)^2 + (5 - 2)^2) / 2, the leaves found by name and the buffers left out."""
    one = {
        "extractor": {"a": torch.tensor([1.0, 2.0])},
        "classifier": {"b": torch.tensor(5.0)},
        "buffers": {"c": torch.tensor(9.0)},
    }
    other = {
        "buffers": {"c": torch.tensor(0.0)},
        "classifier": {"b": torch.tensor(2.0)},
        "extractor": {"a": torch.tensor([3.0, 1.0])},
    }
    assert proximal(one, other, ("extractor", "classifier")).item() == 7
    assert proximal(one, other, ("extractor",)).item() == 2.5
    assert proximal(one, one, ("extractor", "classifier")).item() == 0


def test_without_weight_a_reference_that_is_not_finite_is_not_looked_at() -> None:
    model, batch = normed_model(), make_batch()
    params = model.init_params()
    nowhere = tree_map(lambda leaf: torch.full_like(leaf, torch.nan), params)
    with sample_context(batch):
        plain, buffers = supervised_loss(model)(params, batch)
    with sample_context(batch):
        found, others = proximal_loss(supervised_loss(model), nowhere, 0.0)(params, batch)
    assert_close((found, others), (plain, buffers), rtol=0, atol=0)
