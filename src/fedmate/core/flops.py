"""Counting the floating-point operations of a network, without the weight of torch's own counter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


def count_flops(function: Callable[[], object]) -> int:
    """Return how many operations the convolutions and matrix products of `function` take: 2 for a multiply-add.

    Those of gradients are counted, too, where `function` asks for some.
    """
    counter = FlopCounter()
    with counter, torch.no_grad():
        function()
    return counter.total


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at the shapes of what is computed inside its block; `total` is what that takes."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing here is compiled; to be skipped by the compiler it would be loaded, which takes over a second.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = func.overloadpacket
        if operation in (aten.mm, aten.bmm):
            self.total += _product(args[0], args[1])
        elif operation in (aten.addmm, aten.baddbmm):
            self.total += _product(args[1], args[2])
        elif operation is aten.convolution:
            self.total += _convolution(args[0], args[1], result, transposed=args[6])
        elif operation is aten.convolution_backward:
            # Input and weight, where their gradient is asked for, each take what forward took; a bias takes sums alone.
            output, x, weight, wanted = args[0], args[1], args[2], args[10]
            self.total += (wanted[0] + wanted[1]) * _convolution(x, weight, output, transposed=args[7])
        return result


def _convolution(x: Tensor, weight: Tensor, output: Tensor, *, transposed: bool) -> int:
    """Each weight meets each position: of the output, or of the input where the convolution is transposed."""
    positions = (x if transposed else output).shape[2:]
    return 2 * x.shape[0] * math.prod(positions) * weight.numel()


def _product(left: Tensor, right: Tensor) -> int:
    return 2 * left.numel() * right.shape[-1]
