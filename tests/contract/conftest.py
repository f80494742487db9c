"""What every method and every back end is tried on: a small, awkward federation, in float64.

Five ragged clients (the second holds one class, the third one sample) with bytes that are cropped and mirrored in
training, a class nobody holds, four models with a few dozen parameters, partial participation. Tests get everything
through fixtures, so a row added to a table is tried without anything being written. Methods are those of the table:
fedmate's own, that of `examples/`, and whatever other packages in this environment bring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

import pytest
import torch
from tests.installed import installed_example
from torch import Tensor, nn

from fedmate.backends import BACKENDS, Backend
from fedmate.backends.base import Round, RoundResult
from fedmate.backends.client import ClientResult, train_client
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    Augmentation,
    ClientData,
    Federation,
    Method,
    Model,
    ObjectiveOptions,
    Server,
    Setup,
    Source,
    Training,
    Tree,
    Wire,
    fold,
    make_key,
    random_bits,
    rows_of,
    select,
    stack,
    tree_map,
    unmapped,
)
from fedmate.core.options import options_of
from fedmate.core.server import ServerSGD
from fedmate.core.task import TASKS, Task
from fedmate.methods import METHODS

IN_PROCESS = [name for name in BACKENDS.names() if name != "flower"]
NUM_CLASSES = 4
LABELS = ((0, 1, 2, 0, 1, 2, 2), (1, 1, 1, 1), (0,), (0, 2, 2, 0, 2), (1, 2, 1, 2, 1, 1))
"""By client. Nobody holds class 3."""

SCHEDULE = ((0, 1, 2, 4), (1, 3), (0, 2, 3, 4))
"""Who takes part, by round."""

TRAINING = Training(batch_size=4, epochs=2, learning_rate=0.1, momentum=0.5, weight_decay=0.01)

FASTER: dict[str, object] = {"tuning_epochs": 2}
"""Options that cost time only, where a method has them."""

TELLING: dict[str, object] = {"cft": "period:2"}
"""Options set so that rounds differ in what crosses, where a method has them."""

with installed_example():
    METHOD_NAMES = METHODS.names()

THOROUGH = ("fedavg", "fedmate", "fedpac", "moon", "fedrep")
"""Methods that are tried with buffers of every kind here; all are in their own tests."""

ModelName = Literal["plain", "shared", "private", "dropped"]


def _samples(task: Task, labels: Iterable[int], *path: int | str) -> ClientData:
    """Return random images, each with a label or, as the task's answers are shaped, a map of its client's labels."""
    y = torch.tensor(tuple(labels))
    images = random_bits(fold(make_key(7), *path), (len(y), 1, 2, 4)).to(torch.uint8)
    mean, std = torch.full((2, 1, 1, 1), 110.0, dtype=torch.float64)
    shape = task.answer_shape(images, NUM_CLASSES)[2:]
    targets = y[(torch.arange(len(y))[:, None] + torch.arange(math.prod(shape))) % len(y)].reshape(len(y), *shape)
    return rows_of(Source(images, mean, std, Augmentation(crop=1, flip=True)), torch.arange(len(y)), targets)


def _model(name: ModelName, task: Task) -> Model:
    """Return a perceptron, or a network with BatchNorm (8 values per channel and sample) and dropout.

    The activations are smooth: two ways of computing the same thing then stay close to each other.
    """
    maps = len(task.answer_shape(torch.zeros(1, 1, 2, 4), NUM_CLASSES)) == 4
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers: list[nn.Module]
        if maps:
            layers = [nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 1), nn.Tanh()]
            if name != "plain":
                layers[1:1] = [nn.BatchNorm2d(2), nn.Dropout(0.25)]
            layers.append(nn.Conv2d(3, NUM_CLASSES, 1))
        elif name == "plain":
            layers = [nn.Flatten(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, NUM_CLASSES)]
        else:
            layers = [nn.Flatten(2), nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.Tanh(), nn.Dropout(0.25)]
            layers += [nn.Flatten(), nn.Linear(16, 3), nn.Tanh(), nn.Linear(3, NUM_CLASSES)]
        buffers = "shared" if name == "plain" else name
        module = nn.Sequential(*layers).double()
        return Model(module, classifier=str(len(layers) - 1), buffers=buffers, task=task)


@dataclass(frozen=True)
class History:
    """What a run leaves behind: the result of each round, and the clients' states after the last."""

    rounds: list[RoundResult]
    clients: list[Tree]

    def state(self) -> Tree:
        """Return server and clients at the end, as one tree."""
        return {"server": self.rounds[-1].server, "clients": dict(enumerate(self.clients))}


