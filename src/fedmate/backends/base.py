"""The interface of a back end: run a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from fedmate.core import BOOKKEEPING, Federation, Method, Tree, fold, num_bytes


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
        diagnostics: what the method wants recorded.
    """

    client: int
    valid: bool
    loss_before: float
    loss_after: float
    down: dict[str, int]
    up: dict[str, int]
    diagnostics: Tree


class View(NamedTuple):
    """The accuracies of one view.

    Attributes:
        clients: the ids of those evaluated.
        accuracies: `[clients, classes]`, shares in 0..1, NaN where the test split has no sample of a class.
    """

    clients: tuple[int, ...]
    accuracies: Tensor


class RoundResult(NamedTuple):
    """What a round gives.

    Attributes:
        server: its next state.
        reports: one per participant, in the order of their ids.
        views: by name, empty in a round that is not evaluated; `None` for a view the method does not have.
    """

    server: Tree
    reports: list[ClientReport]
    views: dict[str, View | None]


class Backend(ABC):
    """Holds the clients, their data and their states, and runs rounds.

    Args:
        method: what clients and server do.
        federation: who holds what.
        key: the experiment's randomness.
    """

    def __init__(self, method: Method, federation: Federation, key: Tensor) -> None:
        """Give every client its initial state."""
        self.method = method
        self.federation = federation
        self.key = key
        params = method.setup.model.init_params()
        self.clients = [method.init_client(params, fold(key, "client", i)) for i in range(len(federation.clients))]

    @abstractmethod
    def run_round(self, server: Tree, task: Round) -> RoundResult:
        """Train the participants, aggregate, and evaluate if asked to."""


def item_of(part: str) -> str:
    """Return the item of the ledger under which a part of a message is counted."""
    return "bookkeeping" if part in BOOKKEEPING else part


def itemise(message: Tree) -> dict[str, int]:
    """Return the bytes of a message by item."""
    items: dict[str, int] = {}
    for part, content in message.items():
        items[item_of(part)] = items.get(item_of(part), 0) + num_bytes({part: content})
    return items
