"""Blocks of a network that one kernel computes for all clients: convolution, activation and pooling.

The networks of federated learning are small, and under vmap most of their time goes into convolutions with a handful
of channels. `fuse` finds every convolution that is followed by a (leaky) ReLU and 2 x 2 max-pooling and replaces the
three by one layer with the same parameters under the same names, whose forward and backward pass are single kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmate.backends.precision import Precision
from fedmate.core.layers import copied


@dataclass(frozen=True)
class Block:
    """What a block computes besides its convolution."""

    padding: int  # zeros around the input
    slope: float  # of the activation for negative numbers; 0 is ReLU
    precision: Precision = "strict"  # of the products; sums are float32


class Pooled(NamedTuple):
    """What the forward pass of a block leaves behind, channels last."""

    y: Tensor  # the output, `[clients, samples, height, width, outputs]`
    winner: Tensor  # which of its four pixels won each pool, as the kernels write it down
    laid: Tensor  # the input as the kernels read it


class Gradients(NamedTuple):
    """The gradients of a block's input (if wanted, channels last), weight and bias, each a stack of clients."""

    x: Tensor | None
    weight: Tensor
    bias: Tensor


class Kernels(ABC):
    """How blocks are computed. A stack may have length 1 where all clients share what is in it."""

    @abstractmethod
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, block: Block) -> Pooled:
        """Compute a block.

        Args:
            x: `[clients, samples, channels, height, width]`.
            weight: `[clients, outputs, channels, kernel, kernel]`.
            bias: `[clients, outputs]`.
            block: what else there is to it.
        """

    @abstractmethod
    def backward(self, grad: Tensor, weight: Tensor, pooled: Pooled, block: Block, *, wants_x: bool) -> Gradients:
        """Compute the gradients, given that of `pooled.y`."""


@final
class GroupedKernels(Kernels):
    """PyTorch's own operations for all clients at once, as a CPU likes them: clients are groups, channels come last.

    That is how vmap does it, but for the layout, in which pooling is many times faster.
    """

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, block: Block) -> Pooled:
        """Compute a block."""
        clients, outputs = max(len(x), len(weight)), weight.shape[1]
        x = x.movedim(2, -1)
        weight, bias = (leaf.expand(clients, *leaf.shape[1:]) for leaf in (weight, bias))
        # Where all clients read the same, their outputs are those of one wide convolution.
        convolved = functional.conv2d(
            _grouped(x), weight.flatten(0, 1), bias.flatten(), padding=block.padding, groups=len(x)
        )
        pooled, places = functional.max_pool2d(convolved, 2, return_indices=True)
        # ReLU of minus infinity is 0, a leaky one of slope 0 would make NaN of it.
        y = functional.leaky_relu(pooled, block.slope) if block.slope else functional.relu(pooled)
        return Pooled(_ungrouped(y, clients, outputs), _ungrouped(places, clients, outputs), x)

    def backward(self, grad: Tensor, weight: Tensor, pooled: Pooled, block: Block, *, wants_x: bool) -> Gradients:
        """Compute the gradients."""
        clients, outputs, kernel = len(grad), weight.shape[1], weight.shape[-1]
        y, places, x = pooled
        x = x.expand(clients, *x.shape[1:]) if wants_x else x
        weight = weight.expand(clients, *weight.shape[1:])
        edges = (edge + 2 * block.padding - kernel + 1 for edge in x.shape[2:4])
        shape = (x.shape[1], clients * outputs, *edges)
        grad = torch.ops.aten.leaky_relu_backward(_grouped(grad), _grouped(y), block.slope, True)
        # Only the shape of what was pooled is looked at.
        convolved = torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=torch.channels_last)
        spread = torch.ops.aten.max_pool2d_with_indices_backward(
            grad, convolved, [2, 2], [2, 2], [0, 0], [1, 1], False, _grouped(places)
        )
        by_x, by_weight, _ = torch.ops.aten.convolution_backward(
            spread, _grouped(x), weight.flatten(0, 1), None, [1, 1], [block.padding] * 2, [1, 1], False, [0, 0],
            len(x), [wants_x, True, False],
        )  # fmt: skip
        by_bias = grad.sum((0, 2, 3)).reshape(clients, outputs)
        back = _ungrouped(by_x, clients, weight.shape[2]) if wants_x else None
        return Gradients(back, by_weight.reshape(weight.shape), by_bias)


def _grouped(stack: Tensor) -> Tensor:
    """Return `[samples, clients * channels, height, width]`, channels last, of a stack with channels last."""
    images = stack.permute(1, 2, 3, 0, 4).flatten(3).permute(0, 3, 1, 2)
    return images.contiguous(memory_format=torch.channels_last)


def _ungrouped(images: Tensor, clients: int, channels: int) -> Tensor:
    """Undo `_grouped`, without a copy."""
    rows = images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
    return rows.reshape(*rows.shape[:3], clients, channels).permute(3, 0, 1, 2, 4)


