"""A method: what a client and the server do in a round, written once, as pure functions.

    server --download(i)--> Download_i
    client_i, Download_i, data_i, key_i --local_update--> client_i', upload_i
    upload_1 .. upload_n --stack--> aggregate --> server'

Client functions see one client, without a client axis; `aggregate` sees a stack. Everything that crosses between
client and server is in the two trees `download` returns and `local_update` uploads.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, final, get_type_hints

import torch
from torch import Tensor

from fedmate.core.data import Batch, ClientData, batches, num_steps
from fedmate.core.local import SGD, Adam, Optimiser
from fedmate.core.model import MODEL_PARTS, Model
from fedmate.core.objective import ObjectiveOptions
from fedmate.core.options import Limits, check_options, option, options_of
from fedmate.core.server import Server
from fedmate.core.task import Adjustment
from fedmate.core.tree import Tree

NOT_NEGATIVE = Limits(at_least=0)

COUNTS_FOR: dict[str, tuple[str, tuple[str | int, ...]]] = {
    "momentum": ("optimiser", ("sgd",)),
    "beta1": ("optimiser", ("adam", "adamw")),
    "beta2": ("optimiser", ("adam", "adamw")),
    "epsilon": ("optimiser", ("adam", "adamw")),
    "epochs": ("steps", (0,)),
    "schedule_end": ("schedule", ("cosine", "poly")),
    "schedule_power": ("schedule", ("poly",)),
    "schedule_step": ("schedule", ("step",)),
    "schedule_factor": ("schedule", ("step",)),
}
"""Options of `[training]` that count only if another one has one of these values."""

Presets: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Named groups of values, by section: a method's own hyper-parameters are under `method`."""

NUM_BYTES = "num_bytes"
"""A part of a message that says how many bytes other parts take, by part, where that depends on what they hold."""

