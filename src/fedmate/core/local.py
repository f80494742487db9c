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


class Optimiser(Protocol):
    """What `fit` takes its steps with: `SGD`, or another that is a pure step."""

    def init(self, variables: Tree, /) -> Tree:
        """Return the state before the first step."""

    def step(self, variables: Tree, gradients: Tree, state: Tree, /) -> tuple[Tree, Tree]:
        """Return the variables and the state after one step."""


def clip(gradients: Tree, norm: float) -> Tree:
    """Shorten gradients to a norm that they share, where they are longer; 0 leaves them alone."""
    if not norm or not any(True for _ in leaves(gradients)):
        return gradients
    norms = torch.stack([torch.linalg.vector_norm(leaf) for leaf in leaves(gradients)])
    factor = (norm / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1)
    return tree_map(lambda leaf: leaf * factor, gradients)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum and weight decay, as a pure step."""

    learning_rate: float | Tensor  # eta; a tensor where it changes from round to round
    momentum: float = 0.0  # m in v <- m v + g
    weight_decay: float = 0.0  # added to every gradient, biases included, as g + weight_decay * parameter
    gradient_clip: float = 0.0  # the longest gradient, before weight decay; 0 is off

    def init(self, variables: Tree) -> Tree:
        """Return the velocity v = 0."""
        return tree_map(torch.zeros_like, variables)

    def step(self, variables: Tree, gradients: Tree, velocity: Tree) -> tuple[Tree, Tree]:
        """Return the variables and the velocity after one step."""
        gradients = clip(gradients, self.gradient_clip)
        tensors = (*leaves(variables), *leaves(gradients), *leaves(velocity))
        if not tensors:
            return variables, velocity
        # One operation for all leaves saves starting many; on a CPU that costs less than it takes to gather them.
        on_cpu = tensors[0].device.type == "cpu"
        moved = iter(self.move(tensors, _add_each) if on_cpu else move_at_once(self, tensors))
        return tree_map(lambda _: next(moved), variables), tree_map(lambda _: next(moved), velocity)

    def move(self, tensors: Tensors, add: _Add | None = None) -> Tensors:
        """Return all variables, then all velocities, after one step from variables, gradients and velocities."""
        third, add = len(tensors) // 3, add or _add_all
        variables, velocity = tensors[:third], add(tensors[third : 2 * third], tensors[:third], self.weight_decay)
        if self.momentum:
            velocity = add(velocity, tensors[2 * third :], self.momentum)
        return (*add(variables, velocity, -self.learning_rate), *velocity)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, ICLR 2015) and AdamW (Loshchilov and Hutter, ICLR 2019), as a pure step."""

    learning_rate: float | Tensor  # alpha; a tensor where it changes from round to round
    beta1: float = 0.9  # how much of the moving average of gradients a step keeps
    beta2: float = 0.999  # the same for their squares
    epsilon: float = 1e-8  # added to the root of the latter
    weight_decay: float = 0.0
    decoupled: bool = False  # weight decay beside the gradient, as AdamW has it, and not inside
    gradient_clip: float = 0.0  # as in `SGD`

    def init(self, variables: Tree) -> Tree:
        """Return moving averages of nothing."""
        nothing = next((leaf.new_zeros(()) for leaf in leaves(variables)), torch.zeros(()))
        zeros = tree_map(torch.zeros_like, variables)
        return {"mean": zeros, "square": zeros, "mean_share": nothing, "square_share": nothing}

    def step(self, variables: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return the variables and the state after one step."""
        gradients = clip(gradients, self.gradient_clip)
        # 1 - beta^t, which corrects the bias of averages that began at 0, is itself such an average, of ones.
        share = self.beta1 * state["mean_share"] + (1 - self.beta1)
        square_share = self.beta2 * state["square_share"] + (1 - self.beta2)
        tensors = [leaf for tree in (variables, gradients, state["mean"], state["square"]) for leaf in leaves(tree)]
        # With as many axes as the leaf, a stack of shares fits a stack of leaves.
        tensors += [s.reshape((1,) * leaf.dim()) for s in (share, square_share) for leaf in leaves(variables)]
        moved = iter(move_at_once(self, tuple(tensors)) if tensors else ())
        variables, mean, square = (tree_map(lambda _: next(moved), variables) for _ in range(3))
        return variables, {"mean": mean, "square": square, "mean_share": share, "square_share": square_share}

    def move(self, tensors: Tensors) -> Tensors:
        """Return all variables, all means and all squares after one step."""
        size = len(tensors) // 6
        columns = (tensors[i * size : (i + 1) * size] for i in range(6))
        variables, gradients, mean, square, share, square_share = columns
        if self.weight_decay and not self.decoupled:
            gradients = _add_all(gradients, variables, self.weight_decay)
        mean = _add_all(torch._foreach_mul(mean, self.beta1), gradients, 1 - self.beta1)
        kept = torch._foreach_mul(square, self.beta2)
        square = tuple(torch._foreach_addcmul(kept, gradients, gradients, 1 - self.beta2))
        roots = torch._foreach_add(torch._foreach_sqrt(torch._foreach_div(square, square_share)), self.epsilon)
        direction = tuple(torch._foreach_div(torch._foreach_div(mean, share), roots))
        if self.weight_decay and self.decoupled:
            direction = _add_all(direction, variables, self.weight_decay)
        return (*_add_all(variables, direction, -self.learning_rate), *mean, *square)


Tensors: TypeAlias = tuple[Tensor, ...]
_Scale: TypeAlias = float | Tensor
_Add: TypeAlias = Callable[[Tensors, Tensors, _Scale], Tensors]


def _add_each(ones: Tensors, others: Tensors, scale: _Scale) -> Tensors:
    if isinstance(scale, Tensor):
        return tuple(one + other * scale.to(one.dtype) for one, other in zip(ones, others, strict=True))
    return tuple(torch.add(one, other, alpha=scale) for one, other in zip(ones, others, strict=True))


def _add_all(ones: Tensors, others: Tensors, scale: _Scale) -> Tensors:
    if isinstance(scale, Tensor):
        return tuple(torch._foreach_add(ones, torch._foreach_mul(others, scale.to(others[0].dtype))))
    return tuple(torch._foreach_add(ones, others, alpha=scale))


class _Move(torch.autograd.Function):
    """A step, one operation for all leaves; vmap cannot map such operations, so it is told how."""

    @staticmethod
    def forward(optimiser: SGD | Adam, *tensors: Tensor) -> Tensors:
        return optimiser.move(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: no gradient goes through a step."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], optimiser: SGD | Adam, *tensors: Tensor
    ) -> tuple[Tensors, Any]:
        clients = info.batch_size
        stacks = (
            leaf.expand(clients, *leaf.shape) if axis is None else leaf.movedim(axis, 0)
            for leaf, axis in zip(tensors, in_dims[1:], strict=True)
        )
        moved = move_at_once(optimiser, tuple(stacks))
        return moved, (0,) * len(moved)


def move_at_once(optimiser: SGD | Adam, tensors: Tensors) -> Tensors:
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


def fit(
    objective: Objective, params: Tree, batches: Iterable[Batch], optimiser: Optimiser, trainable: tuple[str, ...]
) -> Tree:
    """Train the parts of `params` named in `trainable` and return all of them; the rest stays frozen.

    The optimiser starts afresh: momentum crosses neither rounds nor phases.
    """
    return fit_on(objective, params, None, batches, optimiser, trainable)[0]


def fit_on(
    objective: Objective,
    params: Tree,
    state: Tree | None,
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

    start = optimiser.init(select(params, trainable))
    if state is not None:
        # By name: what a client holds may list its tensors in another order.
        start = tree_map(lambda _, stored: stored, start, state)
    trained = loop(step, {"params": params, "state": start}, batches)
    return trained["params"], trained["state"]


def supervised_loss(model: Model, adjustment: Adjustment | None = None) -> Objective:
    """Return the objective most methods start from: the task's loss, changed by a client's class shares."""

    def objective(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        z, buffers = model.features(params, batch.x, train=True)
        return model.loss(params, z, batch.y, batch.counted, adjustment), buffers

    return objective