class Step(NamedTuple):
    """A round in which everybody took part: the states before it, and what each client's part in it gave."""

    server: Tree
    clients: list[Tree]
    trained: list[ClientResult]

    def uploads(self) -> Tree:
        """Return what everybody sent, stacked."""
        return stack([result.upload for result in self.trained])


@dataclass(frozen=True, eq=False)
class Lab:
    """One method with the model it is tried on, the federation and the experiment's key."""

    method: Method
    federation: Federation
    key: Tensor
    schedule: tuple[tuple[int, ...], ...] = SCHEDULE

    @property
    def everyone(self) -> tuple[int, ...]:
        """The ids of all clients."""
        return tuple(range(len(self.federation.clients)))

    def server(self) -> Tree:
        """Return the server's state before round 0."""
        params = self.method.setup.model.init_params()
        return self.method.init_server(params, len(self.everyone), fold(self.key, "server"))

    def clients(self) -> list[Tree]:
        """Return the clients' states before round 0."""
        params = self.method.setup.model.init_params()
        return [self.method.init_client(params, fold(self.key, "client", i)) for i in self.everyone]

    def structures(self) -> dict[Wire, int]:
        """Return every answer of `wire`, with the first round that gives it."""
        first: dict[Wire, int] = {}
        for t in range(self.method.setup.rounds):
            first.setdefault(self.method.wire(t), t)
        return first

    def client_key(self, t: int, i: int) -> Tensor:
        """Return the randomness of client `i` in round `t`."""
        return fold(self.key, "round", t, i)

    def received(self, server: Tree, t: int, i: int) -> Tree:
        """Return what reaches client `i` in round `t`."""
        return select(self.method.download(server, torch.tensor(i)), self.method.wire(t).down)

    def train(self, server: Tree, client: Tree, t: int, i: int, data: ClientData | None = None) -> ClientResult:
        """Run client `i`'s part of round `t`, on other data if some are given."""
        data = self.federation.clients[i] if data is None else data
        download, tests = self.received(server, t, i), self.federation.tests(i)
        with torch.no_grad(), unmapped():
            return train_client(self.method, t, client, download, data, self.client_key(t, i), tests)

    @cached_property
    def first(self) -> Step:
        """Round 0 with everybody, in plain Python; functions are pure, so tests may share what they give."""
        return self.step(self.server(), self.clients(), 0)

    @cached_property
    def started(self) -> tuple[Tree, list[Tree]]:
        """The states after a round in which everybody took part."""
        return self.after(self.first)

    @cached_property
    def steps(self) -> list[Step]:
        """All rounds, with everybody."""
        steps, states = [self.first], self.started
        for t in range(1, self.method.setup.rounds):
            steps.append(self.step(*states, t))
            states = self.after(steps[-1])
        return steps

    def late_steps(self) -> list[Step]:
        """Return one round for every answer of `wire`, the last that gives it."""
        return list({self.method.wire(t): step for t, step in enumerate(self.steps)}.values())

    def step(self, server: Tree, clients: list[Tree], t: int) -> Step:
        """Run everybody's part of round `t`."""
        return Step(server, clients, [self.train(server, clients[i], t, i) for i in self.everyone])

    def aggregate(self, server: Tree, uploads: Tree, ids: Iterable[int], valid: Iterable[bool]) -> Tree:
        """Combine a stack of uploads."""
        with torch.no_grad():
            return self.method.aggregate(
                server, uploads, torch.tensor(tuple(ids)), torch.tensor(tuple(valid)), self.key
            )

    def after(self, step: Step) -> tuple[Tree, list[Tree]]:
        """Combine what everybody sends, and return the next states."""
        valid = [bool(result.valid) for result in step.trained]
        return self.aggregate(step.server, step.uploads(), self.everyone, valid), [r.client for r in step.trained]

    def backend(self, name: str) -> Backend:
        """Return a back end as its table gives it, nothing set."""
        return BACKENDS[name](self.method, self.federation, self.key)

    def reference(self, workers: int = 1) -> Backend:
        """Return the reference back end."""
        return Sequential(self.method, self.federation, self.key, workers=workers)

    def run(self, backend: Backend, *, evaluate: bool = True) -> History:
        """Run the schedule."""
        server, rounds = self.server(), []
        for t, participants in enumerate(self.schedule):
            rounds.append(backend.run_round(server, Round(t, participants, evaluate)))
            server = rounds[-1].server
        return History(rounds, [backend.clients[i] for i in self.everyone])

    @cache  # noqa: B019 - there are a few dozen of these, made once
    def history(self, name: str) -> History:
        """Run the schedule on a back end of the table; the answer is shared between tests."""
        return self.run(self.backend(name))

    @cached_property
    def expected(self) -> History:
        """The schedule on the reference back end, with one worker."""
        return self.run(self.reference())

    def with_client(self, i: int, data: ClientData) -> Lab:
        """Return the same with other data for client `i`."""
        clients = (*self.federation.clients[:i], data, *self.federation.clients[i + 1 :])
        return replace(self, federation=self.federation._replace(clients=clients))

    def with_few_steps(self) -> Lab:
        """Return the same with as little training as shows everything: what is traced takes long."""
        setup = self.method.setup
        training = replace(setup.training, batch_size=4, epochs=1)
        return replace(self, method=replace(self.method, setup=replace(setup, training=training)))

    def with_key(self, seed: int) -> Lab:
        """Return the same with other randomness."""
        return replace(self, key=make_key(seed))


