"""Tensors without content: reading one back to the host raises."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


class Unreadable(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes fake tensors that hold no number at all."""

    def from_tensor(self, tensor: Tensor, **options: Any) -> FakeTensor:
        fake: FakeTensor = super().from_tensor(tensor, **options)
        # From torch 2.15 on a scalar remembers the number it was made of, and a read would answer with it.
        fake.item_memo = None
        return fake