class _Forward(torch.autograd.Function):
    """A block of one client; under vmap, of all of them at once."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, block: Block, kernels: Kernels) -> tuple[Tensor, ...]:
        return tuple(leaf[0] for leaf in kernels.forward(x[None], weight[None], bias[None], block))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, weight, _, ctx.block, ctx.kernels = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(weight, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        wants_x = ctx.needs_input_grad[0]
        how = (ctx.block, ctx.kernels, wants_x)
        by_x, by_weight, by_bias = _Backward.apply(grad, *ctx.saved_tensors, *how)  # type: ignore[no-untyped-call]
        return by_x.movedim(-1, 1) if wants_x else None, by_weight, by_bias, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        stacks = [_stacked(leaf, axis) for leaf, axis in zip(inputs[:3], in_dims, strict=False)]
        pooled = inputs[4].forward(*stacks, inputs[3])
        # All clients read the same input when they are evaluated; it stays one.
        shared = in_dims[0] is None and len(pooled.laid) == 1
        return (*pooled[:2], pooled.laid[0] if shared else pooled.laid), (0, 0, None if shared else 0)


class _Backward(torch.autograd.Function):
    """The gradients of a block of one client; under vmap, of all of them at once. Not differentiable any further."""

    @staticmethod
    def forward(grad: Tensor, weight: Tensor, y: Tensor, winner: Tensor, laid: Tensor, *how: Any) -> tuple[Tensor, ...]:
        stacks = [leaf[None] for leaf in (grad, weight, y, winner, laid)]
        return tuple(leaf[0] for leaf in _run_backward(stacks, *how))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        stacks = [_stacked(leaf, axis) for leaf, axis in zip(inputs[:5], in_dims, strict=False)]
        for place in (0, 2, 3):
            stacks[place] = stacks[place].expand(info.batch_size, *stacks[place].shape[1:])
        return _run_backward(stacks, *inputs[5:]), (0, 0, 0)


def _run_backward(stacks: list[Tensor], block: Block, kernels: Kernels, wants_x: bool) -> tuple[Tensor, ...]:
    grad, weight, y, winner, laid = stacks
    found = kernels.backward(grad, weight, Pooled(y, winner, laid), block, wants_x=wants_x)
    # A function of this kind returns tensors only; this one is never looked at.
    return (found.bias if found.x is None else found.x), found.weight, found.bias


def _stacked(leaf: Tensor, axis: int | None) -> Tensor:
    """Put the clients first; what they share becomes a stack of one."""
    return leaf[None] if axis is None else leaf.movedim(axis, 0)


@final
class PooledConvolution(nn.Module):
    """A convolution with the activation and the pooling that follow it, under the convolution's own name.

    Args:
        convolution: whose parameters these are.
        block: what else there is to it.
        kernels: how it is computed.
    """

    def __init__(self, convolution: nn.Conv2d, block: Block, kernels: Kernels) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.block, self.kernels = block, kernels

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled output `[samples, outputs, height, width]`."""
        y: Tensor
        y, *_ = _Forward.apply(x, self.weight, self.bias, self.block, self.kernels)  # type: ignore[no-untyped-call]
        return y.movedim(-1, 1)


def fuse(network: nn.Module, kernels: Kernels, precision: Precision = "strict") -> nn.Module:
    """Return a copy of a network with every block it has in an `nn.Sequential` computed by `kernels`."""
    network = copied(network)
    for sequence in [part for part in network.modules() if type(part) is nn.Sequential]:
        for place in range(len(sequence) - 2):
            convolution, activation, pool = (sequence[place + i] for i in range(3))
            if isinstance(convolution, nn.Conv2d) and _is_block(convolution, activation, pool):
                slope = activation.negative_slope if isinstance(activation, nn.LeakyReLU) else 0.0
                block = Block(int(convolution.padding[0]), slope, precision)
                sequence[place] = PooledConvolution(convolution, block, kernels)
                sequence[place + 1] = sequence[place + 2] = nn.Identity()
    return network


def _is_block(convolution: nn.Module, activation: nn.Module, pool: nn.Module) -> bool:
    """Tell whether three layers are exactly what the kernels compute."""
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in (convolution, activation, pool)):
        return False
    bends = type(activation) is nn.ReLU or (type(activation) is nn.LeakyReLU and activation.negative_slope >= 0)
    return bends and _convolves_plainly(convolution) and _pools_by_two(pool)


def _convolves_plainly(layer: nn.Module) -> bool:
    if type(layer) is not nn.Conv2d or layer.bias is None or isinstance(layer.padding, str):
        return False
    square = layer.kernel_size[0] == layer.kernel_size[1] and layer.padding[0] == layer.padding[1]
    simple = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.groups == 1
    return square and simple and layer.padding_mode == "zeros" and layer.padding[0] < layer.kernel_size[0]


def _pools_by_two(layer: nn.Module) -> bool:
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return [edge if isinstance(edge, tuple) else (edge, edge) for edge in sizes] == [(2, 2), (2, 2), (0, 0), (1, 1)]
