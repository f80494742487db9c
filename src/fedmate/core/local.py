"""Local training: the verbs a method's `local_update` is written with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fedmate.core.data import Batch
from fedmate.core.execution import is_unmapped
from fedmate.core.layers import sample_context
from fedmate.core.model import Model
from fedmate.core.task import Adjustment
from fedmate.core.tree import Tree, leaves, select, tree_map, where

Objective: TypeAlias = Callable[[Tree, Batch], tuple[Tensor, Tree]]
"""`(params, batch) -> (loss, buffers)`: what a phase of local training minimises, and the buffers after the pass."""


def gradient(function: Callable[[Tree], tuple[Tensor, Tree]], variables: Tree) -> tuple[Tree, Tree]:
    """Differentiate the first output of `function` at `variables`; return the gradient and the second output."""
    if not any(True for _ in leaves(variables)):
        # All of it is frozen.
        return variables, function(variables)[1]
    if not is_unmapped():
        gradients, extra = torch.func.grad(function, has_aux=True)(variables)
        return gradients, extra
    points = tree_map(lambda t: t.detach().requires_grad_(), variables)
    with torch.enable_grad():
        value, extra = function(points)
    if not value.requires_grad:
        return tree_map(torch.zeros_like, variables), tree_map(lambda t: t.detach(), extra)
    found = iter(torch.autograd.grad(value, list(leaves(points)), materialize_grads=True))
    return tree_map(lambda _: next(found), points), tree_map(lambda t: t.detach(), extra)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum and weight decay, as a pure step."""

    learning_rate: float  # eta
    momentum: float = 0.0  # m in v <- m v + g
    weight_decay: float = 0.0  # added to every gradient, biases included, as g + weight_decay * parameter

    def init(self, variables: Tree) -> Tree:
        """Return the velocity v = 0 that each phase of each round starts from."""
        return tree_map(torch.zeros_like, variables)

    def step(self, variables: Tree, gradients: Tree, velocity: Tree) -> tuple[Tree, Tree]:
        """Return the variables and the velocity after one step."""
        tensors = (*leaves(variables), *leaves(gradients), *leaves(velocity))
        if not tensors:
            return variables, velocity
        # One operation for all leaves saves starting many; on a CPU that costs less than it takes to gather them.
        on_cpu = tensors[0].device.type == "cpu"
        moved = iter(self.move(_add_each, tensors) if on_cpu else move_at_once(self, tensors))
        return tree_map(lambda _: next(moved), variables), tree_map(lambda _: next(moved), velocity)

    def move(self, add: _Add, tensors: Tensors) -> Tensors:
        """Return all variables, then all velocities, after one step from variables, gradients and velocities."""
        third = len(tensors) // 3
        variables, velocity = tensors[:third], add(tensors[third : 2 * third], tensors[:third], self.weight_decay)
        if self.momentum:
            velocity = add(velocity, tensors[2 * third :], self.momentum)
        return (*add(variables, velocity, -self.learning_rate), *velocity)


Tensors: TypeAlias = tuple[Tensor, ...]
_Add: TypeAlias = Callable[[Tensors, Tensors, float], Tensors]


def _add_each(ones: Tensors, others: Tensors, scale: float) -> Tensors:
    return tuple(torch.add(one, other, alpha=scale) for one, other in zip(ones, others, strict=True))


def _add_all(ones: Tensors, others: Tensors, scale: float) -> Tensors:
    return tuple(torch._foreach_add(ones, others, alpha=scale))


class _Move(torch.autograd.Function):
    """A step of SGD, one operation for all leaves; vmap cannot map such operations, so it is told how."""

    @staticmethod
    def forward(optimiser: SGD, *tensors: Tensor) -> Tensors:
        return optimiser.move(_add_all, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: no gradient goes through a step."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], optimiser: SGD, *tensors: Tensor) -> tuple[Tensors, Any]:
        clients = info.batch_size
        stacks = (
            leaf.expand(clients, *leaf.shape) if axis is None else leaf.movedim(axis, 0)
            for leaf, axis in zip(tensors, in_dims[1:], strict=True)
        )
        moved = move_at_once(optimiser, tuple(stacks))
        return moved, (0,) * len(moved)


def move_at_once(optimiser: SGD, tensors: Tensors) -> Tensors:
    """Return what `optimiser.move` gives, with one operation for all leaves."""
    moved: Tensors = _Move.apply(optimiser, *tensors)  # type: ignore[no-untyped-call]
    return moved


Step: TypeAlias = Callable[[Tree, Batch], Tree]
"""`(state, batch) -> state`: one step of local training."""


def loop(step: Step, state: Tree, batches: Iterable[Batch]) -> Tree:
    """Carry `state` through `step` for each batch; a batch of padding alone leaves it as it was."""
    for batch in batches:
        with sample_context(batch):
            proposed = step(state, batch)
        # Whether a sample is real is often known beforehand, and choosing costs an operation for every leaf.
        state = proposed if batch.filled else where(batch.mask.any(), proposed, state)
    return state


class Optimiser(Protocol):
    """What `fit` takes its steps with: `SGD`, or another that is a pure step."""

    def init(self, variables: Tree, /) -> Tree:
        """Return the state before the first step."""

    def step(self, variables: Tree, gradients: Tree, state: Tree, /) -> tuple[Tree, Tree]:
        """Return the variables and the state after one step."""


def fit(
    objective: Objective, params: Tree, batches: Iterable[Batch], optimiser: Optimiser, trainable: tuple[str, ...]
) -> Tree:
    """Train the parts of `params` named in `trainable` and return all of them; the rest stays frozen.

    The optimiser starts afresh: momentum crosses neither rounds nor phases.
    """
    return fit_on(objective, params, optimiser.init(select(params, trainable)), batches, optimiser, trainable)[0]


def fit_on(
    objective: Objective,
    params: Tree,
    state: Tree,
    batches: Iterable[Batch],
    optimiser: Optimiser,
    trainable: tuple[str, ...],
) -> tuple[Tree, Tree]:
    """Do what `fit` does from a state of the optimiser, and return that after it, too.

    A client that keeps the state, at first `optimiser.init(select(params, trainable))`, goes on in its next round.
    """

    def step(before: Tree, batch: Batch) -> Tree:
        params = before["params"]
        variables = select(params, trainable)
        gradients, buffers = gradient(lambda v: objective({**params, **v}, batch), variables)
        variables, after = optimiser.step(variables, gradients, before["state"])
        return {"params": {**params, **variables, "buffers": buffers}, "state": after}

    trained = loop(step, {"params": params, "state": state}, batches)
    return trained["params"], trained["state"]


def supervised_loss(model: Model, adjustment: Adjustment | None = None) -> Objective:
    """Return the objective most methods start from: the task's loss, changed by a client's class shares."""

    def objective(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        z, buffers = model.features(params, batch.x, train=True)
        return model.loss(params, z, batch.y, batch.counted, adjustment), buffers

    return objective
