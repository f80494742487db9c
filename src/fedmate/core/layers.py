"""Layers that depend on more than their input: BatchNorm on the sample mask, dropout on a key.

A user's module is swapped for its stateless twin once, when a `Model` is made from it. The twins read the mask, the
sample ids and the key of the current step from a context variable, so that a module's `forward` stays as written,
and give the same result for one client alone and for many padded clients at once.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
    """What layers may know about the samples that pass through them: who is real, and in training the step's batch."""

    mask: Tensor
    batch: Batch | None = None
    calls: Iterator[int] = field(default_factory=itertools.count)


_context: ContextVar[SampleContext] = ContextVar("sample_context")


@contextmanager
def _entered(context: SampleContext) -> Iterator[None]:
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


def sample_context(batch: Batch) -> AbstractContextManager[None]:
    """Let layers see the mask, the ids and the key of `batch` while a step runs."""
    return _entered(SampleContext(batch.mask, batch))


def mask_context(mask: Tensor) -> AbstractContextManager[None]:
    """Let layers see which samples are real while they are evaluated."""
    return _entered(SampleContext(mask))


def _current(layer: str, x: Tensor) -> SampleContext:
    context = _context.get(None)
    if context is None:
        raise RuntimeError(f"{layer} needs to know its samples: call the model inside `loop` or `sample_context`")
    if x.shape[0] != context.mask.shape[0]:
        raise UserError(
            f"{layer} got {x.shape[0]} rows for {context.mask.shape[0]} samples; keep the samples on the first axis "
            "of what it reads."
        )
    return context


class MaskedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm over the real samples of a batch, rebinding its statistics instead of writing into them."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions: the layer it stands in for has checked them."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise with the batch's statistics in training, with the running ones in evaluation."""
        if not self.training and self.running_mean is not None and self.running_var is not None:
            mean, variance = self.running_mean, self.running_var
        elif not self.training and _context.get(None) is None:
            everyone = torch.ones(input.shape[0], dtype=torch.bool, device=input.device)
            mean, variance = self._batch_statistics(input, everyone)
        else:
            mean, variance = self._batch_statistics(input, _current("BatchNorm", input).mask)
        shape = (1, -1, *[1] * (input.dim() - 2))
        scale = torch.rsqrt(variance + self.eps)
        output = (input - mean.reshape(shape)) * scale.reshape(shape)
        if self.affine:
            output = output * self.weight.reshape(shape) + self.bias.reshape(shape)
        return output

    def _batch_statistics(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        axes = [0, *range(2, x.dim())]
        real = mask.reshape(-1, *[1] * (x.dim() - 1))
        # A batch of padding alone is discarded afterwards; the clamp only keeps NaN out of it.
        count = (mask.sum() * (x[0].numel() // x.shape[1])).clamp(min=1).to(x.dtype)
        mean = torch.where(real, x, torch.zeros_like(x)).sum(axes) / count
        # Chosen before subtracting, so that neither values nor gradients see what padding holds.
        shifted = torch.where(real, x, mean.reshape(1, -1, *[1] * (x.dim() - 2)))
        centred = shifted - mean.reshape(1, -1, *[1] * (x.dim() - 2))
        variance = centred.square().sum(axes) / count
        if self.training and self.running_mean is not None and self.running_var is not None:
            unbiased = variance * count / (count - 1).clamp(min=1)
            self.running_mean = torch.lerp(self.running_mean, mean.detach(), self.momentum)  # type: ignore[arg-type]
            self.running_var = torch.lerp(self.running_var, unbiased.detach(), self.momentum)  # type: ignore[arg-type]
        return mean, variance


class KeyedDropout(nn.Module):
    """Dropout, of whole channels if so asked, whose choices are a function of (key, call, sample, position)."""

    def __init__(self, probability: float, channels: bool) -> None:
        super().__init__()
        self.probability = probability
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Zero a random share of `x` in training, and scale the rest up."""
        if not self.training or self.probability == 0:
            return x
        context = _current("Dropout", x)
        if context.batch is None:
            raise RuntimeError("Dropout in training mode runs inside `loop` only")
        # A module may be called twice in one forward pass: counting calls keeps the two apart.
        key = fold(context.batch.key, "dropout", next(context.calls))
        shape = (x.shape[1], *[1] * (x.dim() - 2)) if self.channels else tuple(x.shape[1:])
        per_sample = fold(key, context.batch.ids)[:, None]
        bits = fold(per_sample, torch.arange(math.prod(shape), device=x.device))
        kept = (to_uniform(bits) >= self.probability).reshape(-1, *shape)
        return torch.where(kept, x / max(1 - self.probability, 1e-12), torch.zeros_like(x))


_CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_RANDOM = (nn.RReLU, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module; what is frozen is held once, by both."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters() if not p.requires_grad})


def swap_layers(module: nn.Module, buffers: BufferPolicy) -> nn.Module:
    """Replace every BatchNorm and dropout inside `module` by its stateless twin, under the same name."""
    twins: dict[nn.Module, nn.Module] = {}

    def swap(part: nn.Module, path: str) -> nn.Module:
        # A layer may be used in two places; it must stay one layer.
        if part not in twins:
            for name, child in part._modules.items():
                if child is not None:
                    part._modules[name] = swap(child, f"{path}.{name}" if path else name)
            twins[part] = _twin(part, buffers, path or "module")
        return twins[part]

    return swap(module, "")


def drop_statistics(module: nn.Module) -> None:
    """Let every BatchNorm inside `module` use the batch it sees, also in evaluation."""
    for layer in module.modules():
        if isinstance(layer, _BATCH_NORM):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None


def _twin(module: nn.Module, buffers: BufferPolicy, path: str) -> nn.Module:
    if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return KeyedDropout(module.p, isinstance(module, _CHANNEL_DROPOUT))
    if isinstance(module, _BATCH_NORM):
        return _swap_batch_norm(module, buffers, path)
    hidden = isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
    if isinstance(module, _RANDOM) or hidden:
        remedy = "set its own `dropout` to 0, or use" if hidden else "use"
        raise UserError(
            f"`{path}` is a {type(module).__name__} with randomness of its own, which would "
            f"make results depend on the order of clients; {remedy} `nn.Dropout` layers instead."
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        raise UserError(
            f"`{path}` is a {type(module).__name__} that tracks statistics; leave `track_running_stats` off."
        )
    return module


def _swap_batch_norm(module: nn.modules.batchnorm._BatchNorm, buffers: BufferPolicy, path: str) -> nn.Module:
    if module.momentum is None:
        raise UserError(f"`{path}` has `momentum=None`; give this BatchNorm a momentum, such as 0.1.")
    tracked = module.track_running_stats and buffers != "dropped"
    twin = MaskedBatchNorm(module.num_features, module.eps, module.momentum, module.affine, tracked)
    tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
    if tensors:
        twin = twin.to(tensors[0].device, tensors[0].dtype)
    twin.load_state_dict({k: v for k, v in module.state_dict().items() if k in twin.state_dict()})
    for name, parameter in twin.named_parameters():
        parameter.requires_grad_(module.get_parameter(name).requires_grad)
    # Only needed for `momentum=None`; left in place it would cross the wire as a number that nothing reads.
    twin.num_batches_tracked = None
    return twin
