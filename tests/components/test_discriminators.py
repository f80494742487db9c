"""Discriminators: their size, their initial values, and both ways of training them, against torch's own functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedmate.components.discriminators import (
    PENALTY,
    Rows,
    adversarial_losses,
    discriminator_loss,
    init_discriminator,
    score,
)
from fedmate.core import Tree, fold, leaves, make_key, normal, tree_map, uniform

CLASSES = 5
COUNTED = torch.tensor([True, False, True, True, False])


def discriminator(seed: int = 0) -> Tree:
    return init_discriminator(CLASSES, make_key(seed), torch.float64)


def rows(seed: int = 1, counted: Tensor = COUNTED) -> Rows:
    real, fake = (normal(make_key(seed + i), (CLASSES, CLASSES), torch.float64) for i in range(2))
    return Rows(1 + real, fake - 1, counted)


# -------------------- cross-entropy


def test_bce_is_finite_for_sure_answers() -> None:
    compared = rows()
    sure = Rows(compared.real * -1e6, compared.fake * 1e6, compared.counted)
    assert torch.isfinite(discriminator_loss(discriminator(), sure, "bce", make_key(0)))
    assert torch.isfinite(adversarial_losses(discriminator(), sure, "bce")).all()


# -------------------- the critic


def critic_by_hand(network: Tree, compared: Rows, key: Tensor) -> Tensor:
    """Gulrajani et al.: E[D(fake)] - E[D(real)] + 10 E[(|grad D(between)| - 1)^2], the gradient by autograd."""
    share = uniform(key, (CLASSES,), torch.float64)[:, None]
    between = (share * compared.real + (1 - share) * compared.fake).requires_grad_()
    (slopes,) = torch.autograd.grad(score(network, between).sum(), between, create_graph=True)
    fake, real = score(network, compared.fake), score(network, compared.real)
    penalty = (slopes.square().sum(1).sqrt() - 1).square()
    chosen = compared.counted
    return fake[chosen].mean() - real[chosen].mean() + PENALTY * penalty[chosen].mean()


@pytest.mark.parametrize("seed", range(5))
def test_the_critics_loss_and_its_gradient_are_those_of_autograd(seed: int) -> None:
    network = tree_map(lambda t: t.clone().requires_grad_(), discriminator(seed))
    key = fold(make_key(seed), "penalty")
    found = discriminator_loss(network, rows(seed + 7), "wgan_gp", key)
    expected = critic_by_hand(network, rows(seed + 7), key)
    assert_close(found, expected, rtol=0, atol=1e-10)
    ours, theirs = (
        torch.autograd.grad(loss, list(leaves(network)), materialize_grads=True) for loss in (found, expected)
    )
    assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert any((g != 0).any() for g in ours)
