"""A plain PyTorch loop over clients, as a competent user writes it.

A stateful module, `torch.optim.SGD`, `zero_grad`, `backward`, `step`; one client after the other. On a CPU torch's
default number of threads and one thread are both tried, and the faster counts. The data lies on the device and is
indexed, without a data loader. Images are normalised once; if they are augmented, a whole batch is cropped and flipped
on the device. A step reads no number back.
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

from benchmarks.case import Case, make_federation, make_method
from benchmarks.measure import Runner, Timing, time_rounds
from fedmate.backends.precision import arithmetic
from fedmate.core import Augmentation, ClientData, Setup, Source
from fedmate.methods.fedrep import FedRep


class Held(NamedTuple):
    """The samples of one client, on the device.

    Attributes:
        x: as the network reads them; bytes, if they are augmented.
        y: labels.
        source: how bytes are normalised and augmented.
        augmented: whether they are.
    """

    x: Tensor
    y: Tensor
    source: Source
    augmented: bool

    def read(self) -> Tensor:
        """Return all samples without augmentation."""
        return (self.x - self.source.mean) / self.source.std if self.augmented else self.x

    def batches(self, size: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield shuffled batches."""
        for _ in range(epochs):
            for ids in torch.split(torch.randperm(len(self.y), device=self.y.device), size):
                yield self.augment(self.x[ids]), self.y[ids]

    def augment(self, images: Tensor) -> Tensor:
        """Return images as a network reads them in training: cropped and flipped, if they are augmented."""
        if not self.augmented:
            return images
        margin, _ = self.source.augmentation
        count, _, height, width = images.shape
        device = images.device
        down, right = torch.randint(2 * margin + 1, (2, count, 1), device=device)
        rows, columns = torch.arange(height, device=device) + down, torch.arange(width, device=device)
        flipped = torch.rand(count, 1, device=device) < 0.5
        columns = torch.where(flipped, columns.flip(0), columns) + right
        padded = functional.pad(images, (margin,) * 4)
        each = torch.arange(count, device=device)[:, None, None]
        # Indices around a slice put the channels last.
        cut = padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        return (cut - self.source.mean) / self.source.std


def hold(data: ClientData) -> Held:
    """Return a client's samples, normalised once unless they are augmented."""
    augmented = data.source.augmentation != Augmentation()
    return Held(data.source.samples[data.rows] if augmented else data.x, data.y, data.source, augmented)


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
    """Freeze a module, or train it again."""
    for parameter in module.parameters():
        parameter.requires_grad_(not frozen)


@torch.no_grad()
def copy_into(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Overwrite parameters."""
    torch._foreach_copy_(list(targets), list(sources))


class Average:
    """A weighted sum of parameters that grows client by client."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        self.sums = [torch.zeros_like(tensor) for tensor in like]

    @torch.no_grad()
    def add(self, tensors: Sequence[Tensor], share: float) -> None:
        """Add a client's parameters."""
        torch._foreach_add_(self.sums, [tensor.detach() for tensor in tensors], alpha=share)


class PlainLoop(Runner):
    """Base of the methods' loops: it chooses the number of threads on a CPU."""

    name = "plain_loop"

    def __init__(self, case: Case, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(case)
        self.method = make_method(case, dtype)
        self.setup = self.method.setup
        self.clients = [hold(data) for data in make_federation(case, dtype).clients]
        self.shares = [len(held.y) / sum(len(other.y) for other in self.clients) for held in self.clients]
        self._threads = torch.get_num_threads()
        self._taken: dict[int, float] = {}

    @abstractmethod
    def loop(self, number: int) -> None:
        """Run a round, clients one after the other."""

    def run_round(self, number: int) -> None:
        """Run a round: the second with all threads, the third with one, the others with the faster of the two."""
        trial = {1: self._threads, 2: 1}.get(number) if self.device.type == "cpu" else None
        start = time.perf_counter()
        with _precision(self.case), _threads(trial or min(self._taken, key=self._taken.__getitem__, default=None)):
            self.loop(number)
        if trial is not None:
            self._taken.setdefault(trial, time.perf_counter() - start)
        if self._threads > 1 and self._taken.get(1, math.inf) < self._taken[self._threads]:
            self.notes = (f"one thread was faster than {self._threads}.",)

    def train(self, held: Held, network: Network, parameters: Sequence[Tensor]) -> None:
        """Train some of a network's parameters on a client's samples."""
        training, steps = self.setup.training, optimiser(parameters, self.setup)
        for x, y in held.batches(training.batch_size, int(training.epochs)):
            take_step(steps, functional.cross_entropy(network.classifier(network.extractor(x)), y))


@final
class PlainFedAvg(PlainLoop):
    """Clients train the common model, the server averages it."""

    def __init__(self, case: Case, dtype: torch.dtype = torch.float32) -> None:
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
            take_step(steps, functional.cross_entropy(classifier(z), y))
        self.extractor.train()


@contextmanager
def _precision(case: Case) -> Iterator[None]:
    device = torch.device(case.device)
    mixed = torch.autocast(device.type, torch.bfloat16, enabled=case.precision == "bf16")
    with arithmetic(case.precision, device), mixed:
        yield


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make(case: Case) -> PlainLoop:
    """Return the loop of a method."""
    from benchmarks.baselines.plain_fedmate import PlainFedMate

    loops: dict[str, type[PlainLoop]] = {"fedavg": PlainFedAvg, "fedrep": PlainFedRep, "fedmate": PlainFedMate}
    return loops[case.method](case)


def measure(case: Case, repeat: int) -> Timing:
    """Time the rounds of a case."""
    return time_rounds(case, make, repeat)
