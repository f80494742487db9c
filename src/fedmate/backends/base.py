"""The interface of a back end: run a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedmate.backends.client import ClientResult, judge, view_held_out_client
from fedmate.backends.precision import Precision, arithmetic
from fedmate.core import (
    BOOKKEEPING,
    Federation,
    Method,
    Tree,
    all_finite,
    fold,
    num_bytes,
    remembered_features,
    select,
    stack,
    tree_map,
    unmapped,
    where,
)
from fedmate.errors import UserError

NOT_FINITE = "not finite"
"""Why a client is left out that answered, and answered in the right form."""

Crossed: TypeAlias = list[tuple[dict[str, int], dict[str, int]]]
"""Bytes down and up by item, for each participant."""


class Round(NamedTuple):
    """A round to run: its number from 0, the ids of its participants, ascending, and whether views are evaluated."""

    number: int
    participants: tuple[int, ...]
    evaluate: bool


class ClientReport(NamedTuple):
    """What is known about one participant after a round."""

    client: int
    valid: bool
    """Whether it counted in the aggregation."""
    loss_before: float
    loss_after: float
    down: dict[str, int]
    """Bytes that crossed, by item."""
    up: dict[str, int]


class View(NamedTuple):
    """What one view is judged by."""

    clients: tuple[int, ...]
    """The ids of those evaluated."""
    tests: Tree
    """Of each test the task's statistics, `[clients, ...]`, by name."""


class RoundResult(NamedTuple):
    """What a round gives."""

    server: Tree
    """Its next state, the previous one unless `aggregated`."""
    reports: list[ClientReport]
    """One per participant, in the order of their ids."""
    views: dict[str, View | None]
    """By name, empty in a round that is not evaluated; `None` for a view the method does not have."""
    held_out_clients: dict[str, View]
    """`before` and `after` adapting; empty unless evaluated."""
    diagnostics: Tree
    """Of the `clients`, a stack in the order of `reports`, and of the `server`."""
    aggregated: bool
    """False if the aggregate was not finite."""


