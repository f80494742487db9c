"""Requests and answers on their way: over Flower's grid, which knows nodes, to clients, which have numbers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar, final

from fedmate import __version__
from fedmate.errors import StoppedError
from fedmate.flower.messages import (
    Answer,
    ErrorReply,
    Introduction,
    PublicError,
    Reply,
    Request,
    read_reply,
    sentence,
    write_request,
)

if TYPE_CHECKING:
    from flwr.app import RecordDict
    from flwr.serverapp import Grid

PAUSE, BRIEF = 1.0, 0.05
"""Seconds between looks for nodes and answers from elsewhere, and from this machine."""

SLACK = 60.0
"""Seconds that a message stays valid after the wait for its answer has ended: expiry is no error then."""

EMPTY_POOL = "pop from empty list"
"""Flower's error for a message for which no worker is left: a consequence of why a worker was lost."""

Contents: TypeAlias = "dict[int, RecordDict | ErrorReply]"
"""Contents of messages by node; an error where nothing came back."""

Content = TypeVar("Content", Answer, Introduction)


class LostError(StoppedError):
    """A federation that cannot go on: a simulation lost a worker or ended by itself, or Flower is not reached."""


class Transport(ABC):
    """Carries requests to clients, and answers back."""

    @abstractmethod
    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        """Return the reply of each client that is asked; wait for absent ones until as many as `wanted` are present."""


