"""Requests and answers on their way: over Flower's grid, which knows nodes, to clients, which have numbers."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar, final

from fedmate import __version__
from fedmate.errors import StoppedError
from fedmate.flower.messages import (
    ErrorReply,
    Introduction,
    MessageError,
    Reply,
    Request,
    read_answer,
    read_introduction,
    sentence,
    write_request,
)

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

PAUSE = 1.0
"""Seconds between looks for nodes and answers from elsewhere."""

BRIEF = 0.05
"""Seconds between looks for answers from this machine."""

SLACK = 60.0
"""Seconds that a message stays valid after the wait for its answer has ended: expiry is no error then."""

EMPTY_POOL = "pop from empty list"
"""Flower's error for a message for which no worker is left."""

_RAISED = re.compile(r"^<class '|'>:<'|'>$")
"""The frame that Flower puts around an error: its type and its text."""

Contents: TypeAlias = "dict[int, RecordDict | ErrorReply]"
"""Contents of messages by node; an error where nothing came back."""

Content = TypeVar("Content")


class LostError(StoppedError):
    """A federation that cannot go on: a simulation lost a worker or ended by itself, or Flower is not reached."""


class Transport(ABC):
    """Carries requests to clients, and answers back."""

    @abstractmethod
    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        """Return the reply of each client that is asked; wait for absent ones until as many as `wanted` are present."""


@final
class GridTransport(Transport):
    """Carries requests to Flower's nodes.

    Args:
        grid: Flower's.
        experiment: the token of the run.
        patience: seconds to wait for nodes, and for the next answer; after that, missing clients are left out.
        alive: in a simulation, whether it still runs. All clients are waited for there.
    """

    def __init__(
        self, grid: Grid, experiment: str, *, patience: float, alive: Callable[[], bool] | None = None
    ) -> None:
        self.grid, self.experiment, self.patience = grid, experiment, patience
        self._alive = alive
        self._known: dict[int, Introduction | ErrorReply] = {}
        self._since: dict[int, str] = {}

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        """Return the reply of each client; undeclared content, a late answer or an error becomes an error reply."""
        if not requests:
            return {}
        first = next(iter(requests.values()))
        found = self._find(requests, wanted if self._alive is None else len(requests))
        nodes = {client: node for client, node in found.items() if isinstance(node, int)}
        contents = {node: write_request(self.experiment, client, requests[client]) for client, node in nodes.items()}
        replies = self._exchange(contents, "train" if first.kind == "train" else "evaluate", str(first.round + 1))
        return {
            client: node if isinstance(node, ErrorReply) else _read("answer", replies[node], read_answer)
            for client, node in found.items()
        }

    # -------------------- which node is which client

    def _find(self, clients: Collection[int], wanted: int) -> dict[int, int | ErrorReply]:
        """Return the node of each client as soon as `wanted` are present, or after `patience` seconds."""
        deadline = time.monotonic() + self.patience
        while True:
            self._meet(clients)
            found = {client: self._node_of(client) for client in clients}
            present = sum(isinstance(node, int) for node in found.values())
            if present >= min(wanted, len(found)) or time.monotonic() > deadline:
                return found
            self._rest()

    def _meet(self, clients: Collection[int]) -> None:
        """Ask unknown nodes for their client if one is missing; a node that went and came back may be another."""
        from flwr.app import RecordDict

        present = self._present()
        self._known = {
            node: known
            for node, known in self._known.items()
            if isinstance(known, Introduction) and present.get(node) == self._since[node]
        }
        self._since = present
        if any(isinstance(self._node_of(client), ErrorReply) for client in clients):
            new: Contents = {node: RecordDict() for node in present if node not in self._known}

            def all_known(replies: Contents) -> bool:
                self._known |= {node: _introduction(reply) for node, reply in replies.items()}
                return all(isinstance(self._node_of(client), int) for client in clients)

            # A node that is needed may be training, and answers one message after the other.
            all_known(self._exchange(new, "query", "query", all_known))

    def _present(self) -> dict[int, str]:
        """Return since when each connected node is present."""
        with reached():
            return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _node_of(self, client: int) -> int | ErrorReply:
        nodes = [n for n, known in self._known.items() if isinstance(known, Introduction) and known.partition == client]
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
        if self._alive is not None:
            with reached():
                pulled = list(self.grid.pull_messages(set(sent)))
            _check_workers(pulled)
            return {str(reply.metadata.reply_to_message_id): reply.content for reply in pulled}
        # Before pulling: an answer that a node gave before it went away still counts.
        present = self._present()
        lost = ErrorReply("it was away in between, and what it had been asked is lost")
        returned = [n for n, node in sent.items() if present.get(node, self._since[node]) != self._since[node]]
        found = {number: reply for number in sent if (reply := self._pull_one(number)) is not None}
        return {**dict.fromkeys(returned, lost), **found}

    def _pull_one(self, number: str) -> RecordDict | ErrorReply | None:
        """Return a reply if it is there; one at a time, because one that Flower cannot unpack spoils the others."""
        try:
            reply = next(iter(self.grid.pull_messages([number])), None)
        except Exception as error:
            # This raises if Flower is gone; otherwise the message is at fault.
            self._present()
            return ErrorReply(f"answer refused, it cannot be unpacked ({type(error).__name__})")
        if reply is not None and reply.has_error():
            return ErrorReply(f"Flower reports: {sentence(_reason(reply))}")
        return None if reply is None else reply.content

    def _rest(self) -> None:
        if self._alive is not None and not self._alive():
            raise LostError("the simulation has ended by itself")
        time.sleep(PAUSE if self._alive is None else BRIEF)


def _check_workers(replies: Collection[Message]) -> None:
    """Raise `LostError` if a simulation reports an error: clients report theirs in answers, so a worker is lost.

    Flower loses its messages from then on.
    """
    reasons = [_reason(reply) for reply in replies if reply.has_error()]
    if reasons:
        # The empty pool is a consequence, and not the cause.
        reason = min(reasons, key=lambda reason: EMPTY_POOL in reason)
        lines = _RAISED.sub(": ", reason).strip(": \n").splitlines()
        # Of an error that was raised in a worker, the last line has type and text.
        cause = lines[-1] if lines and "RayTaskError" in lines[0] else "\n".join(lines)
        raise LostError(f"a worker process of the simulation has died or failed ({sentence(cause)})")


def _reason(reply: Message) -> str:
    return reply.error.reason or f"error {reply.error.code}"


@contextmanager
def reached() -> Iterator[None]:
    """Turn the failure of a grid, which may raise anything, into `LostError`."""
    try:
        yield
    except Exception as error:
        raise LostError(f"Flower cannot be reached ({type(error).__name__}: {sentence(str(error))})") from error


def _read(
    name: str, reply: RecordDict | ErrorReply, read: Callable[[RecordDict], Content | ErrorReply]
) -> Content | ErrorReply:
    """Return the content of a reply; nothing that a node sends may end the round of the others."""
    if isinstance(reply, ErrorReply):
        return reply
    try:
        return read(reply)
    except MessageError as error:
        return ErrorReply(f"{name} refused, {error}")
    except Exception as error:
        return ErrorReply(f"{name} refused, it cannot be read ({type(error).__name__})")


def _introduction(reply: RecordDict | ErrorReply) -> Introduction | ErrorReply:
    """Return a node's introduction; one with another fedmate would compute something else."""
    node = _read("introduction", reply, read_introduction)
    if isinstance(node, Introduction) and node.fedmate != __version__:
        return ErrorReply(f"client {node.partition} runs fedmate {node.fedmate}, the server {__version__}")
    return node
