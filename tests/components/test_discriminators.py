"""Discriminators: their size, their initial values, and both ways of training them, against torch's own functions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from fedmate.components.discriminators import (
    HIDDEN,
    PENALTY,
    Kind,
    Rows,
    adversarial_losses,
    discriminator_loss,
    init_discriminator,
    score,
)
from fedmate.core import Tree, all_finite, fold, leaves, make_key, normal, tree_map, uniform

CLASSES = 5
COUNTED = torch.tensor([True, False, True, True, False])


def discriminator(seed: int = 0) -> Tree:
    return init_discriminator(CLASSES, make_key(seed), torch.float64)


def rows(seed: int = 1, counted: Tensor = COUNTED) -> Rows:
    real, fake = (normal(make_key(seed + i), (CLASSES, CLASSES), torch.float64) for i in range(2))
    return Rows(1 + real, fake - 1, counted)


def as_module(tree: Tree) -> nn.Sequential:
    """The same network out of torch's layers."""
    hidden, last = (nn.Linear(*layer["weight"].shape[::-1]).double() for layer in tree.values())
    module = nn.Sequential(hidden, nn.ReLU(), last, nn.Flatten(0))
    module.load_state_dict(
        {f"{i}.{n}": t for i, layer in zip((0, 2), tree.values(), strict=True) for n, t in layer.items()}
    )
    return module


# -------------------- the network


