"""The proximal term: half the squared distance, over what is trained."""

from __future__ import annotations

import torch

from fedmate.components.proximal import proximal


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
