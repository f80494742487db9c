"""One thing to measure, and the synthetic federation it runs on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self, final

import torch
from torch import Tensor

from fedmate.backends.precision import Precision
from fedmate.core import Augmentation, Federation, Limits, Setup, Source, Training, make_key, option, rows_of
from fedmate.core.model import Model
from fedmate.core.options import check_options, check_type, options_of
from fedmate.errors import UserError, nearest
from fedmate.methods import METHODS, Method
from fedmate.models import MODELS

AUTO = "auto"
"""The runner that stands for the back end which `backend = "auto"` of an experiment chooses."""

INPUTS: dict[str, tuple[int, ...]] = {"digits_cnn": (1, 8, 8), "emnist_cnn": (1, 28, 28), "mlp": (1, 28, 28)}
"""The shape of a sample by network; other networks read images of CIFAR-10."""

CIFAR = (3, 32, 32)

ROUNDS = 200
"""The length of training that methods are set up for."""

TEST_SAMPLES = 100

AT_LEAST_ONE = Limits(at_least=1)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to measure: some work, and who does it."""

    runner: str = option(AUTO, "a back end, `auto`, or a baseline")
    method: str = option("fedavg", "the method")
    network: str = option("cifar_cnn", "the network")
    clients: int = option(20, "number of clients; all take part in each round", AT_LEAST_ONE)
    samples: int = option(600, "samples of each client", AT_LEAST_ONE)
    classes: int = option(10, "number of classes", Limits(at_least=2))
    batch_size: int = option(50, "samples in a step", AT_LEAST_ONE)
    epochs: int = option(5, "epochs of a round", AT_LEAST_ONE)
    device: str = option("cpu", "`cpu` or a GPU")
    precision: Precision = option("strict", "of matrix products and convolutions on a GPU")
    augment: bool = option(False, "crop and flip images at random")

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        check_options("", Case, vars(self))
        METHODS[self.method], MODELS[self.network]
        if self.device == "cpu" and self.precision != "strict":
            raise UserError(f"`precision` is `{self.precision}`, which is for GPUs; leave it out on a CPU.")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return INPUTS.get(self.network, CIFAR)

    @property
    def training_samples(self) -> int:
        """The samples that the extractors of all clients are trained on in a round."""
        return self.clients * self.samples * self.epochs

    @property
    def work(self) -> Case:
        """The work alone: cases with the same work can be compared, whatever their runner and precision."""
        return dataclasses.replace(self, runner=AUTO, precision="strict")

    @property
    def title(self) -> str:
        """The case in a few words."""
        augmented = ", augmented" if self.augment else ""
        return f"{self.method}, {self.network}, {self.clients} x {self.samples}{augmented}: {self.runner}"

    def changed(self, values: Mapping[str, Any], source: str) -> Self:
        """Return it with other values, or raise `UserError` for the first that is not allowed."""
        known = options_of(Case)
        for key in values:
            if key not in known:
                raise UserError(f"`{key}` in {source} is not an option of a case; {nearest(key, known)}")
        checked = {key: check_type(key, Case, key, value, source) for key, value in values.items()}
        return dataclasses.replace(self, **checked)


def make_method(case: Case, dtype: torch.dtype = torch.float32) -> Method:
    """Return the method with a network that has the same initial parameters for every runner."""
    architecture = MODELS[case.network]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = architecture.build(case.input_shape, case.classes)
    model = Model(module.to(case.device, dtype), classifier=architecture.classifier)
    training = Training(batch_size=case.batch_size, epochs=case.epochs)
    method = METHODS[case.method](setup=Setup(model, case.classes, ROUNDS, training))
    return dataclasses.replace(method, setup=dataclasses.replace(method.setup, model=method.prepare(model)))


def make_federation(case: Case, dtype: torch.dtype = torch.float32) -> Federation:
    """Return clients that hold random bytes as images: speed does not depend on what they show."""
    held = case.clients * case.samples
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (held + TEST_SAMPLES, *case.input_shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(case.classes, (held + TEST_SAMPLES,), generator=generator).to(case.device)
    ones = torch.ones(case.input_shape[0], 1, 1, dtype=dtype, device=case.device)
    augmentation = Augmentation(crop=4, flip=True) if case.augment else Augmentation()
    # Mean and standard deviation of uniform bytes.
    source = Source(images.to(case.device), 127.5 * ones, 73.9 * ones, augmentation)
    rows = torch.arange(held + TEST_SAMPLES, device=case.device)
    clients = tuple(rows_of(source, own, labels[own]) for own in torch.split(rows[:held], case.samples))
    return Federation(clients, rows_of(source, rows[held:], labels[held:]), case.classes)


def make_randomness(case: Case) -> Tensor:
    """Return the key of a case."""
    return make_key(0, case.device)