@pytest.mark.parametrize(("classes", "parameters"), [(10, 385), (62, 2049), (100, 3265)])
def test_number_of_parameters(classes: int, parameters: int) -> None:
    assert sum(leaf.numel() for leaf in leaves(init_discriminator(classes, make_key(0), torch.float32))) == parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_initial_values_fill_the_range_of_a_linear_layer(dtype: torch.dtype) -> None:
    """torch draws weights and biases evenly from +-1/sqrt(inputs): mean 0, spread bound/sqrt 3."""
    classes = 100
    network = init_discriminator(classes, make_key(4), dtype)
    for name, inputs in (("hidden", classes), ("score", HIDDEN)):
        bound = 1 / math.sqrt(inputs)
        for tensor in network[name].values():
            assert tensor.dtype == dtype
            assert (tensor.abs() <= bound).all()
    weights = network["hidden"]["weight"]
    bound = 1 / math.sqrt(classes)
    assert weights.min() < -0.99 * bound
    assert weights.max() > 0.99 * bound
    assert abs(weights.mean()) < 0.03 * bound
    assert float(weights.std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reference = nn.Linear(classes, HIDDEN).weight.detach()
    assert float(weights.std()) == pytest.approx(float(reference.std()), rel=0.05)
    assert float(weights.abs().max()) == pytest.approx(float(reference.abs().max()), rel=0.01)


def test_every_tensor_is_drawn_by_itself_and_by_the_key() -> None:
    first, again, other = discriminator(0), discriminator(0), discriminator(1)
    assert_close(first, again, rtol=0, atol=0)
    for one, two in zip(leaves(first), leaves(other), strict=True):
        assert not torch.equal(one, two)
    hidden = first["hidden"]
    assert not torch.equal(hidden["weight"].flatten()[:HIDDEN], hidden["bias"])
    assert not torch.allclose(hidden["weight"][0, :1] * math.sqrt(CLASSES), first["score"]["weight"][0, :1] * 32**0.5)


def test_score_is_a_perceptron_with_one_hidden_layer() -> None:
    network, logits = discriminator(), rows().real
    assert_close(score(network, logits), as_module(network)(logits).detach())


# -------------------- cross-entropy


def test_bce_is_torchs_with_global_1_and_local_0() -> None:
    """Each class adds the loss of its global row and that of its local row."""
    network, compared = discriminator(), rows()
    real, fake = (score(network, logits)[COUNTED] for logits in (compared.real, compared.fake))
    expected = functional.binary_cross_entropy_with_logits(
        torch.cat([real, fake]), torch.tensor([1.0] * 3 + [0.0] * 3, dtype=torch.float64), reduction="sum"
    )
    assert_close(discriminator_loss(network, compared, "bce", make_key(0)), expected / 3)


def test_adversarial_bce_calls_local_global() -> None:
    network, compared = discriminator(), rows()
    fake = score(network, compared.fake)
    expected = functional.binary_cross_entropy_with_logits(fake, torch.ones_like(fake), reduction="none")
    assert_close(adversarial_losses(network, compared, "bce"), expected)
    assert_close(adversarial_losses(network, compared, "bce"), -fake.sigmoid().log())


@pytest.mark.parametrize("kind", ["bce", "wgan_gp"])
def test_adversarial_losses_know_nothing_of_the_global_rows(kind: Kind) -> None:
    compared = rows()
    ours = adversarial_losses(discriminator(), compared, kind)
    assert_close(adversarial_losses(discriminator(), compared._replace(real=compared.real * 7), kind), ours)
    assert not torch.allclose(adversarial_losses(discriminator(), compared._replace(fake=compared.real), kind), ours)


def test_bce_is_finite_for_sure_answers() -> None:
    compared = rows()
    sure = Rows(compared.real * -1e6, compared.fake * 1e6, compared.counted)
    assert torch.isfinite(discriminator_loss(discriminator(), sure, "bce", make_key(0)))
    assert torch.isfinite(adversarial_losses(discriminator(), sure, "bce")).all()


# -------------------- the critic


def test_adversarial_wgan_loss_is_minus_the_score() -> None:
    assert_close(adversarial_losses(discriminator(), rows(), "wgan_gp"), -score(discriminator(), rows().fake))


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


def test_the_penalty_is_10_and_its_points_depend_on_the_key() -> None:
    """With closed units the score does not depend on its input: slope 0, penalty 10."""
    shut = discriminator()
    shut["hidden"] = {"weight": shut["hidden"]["weight"], "bias": torch.full((HIDDEN,), -1e3, dtype=torch.float64)}
    points = tree_map(lambda t: t.clone().requires_grad_(), shut)
    loss = discriminator_loss(points, rows(), "wgan_gp", make_key(0))
    assert float(loss.detach()) == pytest.approx(10, abs=1e-4)
    gradients = torch.autograd.grad(loss, list(leaves(points)), materialize_grads=True)
    assert all(torch.isfinite(g).all() for g in gradients)
    wild = Rows(rows().real * 5, rows().fake * 5, torch.ones(CLASSES, dtype=torch.bool))
    losses = {float(discriminator_loss(discriminator(), wild, "wgan_gp", make_key(seed))) for seed in range(4)}
    assert len(losses) > 1


# -------------------- who is compared


@pytest.mark.parametrize("kind", ["bce", "wgan_gp"])
def test_classes_that_are_not_counted_do_not_matter(kind: Kind) -> None:
    compared = rows()
    before = discriminator_loss(discriminator(), compared, kind, make_key(0))
    real, fake = (torch.where(COUNTED[:, None], logits, 55.0) for logits in compared[:2])
    after = discriminator_loss(discriminator(), Rows(real, fake, COUNTED), kind, make_key(0))
    assert_close(after, before, rtol=0, atol=0)
    nothing = rows(counted=torch.zeros(CLASSES, dtype=torch.bool))
    assert discriminator_loss(discriminator(), nothing, kind, make_key(0)) == 0


@pytest.mark.parametrize("kind", ["bce", "wgan_gp"])
def test_training_a_discriminator_tells_global_from_local(kind: Kind) -> None:
    network, compared = discriminator(), rows()

    def loss(variables: Tree) -> Tensor:
        return discriminator_loss(variables, compared, kind, make_key(0))

    for _ in range(200):
        network = tree_map(lambda p, g: p - 0.02 * g, network, torch.func.grad(loss)(network))
    assert all_finite(network)
    assert (score(network, compared.real)[COUNTED] > score(network, compared.fake)[COUNTED]).all()
    if kind == "bce":
        assert (score(network, compared.real)[COUNTED] > 0).all()
        assert (score(network, compared.fake)[COUNTED] < 0).all()
