"""One thing to measure, and the synthetic federation it runs on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self, final

import torch
from torch import Tensor

from fedmate.backends.precision import Precision
from fedmate.core import Augmentation, Federation, Limits, Model, Setup, Source, Training, make_key, option, rows_of
from fedmate.core.options import check_options, options_of
from fedmate.errors import UserError, nearest
from fedmate.experiment.values import check_type
from fedmate.methods import METHODS, Method
from fedmate.models import MODELS

AUTO = "auto"
"""The runner that stands for the back end which an experiment's `backend = "auto"` would choose."""

INPUTS: dict[str, tuple[int, ...]] = {"digits_cnn": (1, 8, 8), "emnist_cnn": (1, 28, 28), "mlp": (1, 28, 28)}
"""By network: the shape of what it reads, where that is not an image of CIFAR-10."""

CIFAR = (3, 32, 32)

ROUNDS = 200
"""How long methods are told that training will be."""

TESTED = 100
"""Samples of the test split, which nobody reads unless rounds are evaluated."""

AT_LEAST_ONE = Limits(at_least=1)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to measure: some work, and who does it."""

    runner: str = option(AUTO, "who runs it: a back end, `auto`, or a rival")
    method: str = option("fedavg", "what clients and server do")
    network: str = option("cifar_cnn", "what is trained")
    clients: int = option(20, "how many there are; all take part in each round", AT_LEAST_ONE)
    samples: int = option(600, "how many each of them holds", AT_LEAST_ONE)
    classes: int = option(10, "how many there are", Limits(at_least=2))
    batch_size: int = option(50, "samples in a step", AT_LEAST_ONE)
    epochs: int = option(5, "passes over a client's samples in a round", AT_LEAST_ONE)
    device: str = option("cpu", "where: `cpu` or a GPU")
    precision: Precision = option("strict", "of matrix products and convolutions on a GPU")
    augment: bool = option(False, "crop and mirror images at random")

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        check_options("", Case, vars(self))
        if self.device == "cpu" and self.precision != "strict":
            raise UserError(f"`precision` is `{self.precision}`, which is for GPUs; leave it out on a CPU.")
        for key, look_up in (("method", METHODS.__getitem__), ("network", MODELS.__getitem__)):
            try:
                look_up(getattr(self, key))
            except UserError as error:
                raise UserError(f"`{key}`: {error}") from None
        if self.network == "given":
            raise UserError("`network` is `given`, which comes from Python and cannot be named; choose another.")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return INPUTS.get(self.network, CIFAR)

    @property
    def training_samples(self) -> int:
        """The samples of a round: those of all clients, as often as the extractor is trained on them."""
        return self.clients * self.samples * self.epochs

    @property
    def steps(self) -> int:
        """The steps in which a round trains extractors, of all clients together."""
        return self.clients * self.epochs * -(-self.samples // self.batch_size)

    @property
    def work(self) -> Case:
        """What is done, whoever does it and however precisely; cases that have it in common can be compared."""
        return dataclasses.replace(self, runner=AUTO, precision="strict")

    @property
    def title(self) -> str:
        """What tells this case from others, in a few words."""
        varied = ", augmented" if self.augment else ""
        return f"{self.method}, {self.network}, {self.clients} x {self.samples}{varied}: {self.runner}"

    def changed(self, values: Mapping[str, Any], source: str) -> Self:
        """Return it with other values, or raise `UserError` for the first that makes no sense."""
        known = options_of(Case)
        for key in values:
            if key not in known:
                raise UserError(f"`{key}` in {source} is no property of a case; {nearest(key, known)}")
        return dataclasses.replace(
            self, **{key: check_type(key, Case, key, value, source) for key, value in values.items()}
        )


def make_method(case: Case, dtype: torch.dtype = torch.float32) -> Method:
    """Return the method with a network that starts alike whoever trains it."""
    architecture = MODELS[case.network]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = architecture.build(case.input_shape, case.classes)
    model = Model(module.to(case.device, dtype), classifier=architecture.classifier)
    training = Training(batch_size=case.batch_size, epochs=case.epochs)
    method = METHODS[case.method](setup=Setup(model, case.classes, ROUNDS, training))
    return dataclasses.replace(method, setup=dataclasses.replace(method.setup, model=method.prepare(model)))


def make_federation(case: Case, dtype: torch.dtype = torch.float32) -> Federation:
    """Return clients that hold random images: speed does not depend on what they show."""
    held = case.clients * case.samples
    source, labels = _make_samples(case, held + TESTED, dtype)
    rows = torch.arange(held + TESTED, device=case.device)
    clients = tuple(rows_of(source, own, labels[own]) for own in torch.split(rows[:held], case.samples))
    return Federation(clients, rows_of(source, rows[held:], labels[held:]), case.classes)


def make_randomness(case: Case) -> Tensor:
    """Return the key of a case."""
    return make_key(0, case.device)


def _make_samples(case: Case, count: int, dtype: torch.dtype) -> tuple[Source, Tensor]:
    """Return bytes on the device, with what is done to them whenever they are read, and labels."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (count, *case.input_shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(case.classes, (count,), generator=generator)
    every_channel = torch.ones(case.input_shape[0], 1, 1, dtype=dtype, device=case.device)
    augmentation = Augmentation(crop=4, flip=True) if case.augment else Augmentation()
    # Mean and spread of bytes that are all equally frequent.
    source = Source(images.to(case.device), 127.5 * every_channel, 73.9 * every_channel, augmentation)
    return source, labels.to(case.device)