BOOKKEEPING = frozenset({"num_samples", "class_counts", "known", "round", NUM_BYTES})
"""Parts of a message that are counted as bookkeeping; every other part is an item of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of local training, the same for every method (the `[training]` section)."""

    batch_size: int = option(50, "samples in a step, at most as many as the client has", Limits(at_least=1))
    epochs: int | float = option(5, "passes over the client's data in a round; 0.5: half of one", Limits(at_least=0))
    steps: int = option(0, "steps in a round, whatever a client holds, in place of epochs; 0: epochs", NOT_NEGATIVE)
    optimiser: Literal["sgd", "adam", "adamw"] = option("sgd", "sgd, adam or adamw; it starts afresh in every round")
    learning_rate: float = option(0.02, "step size (eta); Adam's is usually near 0.001", NOT_NEGATIVE)
    momentum: float = option(0.5, "momentum of sgd", Limits(at_least=0, below=1))
    beta1: float = option(0.9, "how much of its mean gradient a step of adam keeps", Limits(at_least=0, below=1))
    beta2: float = option(0.999, "how much of its mean square a step of adam keeps", Limits(at_least=0, below=1))
    epsilon: float = option(1e-8, "added to the root of that mean square, in adam", Limits(above=0))
    weight_decay: float = option(5e-4, "weight decay, biases included; adamw has it beside the gradient", NOT_NEGATIVE)
    gradient_clip: float = option(0.0, "longest gradient of a step, over all that it trains; 0 is off", NOT_NEGATIVE)
    schedule: Literal["constant", "cosine", "poly", "step"] = option(
        "constant", "how learning rates fall from round to round: constant, cosine, poly or step"
    )
    schedule_end: float = option(
        0.0, "share of the learning rate that cosine and poly end at", Limits(at_least=0, at_most=1)
    )
    schedule_power: float = option(0.9, "exponent of poly; 1 is a straight line", Limits(above=0))
    schedule_step: int = option(10, "rounds between the falls of step", Limits(at_least=1))
    schedule_factor: float = option(0.5, "what a fall of step multiplies rates by", Limits(above=0, at_most=1))

    def __post_init__(self) -> None:
        check_options("training", Training, vars(self))

    def batches(self, data: ClientData, key: Tensor) -> Iterator[Batch]:
        """Yield the batches of a round's local training."""
        return batches(data, self.batch_size, self.epochs, key, self.steps)

    def num_steps(self, data: ClientData) -> Tensor:
        """Return how many of them there are, padding apart."""
        return num_steps(data, self.batch_size, self.epochs, self.steps)

    def rate_factor(self, round_number: int, rounds: int) -> float:
        """Return what the schedule multiplies learning rates by in a round, from 1 in round 0."""
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "step":
            return self.schedule_factor ** (round_number // self.schedule_step)
        left = max(0.0, 1 - round_number / rounds)
        left = left**self.schedule_power if self.schedule == "poly" else (1 - math.cos(math.pi * left)) / 2
        return self.schedule_end + (1 - self.schedule_end) * left

    def warnings(self) -> list[str]:
        """Return a warning for each option that is set and has no effect, for what another one is."""
        changed = [name for name, field in options_of(Training).items() if getattr(self, name) != field.default]
        wanted = {name: COUNTS_FOR[name] for name in changed if name in COUNTS_FOR}
        return [
            f"`training.{name}` has no effect while `training.{other}` is `{getattr(self, other)}`."
            for name, (other, values) in wanted.items()
            if getattr(self, other) not in values
        ]


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a method is run on; the experiment fills it in."""

    model: Model
    num_classes: int
    rounds: int
    training: Training
    participation: float = 1.0
    objective: ObjectiveOptions = dataclasses.field(default_factory=ObjectiveOptions)
    server: Server = dataclasses.field(default_factory=Server)
    rate_factor: float | Tensor = 1.0
    """What the schedule multiplies clients' learning rates by in this round; a tensor where rounds are replayed."""

    def optimiser(self, learning_rate: float | None = None) -> Optimiser:
        """Return the optimiser of local training in this round, with another learning rate if one is given."""
        training = self.training
        rate = (training.learning_rate if learning_rate is None else learning_rate) * self.rate_factor
        decay, longest = training.weight_decay, training.gradient_clip
        if training.optimiser == "sgd":
            return SGD(rate, training.momentum, decay, longest)
        averages, decoupled = (training.beta1, training.beta2, training.epsilon), training.optimiser == "adamw"
        return Adam(rate, *averages, decay, decoupled, longest)

    def class_counts(self, data: ClientData) -> Tensor:
        """Return n_ik, how many instances of each class a client holds, `[classes]`."""
        return self.model.task.class_counts(data.y, data.mask, self.num_classes)

    def class_shares(self, data: ClientData) -> Tensor:
        """Return p_ik, the share of each class in what a client holds, `[classes]`, float64."""
        counts = self.class_counts(data).to(torch.float64)
        return counts / counts.sum()


class Wire(NamedTuple):
    """The parts of the messages that cross in a round."""

    down: frozenset[str]  # the parts of `download` that reach the clients
    up: frozenset[str]  # the parts of the upload that reach the server


class LocalResult(NamedTuple):
    """What one client's local training gives."""

    client: Tree  # its state for the next round; it never leaves the client
    upload: Tree  # what it sends, before `wire` leaves parts out
    params: Tree  # the model it holds now, the `post` view
    diagnostics: Tree  # numbers to record, never sent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A method of federated learning. Fields are hyper-parameters; `setup` is filled in by the experiment.

    It says what server and clients hold, what crosses, and what both do. `methods/base.py` says most of that for
    methods that average a model or parts of it.
    """

    primary_view: ClassVar[str] = "pre"
    """The view that ranks this method: what it would deploy."""

    is_global: ClassVar[bool] = False
    """Whether a client's `pre` view is the global model, and so holds the class shares of no client in particular."""

    presets: ClassVar[Presets] = {}

    defaults: ClassVar[dict[str, dict[str, Any]]] = {}
    """Values of other sections that come with this name, beneath what the user says."""

    citation: ClassVar[str] = ""
    """The paper to cite: the key of an entry in methods/citations.bib, or an entry of BibTeX; empty for none."""

    setup: Setup

    def __post_init__(self) -> None:
        check_options("method", type(self), vars(self))

    @property
    def server(self) -> Server:
        """How the server combines what clients send."""
        return self.setup.server

    def prepare(self, model: Model) -> Model:
        """Return the model to train; a method that adds layers returns another one."""
        return model

    def warnings(self, class_counts: Sequence[Tensor]) -> list[str]:
        """Return what the user should know before a run, given each client's samples per class."""
        return []

    @abstractmethod
    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """Return the server's state before round 0, from the common initial parameters."""

    @abstractmethod
    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """Return what a client keeps between rounds, before its first one."""

    @abstractmethod
    def wire(self, round_number: int) -> Wire:
        """Return which parts cross in round `round_number` (from 0); the back end drops the others."""

    @abstractmethod
    def download(self, server: Tree, client_id: Tensor) -> Tree:
        """Return the message to a client; id -1 is a held-out client who was not there at the start."""

    @abstractmethod
    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train one client for one round."""

    @abstractmethod
    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        """Return the server's next state.

        Args:
            server: its state in this round.
            uploads: a stack, one row per participant.
            client_ids: `[participants]`, in ascending order.
            valid: `[participants]`, false for those that must not count (their rows may hold anything).
            key: the randomness of this round's aggregation.
        """

    @abstractmethod
    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """Return the model a client holds after a broadcast: the `pre` view."""

    def global_params(self, server: Tree) -> Tree | None:
        """Return the aggregated model, the `global` view: the server's if it holds a whole one, or `None`."""
        params = {part: server.get(part, {}) for part in MODEL_PARTS}
        names = self.setup.model.names
        return params if all(params[part].keys() == set(names[part]) for part in MODEL_PARTS) else None

    @final
    def scaled(self, factor: float | Tensor) -> Self:
        """Return the method with all learning rates of local training multiplied by a factor."""
        if isinstance(factor, float) and factor == 1:
            return self
        return dataclasses.replace(self, setup=dataclasses.replace(self.setup, rate_factor=factor))

    @final
    def adjustment(self, data: ClientData) -> Adjustment:
        """Return how the client's class shares enter its training loss; `[objective]` says it."""
        return self.setup.objective.for_training(self.counts(data))

    @final
    def counts(self, data: ClientData) -> Tensor:
        """Return a client's samples per class, in the type of its inputs."""
        return self.setup.class_counts(data).to(data.source.mean.dtype)

    def personalise(self, params: Tree, client: Tree, download: Tree, data: ClientData, key: Tensor) -> Tree:
        """Fine-tune a copy of the `pre` model before use; the identity for most methods.

        Args:
            params: the model to begin with: `personal_params`, or one just trained for a held-out client.
            client: what the client keeps.
            download: what it received.
            data: its samples.
            key: its randomness.
        """
        return params

    def extra_views(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> dict[str, Tree]:
        """Return further models worth evaluating, by name."""
        return {}


def preset_as_method(cls: type[Method], preset: str, title: str) -> type[Method]:
    """Return a method whose defaults are those of a preset, so that the preset can be chosen by a name of its own."""
    others = dict(cls.presets[preset])
    values, types = others.pop("method", {}), get_type_hints(cls)
    fields = [
        (field.name, types[field.name], dataclasses.field(default=values[field.name], metadata=field.metadata))
        for field in dataclasses.fields(cls)
        if field.name in values
    ]
    # Nothing but defaults differs, which is why a class that is final may be the base of this one.
    namespace = {"__doc__": title, "__final__": True, "presets": {}, "defaults": others, "__module__": cls.__module__}
    name = f"{cls.__name__}{preset.title()}"
    return dataclasses.make_dataclass(name, fields, bases=(cls,), namespace=namespace, frozen=True, kw_only=True)
