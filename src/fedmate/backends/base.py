"""The interface of a back end: run a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedmate.backends.client import accuracies
from fedmate.backends.precision import Precision, arithmetic
from fedmate.core import (
    BOOKKEEPING,
    ClientData,
    Federation,
    Method,
    Tree,
    all_finite,
    fold,
    num_bytes,
    remembered_features,
    select,
    where,
)

NOT_FINITE = "not finite"
"""Why a client is left out that answered, and answered in the right form."""


class Round(NamedTuple):
    """What the round loop asks for.

    Attributes:
        number: t, from 0.
        participants: the ids of the clients that take part, ascending.
        evaluate: whether to evaluate the views after this round.
    """

    number: int
    participants: tuple[int, ...]
    evaluate: bool


class ClientReport(NamedTuple):
    """What is known about one participant after a round.

    Attributes:
        client: its id.
        valid: whether it counted in the aggregation.
        loss_before, loss_after: mean cross-entropy on its own samples around local training.
        down, up: bytes that crossed, by item.
    """

    client: int
    valid: bool
    loss_before: float
    loss_after: float
    down: dict[str, int]
    up: dict[str, int]


class View(NamedTuple):
    """The accuracies of one view.

    Attributes:
        clients: the ids of those evaluated.
        accuracies: `[clients, 2, classes]`, shares in 0..1, NaN where the test split has no sample of a class: of the
            model as it is, and adjusted to the client's own distribution, the same unless the method does that.
    """

    clients: tuple[int, ...]
    accuracies: Tensor


class RoundResult(NamedTuple):
    """What a round gives.

    Attributes:
        server: its next state.
        reports: one per participant, in the order of their ids.
        views: by name, empty in a round that is not evaluated; `None` for a view the method does not have.
        held_out_clients: accuracies `[clients, 2, classes]` `before` and `after` adapting; empty unless evaluated.
        diagnostics: of the `clients`, a stack in the order of `reports`, and of the `server`.
        aggregated: false if the aggregate was not finite, so that the server kept its previous state.
    """

    server: Tree
    reports: list[ClientReport]
    views: dict[str, View | None]
    held_out_clients: dict[str, Tensor]
    diagnostics: Tree
    aggregated: bool


class Outcome(NamedTuple):
    """What a round leaves on the device; it becomes a `RoundResult` when it is read.

    Attributes:
        server: its next state.
        aggregated: false if the aggregate was not finite, so that the server kept its previous state.
        valid: `[participants]`, false for those that diverged.
        losses: `[participants, 2]`, before and after local training.
        views: accuracies `[clients, 2, classes]` by name, of the participants for `post`; empty unless evaluated.
        held_out_clients: accuracies `[clients, 2, classes]` `before` and `after` adapting, likewise.
        diagnostics: of the participants.
    """

    server: Tree
    aggregated: Tensor
    valid: Tensor
    losses: Tensor
    views: Tree
    held_out_clients: Tree
    diagnostics: Tree


class Messages(NamedTuple):
    """Bytes that crossed by item, for each participant."""

    down: list[dict[str, int]]
    up: list[dict[str, int]]


class Cohort(NamedTuple):
    """What the participants of a round give, in the order of their ids; tensors are stacks.

    Attributes:
        uploads: what crossed.
        valid: `[participants]`, false for those that diverged.
        losses: `[participants, 2]`, before and after local training.
        views: `post` accuracies `[participants, 2, classes]`, empty in a round that is not evaluated.
        diagnostics: what the method wants recorded.
        messages: how large they were.
    """

    uploads: Tree
    valid: Tensor
    losses: Tensor
    views: Tree
    diagnostics: Tree
    messages: Messages


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

    @classmethod
    @abstractmethod
    def refusal(cls, method: Method, federation: Federation, precision: Precision = "strict") -> str | None:
        """Say why this back end cannot run a method on a federation, or return `None` if it can."""

    @property
    @abstractmethod
    def clients(self) -> Sequence[Tree]:
        """The clients' states, by id. What was returned keeps its content: a round makes new states."""

    @abstractmethod
    def restore(self, states: Mapping[int, Tree]) -> None:
        """Put some clients back into the states they had at another time."""

    @classmethod
    def stored_client(cls, folder: Path, client: int, round_number: int, initial: Tree) -> Tree:
        """Return the state that a remote client of the run in `folder` keeps, or raise `UserError`."""
        raise NotImplementedError("the clients of this back end are in the checkpoint")

    @contextmanager
    def at_work(self, folder: Path) -> Iterator[None]:
        """Be ready for the rounds of the run in `folder`; what was started for them is ended."""
        yield

    @abstractmethod
    def train(self, server: Tree, task: Round) -> Cohort:
        """Send the downloads, train the participants, keep their states and collect what they send."""

    @abstractmethod
    def view(self, server: Tree, task: Round) -> Tree:
        """Return the accuracies `[clients, 2, classes]` of the views that each client has after the next broadcast."""

    @abstractmethod
    def adapt(self, server: Tree, task: Round) -> Tree:
        """Return the accuracies `[clients, 2, classes]` `before` and `after` each held-out client adapts."""

    def run_round(self, server: Tree, task: Round) -> RoundResult:
        """Train the participants, aggregate, and evaluate if asked to."""
        with torch.no_grad(), one_thread(), arithmetic(self.precision, self.key.device):
            outcome, messages = self.advance(server, task)
        # Only now, with the round done, are numbers read back from the device.
        losses, valid = outcome.losses.tolist(), outcome.valid.tolist()
        reports = [
            ClientReport(client, valid[row], losses[row][0], losses[row][1], messages.down[row], messages.up[row])
            for row, client in enumerate(task.participants)
        ]
        diagnostics = {"clients": outcome.diagnostics, "server": outcome.server.get("diagnostics", {})}
        views = _named_views(outcome.views, task, len(self.federation.clients))
        held_out, aggregated = outcome.held_out_clients, bool(outcome.aggregated)
        return RoundResult(outcome.server, reports, views, held_out, diagnostics, aggregated)

    def advance(self, server: Tree, task: Round) -> tuple[Outcome, Messages]:
        """Do a round's work on the device without reading anything back."""
        cohort = self.train(server, task)
        # The server's products are few, and every client builds on them.
        with arithmetic("strict", self.key.device):
            proposed = self.method.aggregate(server, cohort.uploads, self.participants(task), cohort.valid)
        finite = all_finite(proposed)
        server = where(finite, proposed, server)
        views, held_out = Tree(), Tree()
        if task.evaluate:
            views = {**self.view(server, task), **cohort.views, **self._global_view(server)}
            held_out = self.adapt(server, task) if self.federation.held_out_clients else {}
        outcome = Outcome(server, finite, cohort.valid, cohort.losses, views, held_out, cohort.diagnostics)
        return outcome, cohort.messages

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
        with remembered_features():
            found = [accuracies(self.method, params, data, self.federation.test, True) for data in self._distinct()]
        return {"global": torch.stack(found).expand(len(self.federation.clients), -1, -1)}

    def _distinct(self) -> Sequence[ClientData]:
        """Return the clients for whom one and the same model may answer differently: one stands for all if none do."""
        clients = self.federation.clients
        return clients if self.method.own_adjustment(clients[0], is_global=True) is not None else clients[:1]


def _named_views(views: Tree, task: Round, num_clients: int) -> dict[str, View | None]:
    """Say whose accuracies these are; a method without a global model has no such view."""
    if not task.evaluate:
        return {}
    everyone = tuple(range(num_clients))
    named: dict[str, View | None] = {
        name: View(task.participants if name == "post" else everyone, accuracies) for name, accuracies in views.items()
    }
    return {**named, "global": named.get("global")}


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


def itemise(message: Tree) -> dict[str, int]:
    """Return the bytes of a message by item."""
    items: dict[str, int] = {}
    for part, content in message.items():
        items[item_of(part)] = items.get(item_of(part), 0) + num_bytes({part: content})
    return items
