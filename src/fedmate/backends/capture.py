"""Rounds as CUDA graphs: recorded once, replayed with one launch.

A round is thousands of small kernels, and starting them one by one from Python takes longer than running them. A graph
freezes everything but the content of its inputs, which is why a round is a function of trees of tensors that never
reads one back (`docs/concepts.md`). Rounds differ in what crosses and in whether they are evaluated, so there is one
graph for each such structure; one that comes up once only, as a few do, is not worth a graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from fedmate.core import Tree, leaves, tree_map

Function: TypeAlias = Callable[[Tree], Tree]
Record: TypeAlias = Callable[[Function, Tree], "Tape"]


class Tape(ABC):
    """A function recorded together with the places its inputs and outputs lie in."""

    def __init__(self, function: Function, inputs: Tree) -> None:
        self._inputs = tree_map(torch.clone, inputs)
        self._outputs = self.record(function, self._inputs)

    @abstractmethod
    def record(self, function: Function, inputs: Tree) -> Tree:
        """Run `function`, remember its operations and return its outputs."""

    @abstractmethod
    def play(self) -> None:
        """Run the operations again, on the same places."""

    def __call__(self, inputs: Tree) -> Tree:
        """Return what the recorded function makes of other inputs of the same shapes."""
        # By name: equal trees may list their parts in another order.
        pairs = list(leaves(tree_map(_fitting, self._inputs, inputs)))
        torch._foreach_copy_([place for place, _ in pairs], [new for _, new in pairs])
        self.play()
        # The next replay writes over the outputs.
        return tree_map(torch.clone, self._outputs)


def _fitting(place: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    if (place.shape, place.dtype) != (new.shape, new.dtype):
        raise ValueError(f"recorded with {place.dtype} {list(place.shape)}, played with {new.dtype} {list(new.shape)}")
    return place, new


@final
class GraphTape(Tape):
    """A CUDA graph; graphs share a `pool` of memory: one may write where another had its outputs, copied by then."""

    def __init__(self, function: Function, inputs: Tree, pool: Any) -> None:
        self._pool = pool
        super().__init__(function, inputs)

    def record(self, function: Function, inputs: Tree) -> Tree:
        """Capture; everything has run once before, so that kernels are compiled and libraries set up."""
        torch.cuda.empty_cache()
        self._graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self._graph, pool=self._pool):
                return function(inputs)
        except BaseException:
            # A capture that breaks off leaves torch's generator believing that it goes on.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise

    def play(self) -> None:
        """Replay the graph."""
        self._graph.replay()


@final
class Replays:
    """Runs a function again and again, and records it where that pays.

    Without `record` it never does; `say` hears about a function that cannot be recorded.
    """

    def __init__(self, record: Record | None, say: Callable[[str], None]) -> None:
        self._record, self._say = record, say
        self._met: set[Hashable] = set()
        self._tapes: dict[Hashable, Tape] = {}

    def run(self, structure: Hashable, function: Function, inputs: Tree) -> Tree:
        """Return `function(inputs)`.

        Args:
            structure: functions and inputs of equal structure do the same operations on the same shapes.
            function: reads nothing but its inputs and what never changes.
            inputs: a tree of tensors.
        """
        if self._record is None or structure not in self._met:
            self._met.add(structure)
            return function(inputs)
        if structure not in self._tapes:
            try:
                self._tapes[structure] = self._record(function, inputs)
            except Exception as error:
                # An operation that cannot be captured can raise anything: it runs, only slower.
                self._record = None
                reason = (str(error).strip() or repr(error)).splitlines()[0]
                self._say(f"rounds cannot be captured as CUDA graphs ({reason}): they run operation by operation.")
                return function(inputs)
        return self._tapes[structure](inputs)


def tape_for(device: torch.device) -> Record | None:
    """Return how rounds are recorded on a device, or `None` where they are not."""
    return partial(GraphTape, pool=torch.cuda.graph_pool_handle()) if device.type == "cuda" else None


def scalar(number: int, like: Tensor) -> Tensor:
    """Return an int64 number as a tensor on the device of `like`."""
    return torch.full((), number, dtype=torch.int64, device=like.device)
