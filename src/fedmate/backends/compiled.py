"""Training steps through `torch.compile`: many small operations become few.

The step of a client runs inside vmap, where nothing can be compiled. So the operations that vmap makes of it, on plain
stacks, are recorded for each loop of steps, without computing anything; what the step reads besides its state and its
batch becomes an input, too; and the recorded program is compiled. Programs that read alike are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias, final

from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fedmate.core import Batch, Tree
from fedmate.core.layers import sample_context
from fedmate.core.local import Step

Run: TypeAlias = Callable[..., list[Tensor]]


class Program(NamedTuple):
    """A loop's step as a function of stacks.

    Attributes:
        run: takes the stacks of state and batch, then the constants.
        constants: what the step reads besides.
        spec: how its outputs make a state.
    """

    run: Run
    constants: list[Tensor]
    spec: TreeSpec


@final
class CompiledSteps:
    """Takes the steps of `core.loop` under vmap, each loop's through one compiled program.

    Args:
        compile: makes a program fast.
        say: hears about steps that cannot be compiled; they run as they are.
    """

    def __init__(self, compile: Callable[[GraphModule], Run], say: Callable[[str], None]) -> None:
        """Begin with nothing compiled."""
        self._compile, self._say = compile, say
        self._compiled: dict[str, Run] = {}
        self._step: Step | None = None
        self._programs: dict[Hashable, Program] = {}
        self._works = True

    def __call__(self, step: Step, state: Tree, batch: Batch) -> Tree:
        """Return `step(state, batch)`."""
        level = functorch.maybe_current_level()
        if level is None or not self._works:
            return step(state, batch)
        try:
            return self._take(step, state, batch, level)
        except Exception as error:
            # Whatever recording or compiling raises; if it is the step's own fault, it raises again.
            self._works = False
            reason = (str(error).strip() or repr(error)).splitlines()[0]
            self._say(f"steps cannot be compiled ({reason}): they run operation by operation.")
            return step(state, batch)

    def forget(self) -> None:
        """Let go of a loop's tensors when a round is over; what was compiled stays."""
        self._step, self._programs = None, {}

    def _take(self, step: Step, state: Tree, batch: Batch, level: int) -> Tree:
        leaves, spec = tree_flatten((state, batch))
        clients = next(
            functorch.get_unwrapped(leaf).shape[functorch.maybe_get_bdim(leaf)]
            for leaf in leaves
            if isinstance(leaf, Tensor) and functorch.is_batchedtensor(leaf)
        )
        plain = [_stacked(leaf, clients) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        stacks = [leaf for leaf in plain if isinstance(leaf, Tensor)]
        # What is no tensor, such as how far a batch is filled, is part of the program.
        signature = (spec, *(_describe(leaf) for leaf in plain))
        if step is not self._step:
            self._step, self._programs = step, {}
        if signature not in self._programs:
            self._programs[signature] = self._record(step, spec, plain, level)
        program = self._programs[signature]
        with temporarily_pop_interpreter_stack():
            made = program.run(*stacks, *program.constants)
        following: Tree = tree_unflatten([functorch._add_batch_dim(leaf, 0, level) for leaf in made], program.spec)
        return following

    def _record(self, step: Step, spec: TreeSpec, plain: list[Any], level: int) -> Program:
        specs: list[TreeSpec] = []

        def run(*stacks: Tensor) -> list[Tensor]:
            given = iter(stacks)
            leaves = [
                functorch._add_batch_dim(next(given), 0, level) if isinstance(leaf, Tensor) else leaf for leaf in plain
            ]
            state, batch = tree_unflatten(leaves, spec)
            with sample_context(batch):
                made, made_spec = tree_flatten(step(state, batch))
            specs.append(made_spec)
            return [_stacked(leaf, stacks[0].shape[0]) for leaf in made]

        stacks = [leaf for leaf in plain if isinstance(leaf, Tensor)]
        module = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*stacks)
        constants = _lift_constants(module)
        text = "\n".join([module.code, *map(str, map(_describe, [*stacks, *constants]))])
        if text not in self._compiled:
            self._compiled[text] = self._compile(module)
        return Program(self._compiled[text], constants, specs[-1])


def _stacked(leaf: Tensor, clients: int) -> Tensor:
    """Return the plain stack behind a client's tensor; what all share is repeated, without a copy."""
    if not functorch.is_batchedtensor(leaf):
        return leaf.expand(clients, *leaf.shape)
    stack: Tensor = functorch.get_unwrapped(leaf).movedim(functorch.maybe_get_bdim(leaf), 0)
    return stack


def _describe(leaf: object) -> Hashable:
    """Return what a program depends on."""
    return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf


def _lift_constants(module: GraphModule) -> list[Tensor]:
    """Turn the tensors that a recorded program holds into further inputs, and return them."""
    constants: list[Tensor] = []
    graph = module.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        constants.append(getattr(module, str(node.target)))
        with graph.inserting_after(last):
            last = graph.placeholder(f"constant_{len(constants)}")
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    # What is compiled outlives a round, and must not hold on to its tensors.
    for name in [name for name in vars(module) if name.startswith("_tensor_constant")]:
        delattr(module, name)
    module.recompile()
    return constants