@final
class GridTransport(Transport):
    """Carries requests of a run, which has a token, to Flower's nodes.

    It waits `patience` seconds for nodes, and for the next answer; then missing clients are left out. In a simulation,
    where `alive` tells whether it still runs, it waits for all clients.
    """

    def __init__(
        self, grid: Grid, experiment: str, *, patience: float, alive: Callable[[], bool] | None = None
    ) -> None:
        self.grid, self.experiment, self.patience = grid, experiment, patience
        self._alive = alive
        # Of each node the client that it says it is, or why it says none; and since when it is present.
        self._known: dict[int, int | ErrorReply] = {}
        self._since: dict[int, str] = {}

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        """Return the reply of each client; undeclared content, a late answer or an error becomes an error reply."""
        if not requests:
            return {}
        first, deadline = next(iter(requests.values())), time.monotonic() + self.patience
        enough = len(requests) if self._alive else min(wanted, len(requests))
        while True:
            found = self._find(requests)
            nodes = {client: node for client, node in found.items() if isinstance(node, int)}
            if len(nodes) >= enough or time.monotonic() > deadline:
                break
            self._rest()
        contents = {node: write_request(self.experiment, client, requests[client]) for client, node in nodes.items()}
        replies = self._exchange(contents, "train" if first.kind == "train" else "evaluate", str(first.round + 1))
        return {
            client: node if isinstance(node, ErrorReply) else _read(replies[node], Answer)
            for client, node in found.items()
        }

    # -------------------- which node is which client

    def _find(self, clients: Collection[int]) -> dict[int, int | ErrorReply]:
        """Return the node of each client, and ask unknown nodes for their client if one is missing."""
        from flwr.app import RecordDict

        # A node that went and came back may be another.
        before, self._since = self._since, self._present()
        same = {node for node, since in self._since.items() if since == before.get(node)}
        self._known = {node: known for node, known in self._known.items() if node in same and isinstance(known, int)}

        def all_known(replies: Contents) -> bool:
            for node, reply in replies.items():
                said = _read(reply, Introduction)
                if isinstance(said, Introduction) and said.fedmate != __version__:
                    # It would compute something else.
                    said = ErrorReply(f"client {said.partition} runs fedmate {said.fedmate}, the server {__version__}")
                self._known[node] = said if isinstance(said, ErrorReply) else said.partition
            return all(isinstance(self._node_of(client), int) for client in clients)

        if not all_known({}):
            new: Contents = {node: RecordDict() for node in self._since if node not in self._known}
            # A node that is not needed may be training, and answers one message after the other.
            all_known(self._exchange(new, "query", "query", all_known))
        return {client: self._node_of(client) for client in clients}

    def _present(self) -> dict[int, str]:
        """Return since when each connected node is present."""
        with reached():
            return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _node_of(self, client: int) -> int | ErrorReply:
        nodes = [node for node, known in self._known.items() if known == client]
        if len(nodes) == 1:
            return nodes[0]
        if nodes:
            return ErrorReply(f"{len(nodes)} nodes say that they are this client")
        error = next((known for known in self._known.values() if isinstance(known, ErrorReply)), None)
        example = f" (one says: {error.reason})" if error else ""
        return ErrorReply(f"no node says that it is this client{example}")

    # -------------------- messages

    def _exchange(
        self, contents: Contents, kind: str, group: str, is_enough: Callable[[Contents], bool] = lambda _: False
    ) -> Contents:
        """Send a message to each node, and return the replies, or those until they are enough."""
        from flwr.app import Message

        sent: dict[str, int] = {}
        replies: Contents = {}
        for node, content in contents.items():
            message = Message(content, node, kind, group_id=group, ttl=self.patience * len(contents) + SLACK)
            # One at a time: together they may be more than Flower takes.
            with reached():
                number = next(iter(self.grid.push_messages([message])), None)
            if number:
                sent[number] = node
            else:
                replies[node] = ErrorReply("Flower did not take the message")
        last = time.monotonic()
        while sent and not is_enough(replies) and time.monotonic() < last + self.patience:
            for number, reply in self._pull(sent).items():
                replies[sent.pop(number)] = reply
                last = time.monotonic()
            if sent:
                self._rest()
        return replies | {node: ErrorReply(f"no answer in {self.patience:g} s") for node in sent.values()}

    def _pull(self, sent: Mapping[str, int]) -> dict[str, RecordDict | ErrorReply]:
        """Return the replies that have arrived, by the number of the message that they answer."""
        # Before pulling: an answer that a node gave before it went away still counts.
        present = self._since if self._alive else self._present()
        lost = ErrorReply("it was away in between, and what it had been asked is lost")
        returned = [n for n, node in sent.items() if present.get(node, self._since[node]) != self._since[node]]
        found: dict[str, RecordDict | ErrorReply] = dict.fromkeys(returned, lost)
        errors: list[str] = []
        # One at a time: a message that Flower cannot unpack spoils the others.
        for number in sent:
            try:
                reply = next(iter(self.grid.pull_messages([number])), None)
            except Exception as error:
                # This raises if Flower is gone; otherwise the message is at fault.
                self._present()
                found[number] = ErrorReply(f"answer refused, it cannot be unpacked ({type(error).__name__})")
                continue
            if reply is not None and reply.has_error():
                errors.append(reply.error.reason or f"error {reply.error.code}")
                found[number] = ErrorReply(f"Flower reports: {sentence(errors[-1])}")
            elif reply is not None:
                found[number] = reply.content
        if errors and self._alive:
            # Clients report their errors in answers, so a worker is lost, and with it all of its messages from now on.
            cause = min(errors, key=lambda reason: EMPTY_POOL in reason)
            raise LostError(f"a worker process of the simulation has died or failed ({sentence(cause)})")
        return found

    def _rest(self) -> None:
        if self._alive is not None and not self._alive():
            raise LostError("the simulation has ended by itself")
        time.sleep(PAUSE if self._alive is None else BRIEF)


@contextmanager
def reached() -> Iterator[None]:
    """Turn the failure of a grid, which may raise anything, into `LostError`."""
    try:
        yield
    except Exception as error:
        raise LostError(f"Flower cannot be reached ({type(error).__name__}: {sentence(str(error))})") from error


def _read(reply: RecordDict | ErrorReply, kind: type[Content]) -> Content | ErrorReply:
    """Return the content of a reply; nothing that a node sends may end the round of the others."""
    if isinstance(reply, ErrorReply):
        return reply
    name = kind.__name__.lower()
    try:
        found = read_reply(reply)
    except PublicError as error:
        return ErrorReply(f"{name} refused, {error}")
    except Exception as error:
        return ErrorReply(f"{name} refused, it cannot be read ({type(error).__name__})")
    return found if isinstance(found, kind | ErrorReply) else ErrorReply(f"{name} refused, it is something else")
