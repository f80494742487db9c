"""Complementary fusion: who moves when, in which direction, and the loss of eq. 3 written out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from fedmate.components.classification_fusion import (
    FusedClassifier,
    Fusion,
    Knowledge,
    train_classifier,
)
from fedmate.components.classifier_integration import Reduction
from fedmate.components.discriminators import Kind, init_discriminator
from fedmate.core import (
    SGD,
    Batch,
    Model,
    Tree,
    client_data,
    fold,
    leaves,
    make_key,
    normal,
    uniform,
)

CLASSES, WIDTH = 4, 3
KNOWN = torch.tensor([True, True, True, False])
PRESENT = torch.tensor([True, False, True, True])
NAMES = ("prototype", "classifier")
BOTH_BCE: dict[str, Kind] = {"prototype": "bce", "classifier": "bce"}
OPTIMISER, RIVAL_OPTIMISER = SGD(0.1, 0.5, 0.01), SGD(0.05, 0.5, 0.01)
WITH_CRITIC: dict[str, Kind] = {"prototype": "bce", "classifier": "wgan_gp"}


def noise(seed: int, *shape: int) -> Tensor:
    return normal(make_key(seed), shape, torch.float64)


def make_model() -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(6)
        layers = [nn.Linear(5, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(0.5), nn.Linear(WIDTH, CLASSES)]
        return Model(nn.Sequential(*layers).double(), classifier="4")


@dataclass
class Scene:
    """A client in the middle of a run; fields can be changed before it trains."""

    model: Model = field(default_factory=make_model)
    known: Tensor = field(default_factory=KNOWN.clone)
    present: Tensor = field(default_factory=PRESENT.clone)
    weight: float | None = 0.6
    kappa: float = 0.75
    kinds: dict[str, Kind] = field(default_factory=BOTH_BCE.copy)
    reduction: Reduction = "mean"
    optimiser: SGD = OPTIMISER
    rival_optimiser: SGD = RIVAL_OPTIMISER
    steps: int = 3

    @property
    def params(self) -> Tree:
        return self.model.init_params()

    @property
    def discriminators(self) -> Tree:
        return {name: init_discriminator(CLASSES, fold(make_key(8), name), torch.float64) for name in NAMES}

    @property
    def knowledge(self) -> Knowledge:
        """Rows that do not exist are zeros, as the server and the client keep them."""
        classifier = {"weight": noise(4, CLASSES, WIDTH), "bias": noise(5, CLASSES)}
        prototypes = torch.where(self.known[:, None], noise(2, CLASSES, WIDTH), 0)
        own = torch.where(self.present[:, None], noise(3, CLASSES, WIDTH), 0)
        return Knowledge(prototypes, self.known, own, self.present, classifier)

    @property
    def fusion(self) -> Fusion:
        kappa = torch.tensor(self.kappa, dtype=torch.float64)
        return Fusion(self.weight, kappa, self.kinds, self.reduction, self.optimiser, self.rival_optimiser)

    @property
    def batches(self) -> list[Batch]:
        found = []
        for step in range(self.steps):
            data = client_data(noise(20 + step, 3, 5), torch.tensor([0, 2, 3]))
            z, _ = self.model.features(self.params, data.x)
            found.append(Batch(z, data.y, data.mask, torch.arange(3), make_key(40 + step)))
        return found

    def train(self, **changes: Any) -> FusedClassifier:
        for name, value in changes.items():
            setattr(self, name, value)
        with torch.no_grad():
            return train_classifier(
                self.model, self.params, self.discriminators, self.knowledge, self.fusion, self.batches
            )

    def rivals(self) -> Tree:
        """The discriminators as they are carried through the steps."""
        return {name: {"variables": d, "velocity": {}} for name, d in self.discriminators.items()}


# -------------------- a step by hand


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take a step with torch's own optimiser."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


@pytest.mark.parametrize("kinds", [BOTH_BCE, WITH_CRITIC])
def test_three_steps_by_hand(kinds: dict[str, Kind]) -> None:
    """Plain autograd and torch's SGD: per batch a step of D_pr, one of D_cl, then one of the classifier."""
    scene = Scene(kinds=kinds)
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
        for name, rival_loss in (("prototype", loss_pr), ("classifier", loss_cl)):
            descend(optimisers[name], rival_loss)

        fooled = cl(head(k.prototypes[known]))
        second = -fooled.sigmoid().log() if kinds["classifier"] == "bce" else -fooled
        adversarial = -pr(head(k.own[both])).sigmoid().log().mean() + second.mean()
        own = functional.cross_entropy(head(k.own[held]), held)
        loss = functional.cross_entropy(head(batch.x), batch.y) + 0.6 * (own + 0.75 * adversarial)
        descend(head_optimiser, loss)
        losses = [loss_pr.detach(), loss_cl.detach(), adversarial.detach()]

    found = scene.train()
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
    scene = Scene(known=nothing, kinds=kinds)
    found = scene.train()
    assert_close(found.discriminators, scene.discriminators, rtol=0, atol=0)
    assert_close(found.losses, torch.zeros(3, dtype=torch.float64), rtol=0, atol=0)
    without = Scene(known=nothing, kinds=kinds).train(weight=0.0)
    assert not torch.allclose(found.classifier["weight"], without.classifier["weight"])
