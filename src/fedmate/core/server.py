"""The server's step: clients' models are combined into one, towards which the server's model moves.

    uploads, weights --Aggregator--> mean
    model, mean, state --ServerOptimiser--> model', state'

Methods call `Server.update` for the parts of the model that are averaged, and so have every aggregator and optimiser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor

from fedmate.core.model import MODEL_PARTS
from fedmate.core.options import Limits, check_options, option
from fedmate.core.tree import Tree, flatten, select, tree_map, weighted_mean, where
from fedmate.errors import UserError

TRAINED = ("extractor", "classifier")
"""The parts of a model that an optimiser may move. Buffers never: a variance must not fall below zero."""


@dataclass(frozen=True, kw_only=True)
class Aggregator(ABC):
    """Combines what clients sent into one model. Fields are options."""

    citation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_options("server", type(self), vars(self))

    @abstractmethod
    def __call__(self, uploads: Tree, weights: Tensor) -> Tree:
        """Combine a stack.

        Args:
            uploads: leaves `[clients, ...]`; rows of weight 0 may hold anything.
            weights: `[clients]`, not negative. If all are 0, the answer is not used.
        """


@dataclass(frozen=True, kw_only=True)
class ServerOptimiser(ABC):
    """Moves the server's model towards what clients sent. Fields are options."""

    citation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_options("server", type(self), vars(self))

    def init(self, params: Tree) -> Tree:
        """Return the state before round 0, for parameters that move."""
        return {}

    @abstractmethod
    def step(self, model: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return the next model and state; the direction is `mean - model`."""


@final
@dataclass(frozen=True, kw_only=True)
class Mean(Aggregator):
    """The mean, weighted by clients' sizes."""

    def __call__(self, uploads: Tree, weights: Tensor) -> Tree:
        """Average; rows of weight 0 are left out."""
        return weighted_mean(uploads, weights)


@final
@dataclass(frozen=True, kw_only=True)
class ServerSGD(ServerOptimiser):
    """Gradient descent; by default the model becomes what clients sent, with momentum it is FedAvgM.

    With momentum it repeats a share of its last move: v <- momentum v + (mean - model), model <- model + rate v.
    """

    learning_rate: float = option(1.0, "step size of the server (eta)", Limits(above=0))
    momentum: float = option(0.0, "share of its last move that is repeated (beta)", Limits(at_least=0, below=1))

    def init(self, params: Tree) -> Tree:
        """Begin at rest."""
        return {"velocity": tree_map(torch.zeros_like, params)} if self.momentum else {}

    def step(self, model: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Move by the velocity."""
        if self.learning_rate == 1 and not self.momentum:
            # Not `model + (mean - model)`, which rounds.
            return mean, state
        velocity = tree_map(torch.sub, mean, model)
        if self.momentum:
            velocity = tree_map(lambda v, step: self.momentum * v + step, state["velocity"], velocity)
            state = {"velocity": velocity}
        return tree_map(lambda w, v: torch.add(w, v, alpha=self.learning_rate), model, velocity), state


@final
@dataclass(frozen=True)
class Server:
    """How the server combines what clients send: the `[server]` section."""

    aggregator: Aggregator = field(default_factory=Mean)
    optimiser: ServerOptimiser = field(default_factory=ServerSGD)

    def init(self, params: Tree, moving: Iterable[str] = TRAINED) -> Tree:
        """Return what the server's state holds besides its model: nothing, or by part what the optimiser remembers."""
        states = {part: self.optimiser.init(tensors) for part, tensors in select(params, moving).items()}
        return {"optimiser": states} if any(states.values()) else {}

    def update(
        self,
        server: Tree,
        uploads: Tree,
        valid: Tensor,
        *,
        moving: Iterable[str] = TRAINED,
        parts: Iterable[str] = MODEL_PARTS,
    ) -> Tree:
        """Return the server's state with its model moved to what clients sent.

        Parts that were not uploaded stay as they are; all parts do when no client is valid.

        Args:
            server: the state, with the parts and what `init` returned.
            uploads: a stack with `num_samples`, the weights.
            valid: `[clients]`, false for rows that must not count.
            moving: the parts that the optimiser moves; the others become what the aggregator returns.
            parts: what is aggregated.
        """
        uploaded = select(uploads, parts)
        if not uploaded:
            return server
        weights = uploads["num_samples"].masked_fill(~valid, 0)
        mean = self.aggregator(uploaded, weights)
        _check_shapes(self.aggregator, mean, select(server, uploaded))
        return self.move(server, mean, weights.sum() > 0, moving)

    def move(self, server: Tree, mean: Tree, counts: Tensor, moving: Iterable[str] = TRAINED) -> Tree:
        """Return the server's state moved to `mean` if the boolean `counts` says so, and otherwise as it was."""
        found, states = dict(mean), dict(server.get("optimiser", {}))
        for part in select(mean, moving):
            found[part], state = self.optimiser.step(server[part], mean[part], states.get(part, {}))
            _check_shapes(self.optimiser, found[part], server[part])
            _check_shapes(self.optimiser, state, states.get(part, {}), "state")
            if state:
                states[part] = state
        if states:
            found["optimiser"] = states
        return {**server, **where(counts, found, select(server, found))}


def _check_shapes(owner: object, found: Tree, wanted: Tree, what: str = "model") -> None:
    """Refuse what an aggregator or an optimiser of another package returns in another shape than the server's."""
    one, other = ({name: leaf.shape for name, leaf in flatten(tree).items()} for tree in (found, wanted))
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name):
            shapes = (list(shapes[name]) if name in shapes else "missing" for shapes in (one, other))
            raise UserError(
                "`{}` returned a {} whose `{}` is {}, not {}.".format(type(owner).__name__, what, name, *shapes)
            )
