"""The least time that a round can take: the operations and bytes of a round over the measured peaks of a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.case import Case, make_method
from benchmarks.runner import wait_for
from fedmate.backends.precision import Precision, arithmetic

SECONDS = 0.3
"""The least time to look for each peak."""

CPU_SIZES, GPU_SIZES = (2048, 2**28), (8192, 2**30)
"""Rows of square matrices, and bytes of a copy: large enough that starting does not count."""


class Roofline(NamedTuple):
    """The peaks of a device.

    Attributes:
        operations_per_s: of products of large matrices, by precision.
        bytes_per_s: of a large copy, read and written together.
    """

    operations_per_s: dict[str, float]
    bytes_per_s: float

    def floor_ms(self, case: Case) -> float:
        """Return the least milliseconds of a round."""
        operations, moved = count_work(case)
        # The caches of a CPU hold a client's step, so that memory sets no limit there.
        moving = moved / self.bytes_per_s if case.device != "cpu" else 0.0
        return 1e3 * max(operations / self.operations_per_s[case.precision], moving)


def count_work(case: Case) -> tuple[int, int]:
    """Return the operations and bytes of the steps of a round that train extractors.

    Operations are those of convolutions and linear layers, forward and backward. Bytes have to cross the memory even if
    every layer is fused with what follows: its input is written once and read twice, the gradient of its input written
    and read, parameters and momentum read and written in each step.
    """
    model = make_method(case).setup.model
    layers = _layers(model.to_module(model.init_params()), torch.zeros(1, *case.input_shape, device=case.device))
    forward = sum(operations for operations, _ in layers)
    # Backward costs as much for the weights and as much for the inputs, but samples need no gradient.
    operations = (3 * forward - layers[0][0]) * case.training_samples
    number = 2 if case.precision == "bf16" else 4
    between = sum(inputs for _, inputs in layers[1:])
    moved = (5 * number * between + 2 * layers[0][1]) * case.training_samples
    return operations, moved + 4 * 4 * model.num_parameters * case.steps


def _layers(module: nn.Module, sample: Tensor) -> list[tuple[int, int]]:
    """Return the operations and input numbers of each layer with weights, for one sample."""
    found: list[tuple[int, int]] = []

    def count(layer: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
        # Each output is a sum of products with one row of the weights.
        found.append((2 * answer.numel() * layer.get_parameter("weight")[0].numel(), given[0].numel()))

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            layer.register_forward_hook(count)
    with torch.no_grad():
        module(sample)
    return found


def measure_roofline(device: torch.device) -> Roofline:
    """Measure a device's peaks; a second or two."""
    size, copied = CPU_SIZES if device.type == "cpu" else GPU_SIZES
    peaks: dict[str, float] = {}
    precisions: tuple[Precision, ...] = ("strict",) if device.type == "cpu" else ("strict", "tf32", "bf16")
    for precision in precisions:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        with arithmetic(precision, device):
            peaks[precision] = 2 * size**3 / _shortest(lambda a=left, b=right: torch.mm(a, b), device)  # type: ignore[misc]
    source, target = (torch.ones(copied, dtype=torch.uint8, device=device) for _ in range(2))
    return Roofline(peaks, 2 * copied / _shortest(lambda: target.copy_(source), device))


def _shortest(operation: Callable[[], object], device: torch.device) -> float:
    """Return the shortest of several times, in seconds."""
    operation()
    wait_for(device)
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < 5 or time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        operation()
        wait_for(device)
        taken.append(time.perf_counter() - start)
    return min(taken)
