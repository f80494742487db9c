"""All clients at once: the functions of one client, mapped over stacks of clients by `torch.func.vmap`.

Unequal clients are padded to the largest and masked; that changes nothing, see `core`. On a GPU this is what makes a
federation fast, on a CPU it pays for small models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias, final, overload

import torch
from torch import Tensor
from torch.func import vmap

from fedmate.backends.base import Backend, Crossed, Round, RoundResult, itemise, one_thread, welcome
from fedmate.backends.capture import Replays, scalar, tape_for
from fedmate.backends.client import ClientResult, train_client, view_client, view_held_out_client
from fedmate.backends.networks import accelerate
from fedmate.backends.precision import Precision, arithmetic
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    PER_CLIENT,
    ClientData,
    EvaluationData,
    Federation,
    Method,
    Tree,
    Wire,
    fold,
    leaves,
    make_key,
    stack,
    stack_clients,
    tree_map,
    unstack,
)

ALIKE: dict[Precision, float] = {"strict": 0.01, "tf32": 0.1, "bf16": 0.3}
"""How far a trial round may lie from the loop's, relative to how far a round goes: rounding lets other pixels win."""


Local: TypeAlias = ClientData | None


class Structure(NamedTuple):
    """What rounds must have in common to do the same operations on the same shapes."""

    wire: Wire  # what crosses
    evaluated: Wire | None  # what the next broadcast would hold, if the round is evaluated
    participants: int  # how many


@final
class Vectorised(Backend):
    """All clients at once, on one device.

    On a GPU its network runs through kernels of our own where they fit, and rounds that come back are captured.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        key: Tensor,
        *,
        chunk_size: int | None = None,
        precision: Precision = "strict",
    ) -> None:
        super().__init__(method, federation, key, chunk_size=chunk_size, precision=precision)
        self.method = accelerate(method, federation, precision, self.warnings.append)
        self._stack = stack(self.initial_clients())
        self._data = stack_clients(federation.clients)
        self._local_tests = stack_clients(federation.local_tests) if federation.local_tests else None
        self._local_axes = PER_CLIENT if federation.local_tests else None
        self._replays = Replays(tape_for(key.device), self.warnings.append)
        self._crossed: dict[Structure, Crossed] = {}
        self._moment: Tree | None = None

    @classmethod
    def refusal(cls, method: Method, federation: Federation, precision: Precision = "strict") -> str | None:
        """Try a round of two unequal clients, where what vmap cannot map raises, and hold it against the loop."""
        small = _two_clients(federation, method.setup.training.batch_size)
        key = make_key(0, federation.test.y.device)
        start = method.init_server(method.setup.model.init_params(), 2, key)
        try:
            mapped = cls(method, small, key, precision=precision)
            found = mapped.run_round(start, Round(0, (0, 1), evaluate=True)).server
        except Exception as error:
            # A user's module can raise anything under vmap; if it is the module's own fault, the loop raises it too.
            return (str(error).strip() or repr(error)).splitlines()[0]
        # Rounded products differ with the size of a batch, in a deep network as much as mixing would show.
        with arithmetic("strict", key.device):
            mixes = method.setup.model.mixes_samples(small.clients[0].x)
        if mixes:
            return "a layer mixes samples, so that padding would change what it computes"
        loop = Sequential(method, small, key, precision=precision, workers=1)
        expected = loop.run_round(start, Round(0, (0, 1), evaluate=False)).server
        before = {"server": start, "clients": stack(loop.initial_clients())}
        after = {"server": expected, "clients": stack(list(loop.clients))}
        mapped_after = {"server": found, "clients": stack(list(mapped.clients))}
        if _distance(mapped_after, after) > _tolerance(precision, federation) * _distance(after, before):
            return "it computes something else with padded clients; losses must leave out what `batch.mask` leaves out"
        return None

    @property
    def clients(self) -> Sequence[Tree]:
        """The clients' states, by id, taken out of the stack one by one as they are asked for."""
        return Unstacked(self._stack, len(self.federation.clients))

    def restore(self, states: Mapping[int, Tree]) -> None:
        """Put some clients back into the states they had at another time."""
        if states:
            ids = torch.tensor(list(states), device=self.key.device)
            self._stack = _with_rows(self._stack, ids, stack(list(states.values())))

    def run_round(self, server: Tree, task: Round) -> RoundResult:
        """Do a round's work as a function of tensors, so that it can be replayed."""
        wire, t = self.method.wire, task.number
        # What the next broadcast holds matters only to those who are evaluated after it.
        structure = Structure(wire(t), wire(t + 1) if task.evaluate else None, len(task.participants))

        def compute(inputs: Tree) -> Tree:
            self._moment, self._stack = inputs["moment"], inputs["clients"]
            try:
                trained, self._crossed[structure] = self.train(inputs["server"], task)
                outcome = self.finish(inputs["server"], task, trained)
            finally:
                self._moment = None
            return {"outcome": outcome, "clients": self._stack}

        moment = {"participants": self.participants(task), "round": scalar(task.number, self.key)}
        training = self.method.setup.training
        if training.schedule != "constant":
            # An input, for a round that is replayed knows no number.
            factor = training.rate_factor(task.number, self.method.setup.rounds)
            moment["rate"] = self.federation.test.source.mean.new_full((), factor)
        before = self._stack
        inputs = {"server": server, "clients": before, "moment": moment}
        try:
            with torch.no_grad(), one_thread(), arithmetic(self.precision, self.key.device):
                outputs = self._replays.run(structure, compute, inputs)
        except BaseException:
            # A round that breaks off leaves nothing behind.
            self._stack = before
            raise
        self._stack = outputs["clients"]
        return self.read(task, outputs["outcome"], self._crossed[structure])

    def participants(self, task: Round) -> Tensor:
        """Return the ids of those who take part; inside a captured round they are an input like any other."""
        if self._moment is None:
            return super().participants(task)
        ids: Tensor = self._moment["participants"]
        return ids

    def train(self, server: Tree, task: Round) -> tuple[ClientResult, Crossed]:
        """Train the participants in one go, or in chunks."""
        ids = self.participants(task)

        rate = None if self._moment is None else self._moment.get("rate")

        def train_one(client_id: Tensor, client: Tree, data: ClientData, key: Tensor, local: Local) -> ClientResult:
            download, tests = self.download(server, task.number, client_id), EvaluationData(self.federation.test, local)
            asked = tests if task.evaluate else None
            return train_client(self.method, task.number, client, download, data, key, asked, rate)

        trained: ClientResult = vmap(train_one, (0, 0, PER_CLIENT, 0, self._local_axes), chunk_size=self.chunk_size)(
            ids, *self._rows(task, ids), self._local(ids)
        )
        # All clients at once is the common case, and needs no copy.
        if len(ids) == len(self.federation.clients):
            self._stack = trained.client
        else:
            self._stack = _with_rows(self._stack, ids, trained.client)
        # Messages have one shape for all clients, so one of them tells the size of each.
        crossed = itemise(self.download(server, task.number, ids[0])), itemise(unstack(trained.upload, 0))
        return trained, [crossed] * len(ids)

    def view(self, server: Tree, task: Round) -> Tree:
        """Evaluate every client after a download made for that alone, which is not counted."""
        ids = torch.arange(len(self.federation.clients), device=self.key.device)

        def view(client_id: Tensor, client: Tree, data: ClientData, key: Tensor, local: Local) -> Tree:
            download = self.download(server, task.number + 1, client_id)
            tests = EvaluationData(self.federation.test, local)
            return view_client(self.method, client, download, data, key, tests)[1]

        views: Tree = vmap(view, (0, 0, PER_CLIENT, 0, self._local_axes), chunk_size=self.chunk_size)(
            ids, *self._rows(task, ids), self._local(ids)
        )
        return views

    def adapt(self, server: Tree, task: Round) -> Tree:
        """Let held-out clients adapt at once, and evaluate them."""
        download = welcome(self.method, server, self.key.device)
        ids = torch.arange(len(self.federation.held_out_clients), device=self.key.device)

        def adapt(client: Tree, data: ClientData, key: Tensor, local: Local) -> Tree:
            tests = EvaluationData(self.federation.test, local)
            return view_held_out_client(self.method, client, download, data, key, tests)

        states, data = stack(self.initial_held_out_clients()), stack_clients(self.federation.held_out_clients)
        keys = fold(self.key, "newcomer round", self.number(task), ids)
        local = self._local(ids + len(self.federation.clients))
        views: Tree = vmap(adapt, (0, PER_CLIENT, 0, self._local_axes), chunk_size=self.chunk_size)(
            states, data, keys, local
        )
        return views

    def number(self, task: Round) -> int | Tensor:
        """Return the number of a round; inside a captured one it is an input."""
        return task.number if self._moment is None else self._moment["round"]

    def _local(self, ids: Tensor) -> Local:
        """Return some clients' own samples for testing."""
        return self._local_tests and self._local_tests.map(lambda leaf: leaf[ids])

    def _rows(self, task: Round, ids: Tensor) -> tuple[Tree, ClientData, Tensor]:
        """Return the states, the data and the keys of some clients."""
        keys = fold(self.key, "round", self.number(task), ids)
        if len(ids) == len(self.federation.clients):
            return self._stack, self._data, keys
        return tree_map(lambda leaf: leaf[ids], self._stack), self._data.map(lambda leaf: leaf[ids]), keys


