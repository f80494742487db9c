"""FedMate at its defaults as a plain PyTorch loop, in the same way as `plain_loop`; the server is the package's own."""

from __future__ import annotations

import copy
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.baselines.plain_loop import (
    Held,
    Network,
    PlainLoop,
    copy_into,
    freeze,
    optimiser,
    take_apart,
    take_step,
)
from benchmarks.case import Case, make_randomness
from fedmate.components.discriminators import HIDDEN
from fedmate.core import class_means, fold, stack
from fedmate.methods.fedmate import FedMate


class Member(NamedTuple):
    """The state of a client: its network and its discriminators."""

    network: Network
    prototype_critic: nn.Module
    classifier_critic: nn.Module


class Prototypes(NamedTuple):
    """The global and local prototypes of a client in one round.

    Classes are indices, computed once: selecting rows by a mask would make a GPU wait in every step.

    Attributes:
        prototypes: the global ones, of all classes.
        known, is_known: the classes with a global prototype, as indices and as a mask.
        own, present: the client's prototypes, of all classes, and the classes it holds.
        shared: classes that it holds and that have a global prototype.
        teacher: the logits of the global classifier for the known prototypes.
        kappa: the weight of the adversarial loss.
    """

    prototypes: Tensor
    known: Tensor
    is_known: Tensor
    own: Tensor
    present: Tensor
    shared: Tensor
    teacher: Tensor
    kappa: float


@final
class PlainFedMate(PlainLoop):
    """FedMate, at its defaults."""

    def __init__(self, case: Case, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(case, dtype)
        assert isinstance(self.method, FedMate)
        self.fedmate = self.method
        network, key = take_apart(self.setup), make_randomness(case)
        self.key = key
        self.members = [self._join(network, fold(key, "client", i)) for i in range(case.clients)]
        self.global_classifier = copy.deepcopy(network.classifier)
        self.server = self.method.init_server(self.setup.model.init_params(), case.clients, key)
        self.everyone = torch.arange(case.clients, device=self.device)

    def loop(self, number: int) -> None:
        """Train one client after the other, then aggregate."""
        wire, kappa = self.method.wire(number), 1 - number / self.setup.rounds
        copy_into(list(self.global_classifier.parameters()), list(self.server["classifier"].values()))
        uploads = []
        for held, member in zip(self.clients, self.members, strict=True):
            if "extractor" in wire.down:
                copy_into(list(member.network.extractor.parameters()), list(self.server["extractor"].values()))
            target = self._receive(held, member, kappa)
            self._train_classifier(held, member, target)
            self._train_extractor(held, member, target)
            uploads.append(self._upload(held, member, "extractor" in wire.up))
        valid = torch.ones(len(uploads), dtype=torch.bool, device=self.device)
        with torch.no_grad():
            self.server = self.method.aggregate(self.server, stack(uploads), self.everyone, valid, self.key)

    def _join(self, network: Network, key: Tensor) -> Member:
        """Return a client with discriminators that start as the package's own do."""
        client = self.method.init_client(self.setup.model.init_params(), key)
        critics = []
        for name in ("prototype", "classifier"):
            start = client["discriminators"][name]
            critic = nn.Sequential(nn.Linear(self.case.classes, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
            critic = critic.to(self.device, start["hidden"]["weight"].dtype)
            copy_into(list(critic.parameters()), [*start["hidden"].values(), *start["score"].values()])
            critics.append(critic)
        return Member(copy.deepcopy(network), *critics)

    def _prototypes(self, held: Held, extractor: nn.Module) -> tuple[Tensor, Tensor]:
        """Return a client's prototypes and the number of samples of each."""
        extractor.eval()
        with torch.no_grad():
            features = extractor(held.read()).float() if self.case.precision == "bf16" else extractor(held.read())
        extractor.train()
        return class_means(features, held.y, torch.ones_like(held.y, dtype=torch.bool), self.case.classes)

    def _receive(self, held: Held, member: Member, kappa: float) -> Prototypes:
        own, counts = self._prototypes(held, member.network.extractor)
        prototypes, is_known, is_present = self.server["prototypes"], self.server["known"], counts > 0
        known, present, shared = (which.nonzero().flatten() for which in (is_known, is_present, is_known & is_present))
        with torch.no_grad():
            teacher = self.global_classifier(prototypes[known])
        return Prototypes(prototypes, known, is_known, own, present, shared, teacher, kappa)

    def _train_classifier(self, held: Held, member: Member, target: Prototypes) -> None:
        """Train both discriminators and the classifier in turn, the extractor frozen."""
        method, setup, (extractor, classifier) = self.fedmate, self.setup, member.network
        steps = optimiser(list(classifier.parameters()), setup, method.classifier_learning_rate)
        critics = [
            optimiser(list(critic.parameters()), setup, method.discriminator_learning_rate)
            for critic in (member.prototype_critic, member.classifier_critic)
        ]
        extractor.eval()
        for x, y in held.batches(setup.training.batch_size, method.classifier_epochs):
            with torch.no_grad():
                z = extractor(x)
            self._train_critics(member, target, critics)
            loss = functional.cross_entropy(classifier(z), y) + method.fusion_weight * self._fusion(member, target)
            take_step(steps, loss)
        extractor.train()

    def _train_critics(self, member: Member, target: Prototypes, critics: list[torch.optim.SGD]) -> None:
        """Let each discriminator take a step: global is 1, local is 0."""
        classifier = member.network.classifier
        with torch.no_grad():
            on_global, on_own = classifier(target.prototypes), classifier(target.own)
        pairs = [
            (member.prototype_critic, on_global[target.shared], on_own[target.shared]),
            (member.classifier_critic, target.teacher, on_global[target.known]),
        ]
        for (critic, real, fake), steps in zip(pairs, critics, strict=True):
            if len(real):
                loss = (functional.softplus(-critic(real)) + functional.softplus(critic(fake))).mean()
                take_step(steps, loss)

    def _fusion(self, member: Member, target: Prototypes) -> Tensor:
        """Return l_ccf: the client's own prototypes, and to pass for global."""
        classifier = member.network.classifier
        on_own = classifier(target.own)
        losses = functional.cross_entropy(on_own[target.present], target.present)
        for critic, fake in (
            (member.prototype_critic, on_own[target.shared]),
            (member.classifier_critic, classifier(target.prototypes)[target.known]),
        ):
            if len(fake):
                losses = losses + target.kappa * functional.softplus(-critic(fake)).mean()
        return losses

    def _train_extractor(self, held: Held, member: Member, target: Prototypes) -> None:
        """Train the extractor towards the prototypes, the classifier frozen."""
        training, (extractor, classifier) = self.setup.training, member.network
        steps = optimiser(list(extractor.parameters()), self.setup)
        freeze(classifier, True)
        for x, y in held.batches(training.batch_size, int(training.epochs)):
            z = extractor(x)
            distances = (z - target.prototypes[y]).square().mean(-1) * target.is_known[y]
            loss = functional.cross_entropy(classifier(z), y) + self.fedmate.centre_weight * distances.mean()
            take_step(steps, loss)
        freeze(classifier, False)

    def _upload(self, held: Held, member: Member, with_extractor: bool) -> dict[str, object]:
        """Return a client's upload."""
        prototypes, counts = self._prototypes(held, member.network.extractor)
        parts = ("classifier", "extractor") if with_extractor else ("classifier",)
        modules = member.network._asdict()
        sent = {part: {name: p.detach().clone() for name, p in modules[part].named_parameters()} for part in parts}
        return {**sent, "prototypes": prototypes, "class_counts": counts}
