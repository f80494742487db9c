"""Discriminators stay finite where they are sure."""

from __future__ import annotations

import torch

from fedmate.components.discriminators import Rows, adversarial_losses, discriminator_loss, init_discriminator
from fedmate.core import make_key, normal


def test_bce_is_finite_for_sure_answers() -> None:
    network = init_discriminator(5, make_key(0), torch.float64)
    real, fake = (normal(make_key(i), (5, 5), torch.float64) for i in (1, 2))
    sure = Rows(1e6 * real, 1e6 * fake, torch.tensor([True, False, True, True, False]))
    assert torch.isfinite(discriminator_loss(network, sure, "bce", make_key(0)))
    assert torch.isfinite(adversarial_losses(network, sure, "bce")).all()