class Backend(ABC):
    """Holds the clients, their data and their states, and runs rounds.

    Args:
        method: what clients and server do.
        federation: who holds what.
        key: the experiment's randomness.
        chunk_size: the most clients at once, to bound memory; all of them if `None`.
        precision: of products on a GPU.

    Attributes:
        warnings: sentences for the user that have not been shown yet.
        reasons: why clients did not count in the last round, where it is something else than `NOT_FINITE`.
        min_clients, patience: how many clients must answer in a round, and how many seconds to wait for the next
            answer, where clients are remote.
        inputs: data and a network that came from Python, for clients in other processes.
    """

    is_remote: ClassVar[bool] = False
    """Whether clients keep their states themselves: a run then saves the server's after every round, and no others."""

    def __init__(
        self,
        method: Method,
        federation: Federation,
        key: Tensor,
        *,
        chunk_size: int | None = None,
        precision: Precision = "strict",
    ) -> None:
        self.chunk_size = chunk_size
        self.precision: Precision = precision
        self.warnings: list[str] = []
        self.reasons: dict[int, str] = {}
        self.min_clients, self.patience = 1, 600.0
        self.inputs: Any = None
        self.method = method
        self.federation = federation
        self.key = key
        # Empty where clients keep their states themselves.
        self._states: tuple[Tree, ...] = tuple({} for _ in federation.clients)
        self._map: Callable[..., Iterable[Any]] = map

    @classmethod
    def refusal(cls, method: Method, federation: Federation, precision: Precision = "strict") -> str | None:
        """Say why this back end cannot run a method on a federation, or return `None` if it can."""
        return None

    @property
    def clients(self) -> Sequence[Tree]:
        """The clients' states, by id. What was returned keeps its content: a round makes new states."""
        return self._states

    def restore(self, states: Mapping[int, Tree]) -> None:
        """Put some clients back into the states they had at another time."""
        self._states = tuple(states.get(i, state) for i, state in enumerate(self._states))

    @classmethod
    def stored_client(cls, folder: Path, client: int, round_number: int, initial: Tree) -> Tree:
        """Return the state that a remote client of the run in `folder` keeps, or raise `UserError`."""
        raise UserError(
            f"`{folder}` has no states of clients: each site keeps its own, and its model; ask there with "
            "`fedmate deploy status`."
        )

    @contextmanager
    def at_work(self, folder: Path) -> Iterator[None]:
        """Be ready for the rounds of the run in `folder`; what was started for them is ended."""
        yield

    @abstractmethod
    def train(self, server: Tree, task: Round) -> tuple[ClientResult, Crossed]:
        """Train the participants and keep their states; return what they give as stacks, and what crossed."""

    @abstractmethod
    def view(self, server: Tree, task: Round) -> Tree:
        """Return the statistics of the views that each client has after the next broadcast, as stacks."""

    def adapt(self, server: Tree, task: Round) -> Tree:
        """Return the statistics `before` and `after` each held-out client adapts, as stacks."""
        states, download = self.initial_held_out_clients(), welcome(self.method, server, self.key.device)

        def adapt(i: int) -> Tree:
            data, key = self.federation.held_out_clients[i], fold(self.key, "newcomer round", task.number, i)
            tests = self.federation.tests(len(self.federation.clients) + i)
            return view_held_out_client(self.method, states[i], download, data, key, tests)

        return stack(list(self._map(adapt, range(len(states)))))

    def run_round(self, server: Tree, task: Round) -> RoundResult:
        """Train the participants, aggregate, and evaluate if asked to; nothing in it is mapped."""
        before = self.clients
        try:
            with torch.no_grad(), one_thread(), arithmetic(self.precision, self.key.device), unmapped():
                trained, crossed = self.train(server, task)
                outcome = self.finish(server, task, trained)
        except BaseException:
            # A round that breaks off leaves nothing behind.
            self.restore(dict(enumerate(before)))
            raise
        return self.read(task, outcome, crossed)

    def finish(self, server: Tree, task: Round, trained: ClientResult) -> Tree:
        """Aggregate and evaluate on the device without reading anything back; return what `read` needs."""
        # The server's products are few, and every client builds on them.
        with arithmetic("strict", self.key.device):
            proposed = self.method.aggregate(
                server,
                trained.upload,
                self.participants(task),
                trained.valid,
                fold(self.key, "aggregate", self.number(task)),
            )
        finite = all_finite(proposed)
        server = where(finite, proposed, server)
        views, held_out = Tree(), Tree()
        if task.evaluate:
            views = {**self.view(server, task), **trained.views, **self._global_view(server)}
            held_out = self.adapt(server, task) if self.federation.held_out_clients else {}
        return {
            "server": server,
            "aggregated": finite,
            "valid": trained.valid,
            "loss": trained.loss,
            "views": views,
            "held_out_clients": held_out,
            "diagnostics": trained.diagnostics,
            "declared": trained.declared,
        }

    def read(self, task: Round, outcome: Tree, crossed: Crossed) -> RoundResult:
        """Read back from the device what a round has left there."""
        server, losses, valid = outcome["server"], outcome["loss"].tolist(), outcome["valid"].tolist()
        declared = tree_map(lambda numbers: numbers.tolist(), outcome["declared"])
        reports = [
            ClientReport(
                client,
                counted,
                before,
                after,
                _with_declared(down, declared["down"], i),
                _with_declared(up, declared["up"], i),
            )
            for i, (client, counted, (before, after), (down, up)) in enumerate(
                zip(task.participants, valid, losses, crossed, strict=True)
            )
        ]
        everyone = tuple(range(len(self.federation.clients)))
        views: dict[str, View | None] = {
            name: View(task.participants if name == "post" else everyone, tests)
            for name, tests in outcome["views"].items()
        }
        if task.evaluate:
            views.setdefault("global", None)
        diagnostics = {"clients": outcome["diagnostics"], "server": server.get("diagnostics", {})}
        away = tuple(range(len(self.federation.held_out_clients)))
        held_out = {name: View(away, tests) for name, tests in outcome["held_out_clients"].items()}
        return RoundResult(server, reports, views, held_out, diagnostics, bool(outcome["aggregated"]))

    def number(self, task: Round) -> int | Tensor:
        """Return the number of a round, which is an input like any other inside a captured one."""
        return task.number

    def participants(self, task: Round) -> Tensor:
        """Return the ids of those who take part, on the device."""
        return torch.tensor(task.participants, device=self.key.device)

    def initial_clients(self) -> list[Tree]:
        """Return every client's state before its first round."""
        params = self.method.setup.model.init_params()
        keys = [fold(self.key, "client", i) for i in range(len(self.federation.clients))]
        return [self.method.init_client(params, key) for key in keys]

    def initial_held_out_clients(self) -> list[Tree]:
        """Return every held-out client's state before its first message."""
        return [initial_held_out_client(self.method, self.key, i) for i in range(len(self.federation.held_out_clients))]

    def download(self, server: Tree, round_number: int, client_id: Tensor) -> Tree:
        """Return the parts of the message to a client that cross in a round."""
        return select(self.method.download(server, client_id), self.method.wire(round_number).down)

    def _global_view(self, server: Tree) -> Tree:
        model, params = self.method.setup.model, self.method.global_params(server)
        # With private buffers no single set of statistics fits the aggregated model.
        private = model.buffer_policy == "private" and bool(model.init_params()["buffers"])
        # What lies with sites is tested there, in the models that they hold.
        if params is None or private or self.federation.at_sites:
            return {}
        clients, tests = enumerate(self.federation.clients), self.federation.tests
        with remembered_features():
            found = [judge(self.method, params, data, tests(i), is_global=True, whole=True) for i, data in clients]
        return {"global": stack(found)}


def initial_held_out_client(method: Method, key: Tensor, number: int) -> Tree:
    """Return the state of a held-out client before its first message; they are numbered on their own."""
    return method.init_client(method.setup.model.init_params(), fold(key, "newcomer", number))


def welcome(method: Method, server: Tree, device: torch.device) -> Tree:
    """Return the first message to a held-out client: what a client receives in its first round."""
    return select(method.download(server, torch.tensor(-1, device=device)), method.wire(0).down)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from splitting an operation over threads: sums would depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def item_of(part: str) -> str:
    """Return the item of the communication cost under which a part of a message is counted."""
    return "bookkeeping" if part in BOOKKEEPING else part


def _with_declared(items: dict[str, int], declared: Mapping[str, list[int]], row: int) -> dict[str, int]:
    """Return the bytes of a message by item, as the message says where it says it."""
    return {item: declared[item][row] if item in declared else size for item, size in items.items()}


def itemise(message: Tree) -> dict[str, int]:
    """Return the bytes of a message by item."""
    items: dict[str, int] = {}
    for part, content in message.items():
        items[item_of(part)] = items.get(item_of(part), 0) + num_bytes({part: content})
    return items
