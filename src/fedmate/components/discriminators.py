"""Discriminators: small networks that tell global logits from local ones."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedmate.components.classifier_integration import reduce_classes
from fedmate.core.random import fold, uniform
from fedmate.core.tree import Tree

HIDDEN = 32
"""Width of the hidden layer."""
PENALTY = 10.0
"""Weight of the gradient penalty of WGAN-GP (Gulrajani et al., 2017)."""

Kind = Literal["bce", "wgan_gp"]
"""Trained with cross-entropy, or as the critic of a Wasserstein GAN with gradient penalty."""


class Rows(NamedTuple):
    """Logits a discriminator compares."""

    real: Tensor  # of what is global, `[classes, classes]`
    fake: Tensor  # of what is local, `[classes, classes]`
    counted: Tensor  # which classes take part, `[classes]`


def init_discriminator(num_classes: int, key: Tensor, dtype: torch.dtype) -> Tree:
    """Return a network from logits through a hidden layer to one score, initialised as PyTorch does linear layers."""

    def layer(name: str, rows: int, columns: int) -> Tree:
        bound = 1 / math.sqrt(columns)
        weight = uniform(fold(key, name, "weight"), (rows, columns), dtype)
        bias = uniform(fold(key, name, "bias"), (rows,), dtype)
        return {"weight": (2 * weight - 1) * bound, "bias": (2 * bias - 1) * bound}

    return {"hidden": layer("hidden", HIDDEN, num_classes), "score": layer("score", 1, HIDDEN)}


def score(discriminator: Tree, logits: Tensor) -> Tensor:
    """Return how global each row of `logits` looks, `[rows]`; a sigmoid makes a probability of it."""
    hidden = functional.linear(logits, **discriminator["hidden"]).relu()
    return functional.linear(hidden, **discriminator["score"]).squeeze(-1)


def discriminator_loss(discriminator: Tree, rows: Rows, kind: Kind, key: Tensor) -> Tensor:
    """Return what a discriminator minimises: cross-entropy with global 1 and local 0, or the critic's loss."""
    real, fake = score(discriminator, rows.real), score(discriminator, rows.fake)
    if kind == "bce":
        return reduce_classes(functional.softplus(-real) + functional.softplus(fake), rows.counted, "mean")
    share = uniform(key, (rows.real.shape[0],), rows.real.dtype)[:, None]
    slope = _slope(discriminator, share * rows.real + (1 - share) * rows.fake)
    return reduce_classes(fake - real + PENALTY * (slope - 1).square(), rows.counted, "mean")


def adversarial_losses(discriminator: Tree, rows: Rows, kind: Kind) -> Tensor:
    """Return what the maker of `rows.fake` minimises, `[classes]`: -log D, or minus the critic's score."""
    found = score(discriminator, rows.fake)
    return functional.softplus(-found) if kind == "bce" else -found


def _slope(discriminator: Tree, logits: Tensor) -> Tensor:
    """Return the length of the score's gradient by its input, written out: a ReLU layer passes on where it is open."""
    open_units = functional.linear(logits, **discriminator["hidden"]) > 0
    through = open_units.to(logits.dtype) * discriminator["score"]["weight"][0]
    by_input: Tensor = through @ discriminator["hidden"]["weight"]
    # The floor keeps the root differentiable where the slope is 0.
    return (by_input.square().sum(-1) + 1e-12).sqrt()
