"""How precisely a GPU multiplies float32 numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["strict", "tf32", "bf16"]
"""Factors as they are, rounded to TF32 (10 bits), or a network's to bfloat16 (7 bits); sums are float32 in any case."""


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Let matrix products and convolutions on a GPU round float32 numbers to TF32, unless `strict`; not on a CPU."""
    if device.type != "cuda":
        yield
        return
    settings = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    for setting in settings:
        setting.fp32_precision = "ieee" if precision == "strict" else "tf32"
    try:
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value
