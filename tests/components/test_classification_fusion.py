"""Complementary fusion: who moves when, in which direction, and the loss of eq. 3 written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from fedmate.components.classification_fusion import FusedClassifier, Fusion, Knowledge, train_classifier
from fedmate.components.discriminators import Kind, init_discriminator
from fedmate.core import SGD, Batch, Model, fold, leaves, make_key, normal, uniform

CLASSES, WIDTH = 4, 3
KNOWN = torch.tensor([True, True, True, False])
PRESENT = torch.tensor([True, False, True, True])
BOTH_BCE: dict[str, Kind] = {"prototype": "bce", "classifier": "bce"}
WITH_CRITIC: dict[str, Kind] = {"prototype": "bce", "classifier": "wgan_gp"}


def noise(seed: int, *shape: int) -> Tensor:
    return normal(make_key(seed), shape, torch.float64)


class Scene:
    """A client in the middle of a run; rows that do not exist are zeros."""

    def __init__(self, known: Tensor = KNOWN) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(6)
            network = nn.Sequential(nn.Linear(5, WIDTH), nn.Linear(WIDTH, CLASSES)).double()
        self.model = Model(network, classifier="1")
        self.params = self.model.init_params()
        self.discriminators = {
            name: init_discriminator(CLASSES, fold(make_key(8), name), torch.float64) for name in BOTH_BCE
        }
        classifier = {"weight": noise(4, CLASSES, WIDTH), "bias": noise(5, CLASSES)}
        prototypes = torch.where(known[:, None], noise(2, CLASSES, WIDTH), 0)
        own = torch.where(PRESENT[:, None], noise(3, CLASSES, WIDTH), 0)
        self.knowledge = Knowledge(prototypes, known, own, PRESENT, classifier)
        rows, labels = torch.arange(3), torch.tensor([0, 2, 3])
        self.batches = [
            Batch(noise(20 + step, 3, WIDTH), labels, torch.ones(3, dtype=torch.bool), rows, make_key(40 + step))
            for step in range(3)
        ]

    def train(self, kinds: dict[str, Kind], weight: float = 0.6) -> FusedClassifier:
        kappa = torch.tensor(0.75, dtype=torch.float64)
        fusion = Fusion(weight, kappa, kinds, "mean", SGD(0.1, 0.5, 0.01), SGD(0.05, 0.5, 0.01))
        with torch.no_grad():
            return train_classifier(self.model, self.params, self.discriminators, self.knowledge, fusion, self.batches)


# -------------------- a step by hand


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take a step with torch's own optimiser."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


@pytest.mark.parametrize("kinds", [BOTH_BCE, WITH_CRITIC])
def test_three_steps_by_hand(kinds: dict[str, Kind]) -> None:
    """Plain autograd and torch's SGD: per batch a step of D_pr, one of D_cl, then one of the classifier."""
    scene = Scene()
    k, params = scene.knowledge, scene.params
    head = nn.Linear(WIDTH, CLASSES).double()
    head.load_state_dict(params["classifier"])
    nets = {}
    for name, tree in scene.discriminators.items():
        nets[name] = nn.Sequential(nn.Linear(CLASSES, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0)).double()
        layers = {"0": tree["hidden"], "2": tree["score"]}
        nets[name].load_state_dict({f"{i}.{n}": t for i, layer in layers.items() for n, t in layer.items()})
    optimisers = {name: torch.optim.SGD(net.parameters(), 0.05, 0.5, weight_decay=0.01) for name, net in nets.items()}
    head_optimiser = torch.optim.SGD(head.parameters(), 0.1, 0.5, weight_decay=0.01)
    both, known, held = [0, 2], [0, 1, 2], torch.tensor([0, 2, 3])
    by_global = functional.linear(k.prototypes, **k.classifier)
    bce = functional.binary_cross_entropy_with_logits
    losses = []
    for batch in scene.batches:
        with torch.no_grad():
            on_global, on_own = head(k.prototypes), head(k.own)
        pr = nets["prototype"]
        real, fake = pr(on_global[both]), pr(on_own[both])
        loss_pr = bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))
        cl = nets["classifier"]
        real, fake = cl(by_global[known]), cl(on_global[known])
        if kinds["classifier"] == "bce":
            loss_cl = bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))
        else:
            share = uniform(fold(batch.key, "penalty"), (CLASSES,), torch.float64)[known, None]
            between = (share * by_global[known] + (1 - share) * on_global[known]).requires_grad_()
            (slopes,) = torch.autograd.grad(cl(between).sum(), between, create_graph=True)
            loss_cl = fake.mean() - real.mean() + 10 * ((slopes.norm(dim=1) - 1) ** 2).mean()
        for name, its_loss in (("prototype", loss_pr), ("classifier", loss_cl)):
            descend(optimisers[name], its_loss)

        fooled = cl(head(k.prototypes[known]))
        second = -fooled.sigmoid().log() if kinds["classifier"] == "bce" else -fooled
        adversarial = -pr(head(k.own[both])).sigmoid().log().mean() + second.mean()
        own = functional.cross_entropy(head(k.own[held]), held)
        loss = functional.cross_entropy(head(batch.x), batch.y) + 0.6 * (own + 0.75 * adversarial)
        descend(head_optimiser, loss)
        losses = [loss_pr.detach(), loss_cl.detach(), adversarial.detach()]

    found = scene.train(kinds)
    assert_close(found.classifier, {n: p.detach() for n, p in head.named_parameters()}, rtol=0, atol=1e-10)
    for name, net in nets.items():
        trained = [p.detach() for p in net.parameters()]
        assert_close(list(leaves(found.discriminators[name])), trained, rtol=0, atol=1e-10)
    assert_close(found.losses, torch.stack(losses), rtol=0, atol=1e-10)


# -------------------- who moves, and where to


@pytest.mark.parametrize("kinds", [BOTH_BCE, WITH_CRITIC])
def test_discriminators_rest_while_nothing_is_known(kinds: dict[str, Kind]) -> None:
    """Weight decay alone must not move them; the classifier still learns its own prototypes."""
    nothing = torch.zeros(CLASSES, dtype=torch.bool)
    scene = Scene(nothing)
    found = scene.train(kinds)
    assert_close(found.discriminators, scene.discriminators, rtol=0, atol=0)
    assert_close(found.losses, torch.zeros(3, dtype=torch.float64), rtol=0, atol=0)
    without = scene.train(kinds, weight=0.0)
    assert not torch.allclose(found.classifier["weight"], without.classifier["weight"])
