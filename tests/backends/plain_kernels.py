"""Blocks computed in the plainest way, one client after the other: what kernels are held against."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from fedmate.backends.blocks import Block, Gradients, Kernels, Pooled


@final
class PlainKernels(Kernels):
    """PyTorch's own operations; winners are numbered 0 to 3, row by row."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, block: Block) -> Pooled:
        """Convolve, take the largest of every four, bend what is negative."""
        clients = max(len(x), len(weight))
        x, weight, bias = (leaf.expand(clients, *leaf.shape[1:]) for leaf in (x, weight, bias))
        convolved = [functional.conv2d(*client, padding=block.padding) for client in zip(x, weight, bias, strict=True)]
        pooled, places = functional.max_pool2d(torch.stack(convolved).flatten(0, 1), 2, return_indices=True)
        width = convolved[0].shape[-1]
        winner = 2 * (places // width % 2) + places % width % 2
        y = functional.leaky_relu(pooled, block.slope) if block.slope else functional.relu(pooled)
        y, winner = (leaf.reshape(clients, -1, *leaf.shape[1:]).movedim(2, -1) for leaf in (y, winner))
        return Pooled(y, winner.to(torch.uint8), x)

    def backward(self, grad: Tensor, weight: Tensor, pooled: Pooled, block: Block, *, wants_x: bool) -> Gradients:
        """Send each gradient to the pixel that won, then back through the convolution."""
        y, winner, x = pooled
        weight = weight.expand(len(grad), *weight.shape[1:])
        grad = torch.where(y > 0, grad, block.slope * grad)
        corners = [torch.where(winner == corner, grad, 0) for corner in range(4)]
        # [.., height, width, outputs, 4] -> [.., outputs, height, 2, width, 2]: every pool gets its four pixels back.
        spread = torch.stack(corners, -1).reshape(*grad.shape, 2, 2).permute(0, 1, 4, 2, 5, 3, 6)
        spread = spread.flatten(5, 6).flatten(3, 4)
        rows, columns = (edge + 2 * block.padding - weight.shape[-1] + 1 for edge in x.shape[-2:])
        spread = functional.pad(spread, (0, columns - spread.shape[-1], 0, rows - spread.shape[-2]))
        found = [self._client_gradients(*client, block) for client in zip(x, weight, spread, strict=True)]
        by_x, by_weight, by_bias = (torch.stack(leaves) for leaves in zip(*found, strict=True))
        return Gradients(by_x.movedim(2, -1) if wants_x else None, by_weight, by_bias)

    def _client_gradients(self, x: Tensor, weight: Tensor, grad: Tensor, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        by_x = conv2d_input(x.shape, weight, grad, padding=block.padding)  # type: ignore[no-untyped-call]
        by_weight = conv2d_weight(x, weight.shape, grad, padding=block.padding)  # type: ignore[no-untyped-call]
        return by_x, by_weight, grad.sum((0, 2, 3))
