"""Optimisers of the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan, "Adaptive Federated Optimization", ICLR 2021. With
the direction d = mean - model the adaptive ones keep m <- beta1 m + (1 - beta1) d and a second moment v, and move the
model by rate * m / (sqrt(v) + tau). As in the paper, v starts at tau^2 and no moment is corrected for its start.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedmate.core import Limits, Tree, option, tree_map
from fedmate.core.server import ServerOptimiser

SHARE = Limits(at_least=0, below=1)


@final
@dataclass(frozen=True, kw_only=True)
class Nesterov(ServerOptimiser):
    """Gradient descent with Nesterov's momentum: the move looks one step ahead."""

    learning_rate: float = option(1.0, "step size of the server (eta)", Limits(above=0))
    momentum: float = option(0.9, "share of its last move that is repeated (beta)", SHARE)

    def init(self, params: Tree) -> Tree:
        """Begin at rest."""
        return {"velocity": tree_map(torch.zeros_like, params)}

    def step(self, model: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return v <- beta v + d, model + rate (d + beta v)."""
        direction = tree_map(torch.sub, mean, model)
        velocity = tree_map(lambda v, d: self.momentum * v + d, state["velocity"], direction)
        moved = tree_map(lambda w, d, v: w + self.learning_rate * (d + self.momentum * v), model, direction, velocity)
        return moved, {"velocity": velocity}


@dataclass(frozen=True, kw_only=True)
class Adaptive(ServerOptimiser):
    """An optimiser whose step is divided by the size of earlier ones, number by number."""

    citation: ClassVar[str] = "fedopt2021"

    learning_rate: float = option(0.1, "step size of the server (eta)", Limits(above=0))
    beta1: float = option(0.9, "share of the first moment that is kept", SHARE)
    tau: float = option(1e-3, "added to the root of the second moment: the larger, the less adaptive", Limits(above=0))

    def init(self, params: Tree) -> Tree:
        """Begin with m = 0 and v = tau^2."""
        second = tree_map(lambda leaf: torch.full_like(leaf, self.tau**2), params)
        return {"first": tree_map(torch.zeros_like, params), "second": second}

    def step(self, model: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Move by the first moment, divided by the root of the second."""
        direction = tree_map(torch.sub, mean, model)
        first = tree_map(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, state["first"], direction)
        second = tree_map(lambda v, d: self.second(v, d.square()), state["second"], direction)
        moved = tree_map(lambda w, m, v: w + self.learning_rate * m / (v.sqrt() + self.tau), model, first, second)
        return moved, {"first": first, "second": second}

    @abstractmethod
    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the next second moment, given the squared direction."""


@final
@dataclass(frozen=True, kw_only=True)
class Adagrad(Adaptive):
    """FedAdagrad: steps shrink as squared moves add up."""

    beta1: float = option(0.0, "share of the first moment that is kept", SHARE)

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return v + d^2."""
        return v + squared


@final
@dataclass(frozen=True, kw_only=True)
class Adam(Adaptive):
    """FedAdam: the second moment is a moving average."""

    beta2: float = option(0.99, "share of the second moment that is kept", SHARE)

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return beta2 v + (1 - beta2) d^2."""
        return self.beta2 * v + (1 - self.beta2) * squared


@final
@dataclass(frozen=True, kw_only=True)
class Yogi(Adaptive):
    """FedYogi: the second moment shrinks in small steps."""

    beta2: float = option(0.99, "how slowly the second moment moves", SHARE)

    def second(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return v - (1 - beta2) d^2 sign(v - d^2)."""
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)