@final
class Unstacked(Sequence[Tree]):
    """The clients of a stack, by id."""

    def __init__(self, stacked: Tree, size: int) -> None:
        self._stack = stacked
        self._size = size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Tree: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tree]: ...
    def __getitem__(self, index: int | slice) -> Tree | Sequence[Tree]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"client {index} of {self._size}")
        return unstack(self._stack, index)


def _with_rows(stacked: Tree, ids: Tensor, rows: Tree) -> Tree:
    """Replace some clients of a stack; who holds the old stack keeps it."""
    return tree_map(lambda leaf, new: leaf.index_copy(0, ids, new), stacked, rows)


def _distance(one: Tree, other: Tree) -> float:
    """Return how far two trees lie apart, in what is a number in both."""

    def squares(a: Tensor, b: Tensor) -> Tensor:
        apart = (a.double() - b.double()) if a.is_floating_point() else torch.zeros((), device=a.device).double()
        return apart.nan_to_num(0, 0, 0).square().sum()

    found = list(leaves(tree_map(squares, one, other)))
    return float(torch.stack(found).sum().sqrt()) if found else 0.0


def _tolerance(precision: Precision, federation: Federation) -> float:
    """Return how far apart the two may lie: a GPU alone rounds numbers before it multiplies, and of float32 alone."""
    mean = federation.test.source.mean
    rounds = mean.device.type == "cuda" and mean.dtype == torch.float32
    return ALIKE[precision if rounds else "strict"]


def _two_clients(federation: Federation, batch_size: int) -> Federation:
    """Return a full batch of the largest client, and half of it as a second client that has to be padded."""
    largest = max(federation.clients, key=lambda data: len(data.y))
    rows = min(batch_size, len(largest.y))
    clients = (_first(largest, rows), _first(largest, max(1, rows // 2)))
    return Federation(clients, _first(federation.test, 2), federation.num_classes)


def _first(data: ClientData, count: int) -> ClientData:
    return data.map(lambda leaf: leaf[:count])
