"""How much a client computes in a round, counted from shapes alone: on tensors without content, in a second."""

from __future__ import annotations

import torch

from fedmate.core import Batch, ClientData, Method, Tree
from fedmate.core.local import Step, steps_taken_by
from fedmate.core.shapes import FlopCounter, trace_update


def flops_of_update(method: Method, server: Tree, data: ClientData) -> int:
    """Return the floating-point operations of one local update: of its convolutions and matrix products.

    Args:
        method: what a client does.
        server: the server's state, of which shapes count.
        data: what a client holds, of which shapes count, and whether samples are varied in training.
    """
    counter = FlopCounter()
    with counter, steps_taken_by(_Once(counter)):
        trace_update(method, server, data)
    return counter.total


class _Once:
    """Takes the first step of each kind and counts the others as alike: what a step takes depends on shapes alone."""

    def __init__(self, counter: FlopCounter) -> None:
        self._counter = counter
        self._known: dict[tuple[Step, torch.Size], int] = {}

    def __call__(self, step: Step, state: Tree, batch: Batch) -> Tree:
        kind, before = (step, batch.x.shape), self._counter.total
        if kind in self._known:
            self._counter.total += self._known[kind]
            return state
        state = step(state, batch)
        self._known[kind] = self._counter.total - before
        return state
