"""Adam as a pure step (Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015)."""

from __future__ import annotations

from dataclasses import dataclass

from fedmate.core.tree import Tree, leaves, tree_map


@dataclass(frozen=True)
class Adam:
    """Adam without weight decay."""

    learning_rate: float  # alpha
    mean_decay: float = 0.9  # beta_1, how much of the moving average of gradients a step keeps
    square_decay: float = 0.999  # beta_2, the same for their squares
    epsilon: float = 1e-8  # added to the root of the latter

    def init(self, variables: Tree) -> Tree:
        """Return the state to start from: moving averages of nothing."""
        nothing = next(leaves(variables)).new_zeros(())
        return {
            "mean": tree_map(lambda leaf: leaf.new_zeros(leaf.shape), variables),
            "square": tree_map(lambda leaf: leaf.new_zeros(leaf.shape), variables),
            "mean_share": nothing,
            "square_share": nothing,
        }

    def step(self, variables: Tree, gradients: Tree, state: Tree) -> tuple[Tree, Tree]:
        """Return the variables and the state after one step."""
        keep, keep_square, rate = self.mean_decay, self.square_decay, self.learning_rate
        mean = tree_map(lambda m, g: keep * m + (1 - keep) * g, state["mean"], gradients)
        square = tree_map(lambda s, g: keep_square * s + (1 - keep_square) * g * g, state["square"], gradients)
        # 1 - beta^t, which corrects the bias of averages that began at 0, is itself such an average, of ones.
        share = keep * state["mean_share"] + (1 - keep)
        square_share = keep_square * state["square_share"] + (1 - keep_square)
        moved = tree_map(
            lambda v, m, s: v - rate * (m / share) / ((s / square_share).sqrt() + self.epsilon), variables, mean, square
        )
        return moved, {"mean": mean, "square": square, "mean_share": share, "square_share": square_share}
