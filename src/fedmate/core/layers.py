"""Layers that depend on more than their input: BatchNorm on the sample mask, dropout on a key.

A user's module is swapped for its stateless twin once, when a `Model` is made from it. The twins read the mask, the
sample ids and the key of the current step from a context variable, so that a module's `forward` stays as written,
and give the same result for one client alone and for many padded clients at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from fedmate.core.data import Batch
from fedmate.core.random import fold, to_uniform
from fedmate.errors import UserError

BufferPolicy = Literal["shared", "private", "dropped"]
"""Whether buffers (BatchNorm's running statistics) travel with the extractor, stay with the client, or do not exist."""


@dataclass(frozen=True)
class SampleContext:
    """What layers may know about the batch that passes through them."""

    batch: Batch
    calls: Iterator[int] = field(default_factory=itertools.count)


_context: ContextVar[SampleContext] = ContextVar("sample_context")


@contextmanager
def sample_context(batch: Batch) -> Iterator[None]:
    """Let layers see the mask, the ids and the key of `batch` while a step runs."""
    token = _context.set(SampleContext(batch))
    try:
        yield
    finally:
        _context.reset(token)


def _current(layer: str, x: Tensor) -> SampleContext:
    context = _context.get(None)
    if context is None:
        raise RuntimeError(f"{layer} in training mode runs inside `loop` or `sample_context` only")
    if x.shape[0] != context.batch.mask.shape[0]:
        raise UserError(
            f"{layer} got {x.shape[0]} rows for {context.batch.mask.shape[0]} samples; keep the samples on the "
            "first axis of what it reads."
        )
    return context


class MaskedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm over the real samples of a batch, rebinding its statistics instead of writing into them."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions: the layer it stands in for has checked them."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise with the batch's statistics in training, with the running ones in evaluation."""
        if self.training:
            mean, variance = self._batch_statistics(input, _current("BatchNorm", input).batch.mask)
        elif self.running_mean is not None and self.running_var is not None:
            mean, variance = self.running_mean, self.running_var
        else:
            everyone = torch.ones(input.shape[0], dtype=torch.bool, device=input.device)
            mean, variance = self._batch_statistics(input, everyone)
        shape = (1, -1, *[1] * (input.dim() - 2))
        scale = torch.rsqrt(variance + self.eps)
        output = (input - mean.reshape(shape)) * scale.reshape(shape)
        if self.affine:
            output = output * self.weight.reshape(shape) + self.bias.reshape(shape)
        return output

    def _batch_statistics(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        axes = [0, *range(2, x.dim())]
        weight = mask.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype)
        # A batch of padding alone is discarded afterwards; the clamp only keeps NaN out of it.
        count = (mask.sum() * (x[0].numel() // x.shape[1])).clamp(min=1).to(x.dtype)
        kept = torch.where(weight > 0, x, torch.zeros_like(x))
        mean = kept.sum(axes) / count
        centred = (x - mean.reshape(1, -1, *[1] * (x.dim() - 2))) * weight
        variance = centred.square().sum(axes) / count
        if self.training and self.running_mean is not None and self.running_var is not None:
            unbiased = variance * count / (count - 1).clamp(min=1)
            step = 0.1 if self.momentum is None else self.momentum
            self.running_mean = torch.lerp(self.running_mean, mean.detach(), step)
            self.running_var = torch.lerp(self.running_var, unbiased.detach(), step)
        return mean, variance


class KeyedDropout(nn.Module):
    """Dropout whose choices are a function of (key, call, sample, position).

    Args:
        probability: the share of values set to zero.
        channels: whether whole channels are dropped, as `nn.Dropout2d` and its siblings do.
    """

    def __init__(self, probability: float, channels: bool) -> None:
        """Remember what to drop."""
        super().__init__()
        self.probability = probability
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Zero a random share of `x` in training, and scale the rest up."""
        if not self.training or self.probability == 0:
            return x
        context = _current("Dropout", x)
        # A module may be called twice in one forward pass: counting calls keeps the two apart.
        key = fold(context.batch.key, "dropout", next(context.calls))
        shape = (x.shape[1], *[1] * (x.dim() - 2)) if self.channels else tuple(x.shape[1:])
        per_sample = fold(key, context.batch.ids)[:, None]
        bits = fold(per_sample, torch.arange(math.prod(shape), device=x.device))
        kept = (to_uniform(bits) >= self.probability).reshape(-1, *shape)
        return torch.where(kept, x / max(1 - self.probability, 1e-12), torch.zeros_like(x))


_CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_RANDOM = (nn.RReLU, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def swap_layers(module: nn.Module, buffers: BufferPolicy, path: str = "") -> nn.Module:
    """Replace every BatchNorm and dropout inside `module` by its stateless twin, under the same name."""
    for name, child in module.named_children():
        setattr(module, name, swap_layers(child, buffers, f"{path}{name}."))
    if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return KeyedDropout(module.p, isinstance(module, _CHANNEL_DROPOUT))
    if isinstance(module, _BATCH_NORM):
        return _swap_batch_norm(module, buffers, path)
    hidden = isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
    if isinstance(module, _RANDOM) or hidden:
        raise UserError(
            f"`{path.rstrip('.') or 'module'}` is a {type(module).__name__} with randomness of its own, which would "
            "make results depend on the order of clients; use `nn.Dropout` layers instead."
        )
    return module


def _swap_batch_norm(module: nn.modules.batchnorm._BatchNorm, buffers: BufferPolicy, path: str) -> nn.Module:
    if module.momentum is None:
        raise UserError(f"`{path.rstrip('.')}` has `momentum=None`; give this BatchNorm a momentum, such as 0.1.")
    tracked = module.track_running_stats and buffers != "dropped"
    twin = MaskedBatchNorm(module.num_features, module.eps, module.momentum, module.affine, tracked)
    twin.load_state_dict({k: v for k, v in module.state_dict().items() if k in twin.state_dict()})
    # Only needed for `momentum=None`; left in place it would cross the wire as a number nobody reads.
    twin.num_batches_tracked = None
    return twin.to(next(module.parameters()).dtype) if module.affine else twin