MakeLab = Callable[..., Lab]


@cache
def _make(
    method_name: str,
    model_name: ModelName,
    training: Training = TRAINING,
    objective: ObjectiveOptions | None = None,
    server: Server | None = None,
    task_cls: type[Task] | None = None,
    **options: Any,
) -> Lab:
    cls = METHODS[method_name]
    objective = objective or ObjectiveOptions(**cls.defaults.get("objective", {}))
    task = (task_cls or TASKS["classification"])(objective.label_smoothing)
    federation = Federation(
        clients=tuple(_samples(task, labels, "client", i) for i, labels in enumerate(LABELS)),
        test=_samples(task, [k for k in range(NUM_CLASSES) for _ in range(4)], "test"),
        num_classes=NUM_CLASSES,
    )
    preferred = {name: value for name, value in (FASTER | TELLING).items() if name in options_of(cls)}
    chosen = preferred | options
    server = server or Server(optimiser=ServerSGD(**cls.defaults.get("server", {})))
    setup = Setup(_model(model_name, task), NUM_CLASSES, len(SCHEDULE), training, objective=objective, server=server)
    method = cls(setup=setup, **chosen)
    prepared = replace(setup, model=method.prepare(setup.model))
    return Lab(replace(method, setup=prepared), federation, make_key(11))


@pytest.fixture(autouse=True, scope="module")
def example_is_installed() -> Iterator[None]:
    """Keep the example's method in the table for these tests, and for no others."""
    with installed_example():
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Keep torch from splitting tiny operations over threads, which costs 25 times their work on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def make_lab() -> MakeLab:
    """Make a `Lab`: `make_lab(method, model, training, objective, server, task, **options)`."""
    return _make


@pytest.fixture(params=METHOD_NAMES)
def method_name(request: pytest.FixtureRequest) -> str:
    """Every method of the table, in turn."""
    name: str = request.param
    return name


@pytest.fixture(params=IN_PROCESS)
def backend_name(request: pytest.FixtureRequest) -> str:
    """Every back end of the table, in turn."""
    name: str = request.param
    return name


@pytest.fixture(params=["plain", "shared"])
def lab(request: pytest.FixtureRequest, method_name: str) -> Lab:
    """Every method, without and with buffers."""
    return _make(method_name, request.param)


ANY: list[tuple[str, ModelName]] = [(method, "shared") for method in METHOD_NAMES]
ANY += [(method, model) for method in THOROUGH for model in ("private", "dropped")]


@pytest.fixture(params=ANY, ids=lambda pair: f"{pair[1]}-{pair[0]}")
def any_lab(request: pytest.FixtureRequest) -> Lab:
    """Every method with buffers, some of them with buffers of every kind; the crosses have all kinds, and none."""
    return _make(*request.param)


@pytest.fixture
def buffered_lab(method_name: str) -> Lab:
    """Every method on a network with buffers and dropout, which has all that the perceptron has and more."""
    return _make(method_name, "shared")


@pytest.fixture(params=THOROUGH)
def telling_lab(request: pytest.FixtureRequest) -> Lab:
    """A few methods that differ most, on the perceptron: for what back ends promise of any."""
    return _make(request.param, "plain")


@pytest.fixture
def plain_lab(method_name: str) -> Lab:
    """Every method on the perceptron."""
    return _make(method_name, "plain")


@pytest.fixture
def spec() -> Callable[[Tree], Tree]:
    """Describe a tree: its structure, and the shape and dtype of each leaf."""
    return lambda tree: tree_map(lambda leaf: (tuple(leaf.shape), leaf.dtype), tree)
