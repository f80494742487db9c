"""Following a computation by its shapes: a local update on tensors without content, and its operations counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedmate.core.data import ClientData, rows_of
from fedmate.core.execution import remembered_features
from fedmate.core.method import LocalResult, Method
from fedmate.core.random import make_key
from fedmate.core.source import Source
from fedmate.core.tree import Tree, select, tree_map

META = torch.device("meta")


def trace_update(method: Method, server: Tree, data: ClientData) -> LocalResult:
    """Follow one local update of the first round by its shapes; the result has shapes and types and no content."""
    key = make_key(0)
    params, frozen = method.setup.model.init_params(), method.setup.model.frozen
    traced_model = method.setup.model.starting_from({**params, **tree_map(_to_meta, frozen)})
    method = replace(method, setup=replace(method.setup, model=traced_model))
    client = tree_map(_to_meta, method.init_client(params, key))
    message = method.download(tree_map(_to_meta, server), _to_meta(torch.tensor(0)))
    samples, mean, std = map(_to_meta, data.source[:3])
    source = Source(samples, mean, std, data.source.augmentation)
    traced = rows_of(source, _to_meta(data.rows), _to_meta(data.y))
    # As in a round, no features are computed twice; the losses before and after are no part of the method.
    with torch.no_grad(), remembered_features():
        return method.local_update(client, select(message, method.wire(0).down), traced, _to_meta(key))


def _to_meta(leaf: Tensor) -> Tensor:
    return leaf.to(META)


def count_flops(function: Callable[[], object]) -> int:
    """Return how many operations the convolutions and matrix products of `function` take: 2 for a multiply-add.

    Those of gradients are counted, too, where `function` asks for some.
    """
    counter = FlopCounter()
    with counter, torch.no_grad():
        function()
    return counter.total


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts by torch's own formulas; torch's `FlopCounterMode` would load the compiler, which takes a second."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing here is compiled; to be skipped by the compiler it would be loaded.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result
