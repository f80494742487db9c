"""What a machine can do at best, measured, and the work of a round: how near to that a round comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedmate.backends.base import one_thread
from fedmate.backends.precision import arithmetic
from fedmate.bench.case import Case, make_method
from fedmate.bench.measure import wait_for

SECONDS = 0.3
"""How long each peak is looked for, at least."""


CPU_SIZES = (2048, 1024, 2**28)
"""Rows of matrices for all threads and for one, and bytes of a copy: large enough that starting does not count."""

GPU_SIZES = (8192, 2**30)
"""Rows of matrices, and bytes of a copy."""


class Work(NamedTuple):
    """What a round has to do at least, whoever does it.

    Attributes:
        operations: floating-point operations of convolutions and linear layers, forward and backward, of the steps that
            train extractors. What else a method does is not counted.
        bytes: what has to cross the device's memory if every layer is one with what follows it up to the next: what
            enters a layer is written once and read twice, its gradient written and read, parameters and momentum are
            read and written in each step.
    """

    operations: int
    bytes: int


class Roofline(NamedTuple):
    """What a device can do at best.

    Attributes:
        operations_per_s: of products of large matrices, by precision; on a CPU also with `one_thread`.
        bytes_per_s: of a large copy, read and written together.
    """

    operations_per_s: dict[str, float]
    bytes_per_s: float

    def floor_ms(self, case: Case, work: Work) -> float | None:
        """Return the least milliseconds that a round can take, or `None` if that precision was not measured.

        A CPU's caches hold a client's step, so that its memory sets no limit here.
        """
        peak = self.operations_per_s.get(case.precision)
        if peak is None:
            return None
        moving = work.bytes / self.bytes_per_s if case.device != "cpu" else 0.0
        return 1e3 * max(work.operations / peak, moving)


def count_work(case: Case) -> Work:
    """Count what a round of a case has to do."""
    model = make_method(case).setup.model
    layers = _look(model.to_module(model.init_params()), torch.zeros(1, *case.input_shape, device=case.device))
    forward = sum(layer.operations for layer in layers)
    # Backward is as much again for the weights and as much again for the inputs, but nobody asks for the samples'.
    operations = (3 * forward - layers[0].operations) * case.training_samples
    number = 2 if case.precision == "bf16" else 4
    between = sum(layer.inputs for layer in layers[1:])
    moved = (5 * number * between + 2 * layers[0].inputs) * case.training_samples
    return Work(operations, moved + 4 * 4 * model.num_parameters * case.steps)


class _Layer(NamedTuple):
    operations: int
    inputs: int


def _look(module: nn.Module, sample: Tensor) -> list[_Layer]:
    """Return the layers with weights, in the order in which one sample passes them."""
    found: list[_Layer] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
        weight = layer.get_parameter("weight")
        # Each output is a sum of products with one row of the weights.
        found.append(_Layer(2 * answer.numel() * weight[0].numel(), given[0].numel()))

    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            layer.register_forward_hook(note)
    with torch.no_grad():
        module(sample)
    return found


def measure_roofline(device: torch.device) -> Roofline:
    """Measure a device's peaks; a second or two."""
    peaks: dict[str, float] = {}
    if device.type == "cuda":
        size, copied = GPU_SIZES
        with arithmetic("strict", device):
            peaks["strict"] = _multiply(size, torch.float32, device)
        with arithmetic("tf32", device):
            peaks["tf32"] = _multiply(size, torch.float32, device)
        peaks["bf16"] = _multiply(size, torch.bfloat16, device)
        return Roofline(peaks, _copy(copied, device))
    large, small, copied = CPU_SIZES
    peaks["strict"] = _multiply(large, torch.float32, device)
    with one_thread():
        peaks["one_thread"] = _multiply(small, torch.float32, device)
    return Roofline(peaks, _copy(copied, device))


def _multiply(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return the operations a second of the product of two square matrices."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _quickest(lambda: torch.mm(left, right), device)


def _copy(size: int, device: torch.device) -> float:
    """Return the bytes a second that a copy of `size` bytes reads and writes."""
    here, there = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / _quickest(lambda: there.copy_(here), device)


def _quickest(operation: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the quickest of several."""
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
