"""A CUDA graph for a CPU: records operations on plain tensors and runs exactly these again, on the same places.

Whatever Python decided while recording stays decided, and whatever Python computed outside of tensors stays as it was:
a round that replays right here has nothing in it that a graph would freeze.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedmate.backends.capture import Function, Tape
from fedmate.core import Tree


class Operation(NamedTuple):
    """An operation with the very tensors it read and made."""

    function: Any
    args: Any
    kwargs: Any
    made: list[Tensor]


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hears of every operation; functorch's transforms are gone by then."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read_args, read_kwargs = aliases((args, kwargs))
        made = func(*args, **kwargs)
        self.operations.append(Operation(func, read_args, read_kwargs, tensors(aliases(made))))
        return made


def aliases(tree: Any) -> Any:
    """Return the same places under other names: some operations change the shape of the very tensor they are given."""
    if isinstance(tree, Tensor):
        return tree.detach()
    if isinstance(tree, tuple | list):
        return [aliases(branch) for branch in tree]
    if isinstance(tree, dict):
        return {name: aliases(branch) for name, branch in tree.items()}
    return tree


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors among what an operation made: one, several, or lists of them."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for branch in tree for leaf in tensors(branch)] if isinstance(tree, tuple | list) else []


@final
class OperationTape(Tape):
    """Plays recorded operations on a CPU."""

    def record(self, function: Function, inputs: Tree) -> Tree:
        with Recording() as recording:
            outputs = function(inputs)
        self.operations = recording.operations
        return outputs

    def play(self) -> None:
        for function, args, kwargs, made in self.operations:
            again = tensors(function(*aliases(args), **aliases(kwargs)))
            for place, value in zip(made, again, strict=True):
                # A view, or what an operation in place returns, lies where it lay.
                if place.untyped_storage().data_ptr() != value.untyped_storage().data_ptr():
                    place.copy_(value)
