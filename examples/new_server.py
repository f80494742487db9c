"""An aggregator and a server optimiser from another package. docs/extend.md explains them."""
# ruff: noqa: D102 - the base classes say what each function is for

from dataclasses import dataclass
from typing import final

from torch import Tensor, sign, sub, zeros_like

from fedmate.core import Aggregator, Limits, ServerOptimiser, Tree, option, tree_map, weighted_mean


@final
@dataclass(frozen=True, kw_only=True)
class Tempered(Aggregator):
    """The mean with clients' sizes to a power as weights; 0 lets all weigh alike."""

    power: float = option(0.5, "power of the sizes; 1 is the mean", Limits(at_least=0))

    def __call__(self, uploads: Tree, weights: Tensor) -> Tree:
        return weighted_mean(uploads, (weights.double() ** self.power).masked_fill(weights == 0, 0))


@final
@dataclass(frozen=True, kw_only=True)
class Lion(ServerOptimiser):
    """Lion (Chen et al., 2023): all numbers move as far, in the direction of the moment and the latest move."""

    learning_rate: float = option(0.01, "step size of the server (eta)", Limits(above=0))
    beta1: float = option(0.9, "share of the moment in a step", Limits(at_least=0, below=1))
    beta2: float = option(0.99, "share of the moment that is kept", Limits(at_least=0, below=1))

    def init(self, params: Tree) -> Tree:
        return {"moment": tree_map(zeros_like, params)}

    def step(self, model: Tree, mean: Tree, state: Tree) -> tuple[Tree, Tree]:
        move, moment = tree_map(sub, mean, model), state["moment"]
        step = tree_map(lambda m, d: sign(self.beta1 * m + (1 - self.beta1) * d), moment, move)
        moment = tree_map(lambda m, d: self.beta2 * m + (1 - self.beta2) * d, moment, move)
        return tree_map(lambda w, s: w + self.learning_rate * s, model, step), {"moment": moment}
