"""A plain PyTorch loop over clients, as most code for federated learning is written, with its usual wastes left out.

A stateful module, `torch.optim.SGD`, `zero_grad`, `backward`, `step`; one client after the other. On a CPU torch's
default number of threads and one thread are both tried, and the quicker is kept. The data lies on the device and is
indexed, without a data loader. Images are normalised once, unless they are cropped and mirrored, which is done for a
whole batch on the device. No number is read back in a step.
"""

from __future__ import annotations

import copy
import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmate.backends.precision import arithmetic
from fedmate.bench.case import Case, make_federation, make_method
from fedmate.bench.measure import Runner, Timing, peak_of, wait_for
from fedmate.bench.measure import measure as measure_rounds
from fedmate.core import Augmentation, ClientData, Setup, Source
from fedmate.methods.fedrep import FedRep


class Held(NamedTuple):
    """What one client holds, on the device.

    Attributes:
        x: as the network reads them; bytes, if they are varied.
        y: labels.
        source: how bytes are normalised and varied.
        varied: whether they are.
    """

    x: Tensor
    y: Tensor
    source: Source
    varied: bool

    def read(self) -> Tensor:
        """Return all samples as they are."""
        return (self.x - self.source.mean) / self.source.std if self.varied else self.x

    def batches(self, size: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield shuffled batches."""
        for _ in range(epochs):
            for ids in torch.split(torch.randperm(len(self.y), device=self.y.device), size):
                yield self.vary(self.x[ids]), self.y[ids]

    def vary(self, images: Tensor) -> Tensor:
        """Return some of its samples as a network reads them in training."""
        if not self.varied:
            return images
        margin, _ = self.source.augmentation
        count, _, height, width = images.shape
        device = images.device
        down, right = torch.randint(2 * margin + 1, (2, count, 1), device=device)
        rows, columns = torch.arange(height, device=device) + down, torch.arange(width, device=device)
        mirrored = torch.rand(count, 1, device=device) < 0.5
        columns = torch.where(mirrored, columns.flip(0), columns) + right
        padded = functional.pad(images, (margin,) * 4)
        each = torch.arange(count, device=device)[:, None, None]
        # Indices around a slice put the channels last.
        cut = padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        return (cut - self.source.mean) / self.source.std


def hold(data: ClientData) -> Held:
    """Put a client's data ready."""
    varied = data.source.augmentation != Augmentation()
    return Held(data.source.samples[data.rows] if varied else data.x, data.y, data.source, varied)


class Network(NamedTuple):
    """A network taken apart."""

    extractor: nn.Module
    classifier: nn.Module

    def parameters(self) -> list[nn.Parameter]:
        """Return all of them."""
        return [*self.extractor.parameters(), *self.classifier.parameters()]


def take_apart(setup: Setup) -> Network:
    """Return the extractor and the classifier of a fresh copy of the network."""
    extractor = setup.model.to_module(setup.model.init_params()).train()
    classifier = copy.deepcopy(extractor.get_submodule("classifier"))
    extractor.add_module("classifier", nn.Identity())
    return Network(extractor, classifier)


def optimiser(parameters: Sequence[Tensor], setup: Setup, learning_rate: float | None = None) -> torch.optim.SGD:
    """Return a fresh optimiser, as each phase of each round has one."""
    training = setup.training
    return torch.optim.SGD(
        parameters,
        lr=training.learning_rate if learning_rate is None else learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )


def take_step(steps: torch.optim.SGD, loss: Tensor) -> None:
    """Follow the gradient of a loss."""
    steps.zero_grad()
    torch.autograd.backward(loss)
    steps.step()


def freeze(module: nn.Module, frozen: bool) -> None:
    """Say whether a module is trained."""
    for parameter in module.parameters():
        parameter.requires_grad_(not frozen)


@torch.no_grad()
def copy_into(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Overwrite parameters."""
    torch._foreach_copy_(list(targets), list(sources))


class Average:
    """A weighted sum of parameters that grows client by client."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        """Begin with zeros."""
        self.sums = [torch.zeros_like(tensor) for tensor in like]

    @torch.no_grad()
    def add(self, tensors: Sequence[Tensor], share: float) -> None:
        """Add a client's parameters."""
        torch._foreach_add_(self.sums, [tensor.detach() for tensor in tensors], alpha=share)


class PlainLoop(Runner):
    """What the methods' loops have in common."""

    name = "plain_loop"

    def __init__(self, case: Case, dtype: torch.dtype = torch.float32) -> None:
        """Put the data on the device and the network together."""
        self.case, self.method = case, make_method(case, dtype)
        self.setup = self.method.setup
        self.clients = [hold(data) for data in make_federation(case, dtype).clients]
        self.shares = [len(held.y) / sum(len(other.y) for other in self.clients) for held in self.clients]
        self.device = torch.device(case.device)
        self._threads = torch.get_num_threads()
        self._taken: dict[int, float] = {}

    @abstractmethod
    def loop(self, number: int) -> None:
        """Run a round, clients one after the other."""

    def run_round(self, number: int) -> None:
        """Run a round: the second with all threads, the third with one, the others with what was quicker."""
        trial = {1: self._threads, 2: 1}.get(number) if self.device.type == "cpu" else None
        start = time.perf_counter()
        with precisely(self.case), _threads(trial or min(self._taken, key=self._taken.__getitem__, default=None)):
            self.loop(number)
        if trial is not None:
            self._taken.setdefault(trial, time.perf_counter() - start)

    @property
    def notes(self) -> tuple[str, ...]:
        """Whether one thread was quicker."""
        alone = self._threads > 1 and self._taken.get(1, math.inf) < self._taken.get(self._threads, math.inf)
        return (f"one thread was quicker than {self._threads}.",) if alone else ()

    def wait(self) -> None:
        """Wait for the GPU."""
        wait_for(self.device)

    def peak_bytes(self) -> int | None:
        """Return what tensors took on a GPU, what the process took on a CPU."""
        return peak_of(self.device)

    def train(self, held: Held, network: Network, parameters: Sequence[Tensor]) -> None:
        """Train some of a network's parameters on what a client holds."""
        training, steps = self.setup.training, optimiser(parameters, self.setup)
        for x, y in held.batches(training.batch_size, training.epochs):
            loss = functional.cross_entropy(network.classifier(network.extractor(x)), y)
            take_step(steps, loss)


@final
class PlainFedAvg(PlainLoop):
    """Clients train the common model, the server averages it."""

    def __init__(self, case: Case, dtype: torch.dtype = torch.float32) -> None:
        """Begin with the network's own parameters."""
        super().__init__(case, dtype)
        self.network = take_apart(self.setup)
        self.server = [parameter.detach().clone() for parameter in self.network.parameters()]

    def loop(self, number: int) -> None:
        """Train one client after the other."""
        average = Average(self.server)
        for held, share in zip(self.clients, self.shares, strict=True):
            copy_into(self.network.parameters(), self.server)
            self.train(held, self.network, self.network.parameters())
            average.add(self.network.parameters(), share)
        self.server = average.sums


@final
class PlainFedRep(PlainLoop):
    """Clients train a classifier of their own, then the common extractor, which the server averages."""

    def __init__(self, case: Case, dtype: torch.dtype = torch.float32) -> None:
        """Begin with the network's own parameters."""
        super().__init__(case, dtype)
        assert isinstance(self.method, FedRep)
        self.epochs, self.learning_rate = self.method.classifier_epochs, self.method.classifier_learning_rate
        self.extractor, classifier = take_apart(self.setup)
        self.classifiers = [copy.deepcopy(classifier) for _ in self.clients]
        self.server = [parameter.detach().clone() for parameter in self.extractor.parameters()]

    def loop(self, number: int) -> None:
        """Train one client after the other."""
        parameters = list(self.extractor.parameters())
        average = Average(self.server)
        for held, classifier, share in zip(self.clients, self.classifiers, self.shares, strict=True):
            copy_into(parameters, self.server)
            self._tune(held, classifier)
            freeze(classifier, True)
            self.train(held, Network(self.extractor, classifier), parameters)
            freeze(classifier, False)
            average.add(parameters, share)
        self.server = average.sums

    def _tune(self, held: Held, classifier: nn.Module) -> None:
        """Train a client's classifier, the extractor frozen."""
        steps = optimiser(list(classifier.parameters()), self.setup, self.learning_rate)
        self.extractor.eval()
        for x, y in held.batches(self.setup.training.batch_size, self.epochs):
            with torch.no_grad():
                z = self.extractor(x)
            loss = functional.cross_entropy(classifier(z), y)
            take_step(steps, loss)
        self.extractor.train()


@contextmanager
def precisely(case: Case) -> Iterator[None]:
    """Compute as precisely as a case asks for."""
    device = torch.device(case.device)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=case.precision == "bf16")
    with arithmetic(case.precision, device), mixed:
        yield


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Let torch use so many threads, or as many as it does."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make(case: Case) -> PlainLoop:
    """Return the loop for a method."""
    from fedmate.bench.rivals.plain_fedmate import PlainFedMate

    loops: dict[str, type[PlainLoop]] = {"fedavg": PlainFedAvg, "fedrep": PlainFedRep, "fedmate": PlainFedMate}
    return loops[case.method](case)


def measure(case: Case, repeat: int) -> Timing:
    """Time the rounds of a case."""
    return measure_rounds(case, make, repeat)
