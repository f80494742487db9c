"""How much a client computes in a round, counted from shapes alone: on tensors without content, in a second."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmate.core import (
    Batch,
    ClientData,
    Method,
    Source,
    Tree,
    make_key,
    remembered_features,
    rows_of,
    select,
    tree_map,
)
from fedmate.core.flops import FlopCounter
from fedmate.core.local import Step, steps_taken_by

NOWHERE = torch.device("meta")
"""Where tensors have a shape and no content."""


def flops_of_update(method: Method, server: Tree, data: ClientData) -> int:
    """Return the floating-point operations of one local update: of its convolutions and matrix products.

    Args:
        method: what a client does.
        server: the server's state, of which shapes count.
        data: what a client holds, of which shapes count, and whether samples are varied in training.
    """
    key = make_key(0)
    client = tree_map(_emptied, method.init_client(method.setup.model.init_params(), key))
    everything = method.download(tree_map(_emptied, server), _emptied(torch.tensor(0)))
    download, counter = select(everything, method.wire(0).down), FlopCounter()
    # As in a round, no features are computed twice; the losses before and after are no part of the method.
    with counter, torch.no_grad(), remembered_features(), steps_taken_by(_Once(counter)):
        method.local_update(client, download, _without_content(data), _emptied(key))
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


def _without_content(data: ClientData) -> ClientData:
    source = data.source
    samples, mean, std = map(_emptied, (source.samples, source.mean, source.std))
    return rows_of(Source(samples, mean, std, source.augmentation), _emptied(data.rows), _emptied(data.y))


def _emptied(leaf: Tensor) -> Tensor:
    return leaf.to(NOWHERE)
