"""Requests and answers over Flower's grid: which node is which client, and what came back from whom."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

from fedmate.errors import StoppedError
from fedmate.flower.messages import ErrorReply, Reply, Request, Transport
from fedmate.flower.wire import Introduction, Order, WireError, read_answer, read_introduction, sentence, write_request

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

PAUSE = 1.0
"""Seconds between looks for nodes and answers from elsewhere."""

GRACE = 60.0
"""Seconds for a node to say who it is, once all clients that are asked for are known."""

BRIEF = 0.05
"""Seconds between looks for answers from this machine."""

SLACK = 60.0
"""Seconds that a message stays valid after nobody waits for its answer any longer: expiry is no error then."""

EMPTY_POOL = "pop from empty list"
"""What Flower says to a message for which no worker is left."""

_RAISED = re.compile(r"^<class '|'>:<'|'>$")
"""What Flower puts around an error that was raised: its type and its text."""


class LostError(StoppedError):
    """A federation that cannot go on: a simulation has lost a worker or ended by itself, or Flower is not reached."""


Replies: TypeAlias = dict[int, "RecordDict | ErrorReply"]
"""What came back, by node."""


class _Exchange(NamedTuple):
    """How messages travel: their type, what groups them, and how long to wait for the next answer after others."""

    kind: str
    group: str
    patience: Callable[[Replies], float]


@final
class GridTransport(Transport):
    """Brings requests to nodes.

    Args:
        grid: Flower's.
        experiment: what tells the experiment from others.
        patience: seconds to wait for nodes, and for the next answer; then those that are missing are given up.
        alive: in a simulation, whether it still runs. There everybody is waited for, and an error that is not a
            client's own means that a worker died, whose messages Flower would lose from then on: `LostError`.
    """

    def __init__(
        self,
        grid: Grid,
        experiment: str,
        *,
        patience: float,
        alive: Callable[[], bool] | None = None,
    ) -> None:
        """Know nobody yet."""
        self.grid, self.experiment = grid, experiment
        self.patience, self._alive = patience, alive
        self._nodes: dict[int, Introduction | ErrorReply] = {}
        self._since: dict[int, str] = {}

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        """Return what each client answered; what is not declared, late or an error is an error."""
        if not requests:
            return {}
        first = next(iter(requests.values()))
        found = self._find(requests, wanted if self._alive is None else len(requests))
        nodes = {client: node for client, node in found.items() if isinstance(node, int)}
        contents = {
            node: write_request(Order(self.experiment, client, requests[client])) for client, node in nodes.items()
        }
        kind = "train" if first.kind == "train" else "evaluate"
        replies = self._exchange(contents, _Exchange(kind, str(first.round + 1), lambda _: self.patience))
        answers: dict[int, Reply] = {c: error for c, error in found.items() if isinstance(error, ErrorReply)}
        answers |= {client: _read(replies[node], requests[client]) for client, node in nodes.items()}
        return {client: answers[client] for client in requests}

    # -------------------- who is who

    def _find(self, clients: Collection[int], wanted: int) -> dict[int, int | ErrorReply]:
        """Return the node of each client, once as many as wanted are there or patience has ended."""
        # Who could not say who it is may know by now.
        self._nodes = {node: known for node, known in self._nodes.items() if isinstance(known, Introduction)}
        deadline = time.monotonic() + self.patience
        while True:
            self._meet(self._present(), clients)
            found = {client: self._node_of(client) for client in clients}
            there = sum(isinstance(node, int) for node in found.values())
            if there >= min(wanted, len(found)) or time.monotonic() > deadline:
                return found
            self._rest()

    def _present(self) -> dict[int, str]:
        """Return since when each node is there that is there."""
        with reached():
            return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _meet(self, nodes: Mapping[int, str], clients: Collection[int]) -> None:
        """Ask new nodes who they are, and forget those that went: they may have come back as somebody else."""
        from flwr.app import RecordDict

        self._nodes = {node: known for node, known in self._nodes.items() if nodes.get(node) == self._since[node]}
        self._since = dict(nodes)
        new = [node for node in nodes if node not in self._nodes]

        def patience(replies: Replies) -> float:
            # A node answers one message after the other, and who is needed may be training.
            known = [*self._nodes.values(), *map(_introduced, replies.values())]
            missing = {*clients} - {one.partition for one in known if isinstance(one, Introduction)}
            return self.patience if missing else min(self.patience, GRACE)

        replies = self._exchange({node: RecordDict() for node in new}, _Exchange("query", "query", patience))
        self._nodes |= {node: _introduced(reply) for node, reply in replies.items()}

    def _node_of(self, client: int) -> int | ErrorReply:
        nodes = [
            node for node, known in self._nodes.items() if isinstance(known, Introduction) and known.partition == client
        ]
        if len(nodes) == 1:
            return nodes[0]
        if nodes:
            return ErrorReply(f"{len(nodes)} nodes say that they are this client")
        errors = [known.reason for known in self._nodes.values() if isinstance(known, ErrorReply)]
        return ErrorReply(
            "no node says that it is this client" + "".join(f" (one says: {reason})" for reason in errors[:1])
        )

    # -------------------- messages

    def _exchange(self, contents: Mapping[int, RecordDict], how: _Exchange) -> Replies:
        """Send a message to each node, and return what came back from it."""
        sent, replies = self._send(contents, how)
        last, patience = time.monotonic(), how.patience(replies)
        while sent and time.monotonic() < last + patience:
            for number, reply in self._replies(sent).items():
                replies[sent.pop(number)] = reply
                last, patience = time.monotonic(), how.patience(replies)
            if sent:
                self._rest()
        return replies | {node: ErrorReply(f"no answer in {patience:g} s") for node in sent.values()}

    def _send(self, contents: Mapping[int, RecordDict], how: _Exchange) -> tuple[dict[str, int], Replies]:
        """Send messages; return the node of each by the message's number, and what could not be sent."""
        from flwr.app import Message

        sent: dict[str, int] = {}
        refused: Replies = {}
        ttl = self.patience * len(contents) + SLACK
        for node, content in contents.items():
            message = Message(content, node, how.kind, group_id=how.group, ttl=ttl)
            # One at a time: together they may be more than Flower takes.
            with reached():
                number = next(iter(self.grid.push_messages([message])), None)
            if number is None:
                refused[node] = ErrorReply("Flower did not take the message")
            else:
                sent[number] = node
        return sent, refused

    def _replies(self, sent: Mapping[str, int]) -> dict[str, RecordDict | ErrorReply]:
        """Return what has come back, by the number of the message that it answers."""
        if self._alive is not None:
            with reached():
                pulled = list(self.grid.pull_messages(set(sent)))
            _check_workers(pulled)
            numbered = {reply.metadata.reply_to_message_id: reply.content for reply in pulled}
            return {number: content for number, content in numbered.items() if number in sent}
        # Looked at first: what a node answered before it went away is still there.
        present = self._present()
        found = {number: reply for number in sent if (reply := self._pull(number)) is not None}
        lost = ErrorReply("it was away in between, and what it had been asked is lost")
        returned = [
            number for number, node in sent.items() if present.get(node, self._since[node]) != self._since[node]
        ]
        return {**dict.fromkeys(returned, lost), **found}

    def _pull(self, number: str) -> RecordDict | ErrorReply | None:
        """Return what a node answered, if it did: one at a time, for one that Flower cannot unpack spoils the rest."""
        try:
            pulled = list(self.grid.pull_messages([number]))
        except Exception as error:
            # Either Flower is gone, which this says, or it is the message.
            self._present()
            return ErrorReply(f"answer refused, it cannot be unpacked ({type(error).__name__})")
        return next((_open(one) for one in pulled if one.metadata.reply_to_message_id == number), None)

    def _rest(self) -> None:
        if self._alive is not None and not self._alive():
            raise LostError("the simulation has ended by itself")
        time.sleep(PAUSE if self._alive is None else BRIEF)


def _open(reply: Message) -> RecordDict | ErrorReply:
    return ErrorReply(f"Flower reports: {sentence(_reason(reply))}") if reply.has_error() else reply.content


def _check_workers(replies: Collection[Message]) -> None:
    """Raise `LostError` if a simulation reports an error, which no client of ours makes: a worker is lost."""
    reasons = [_reason(reply) for reply in replies if reply.has_error()]
    if reasons:
        # That Flower's pool is empty is what comes of it for the others, and does not say why.
        told = min(reasons, key=lambda reason: EMPTY_POOL in reason)
        raise LostError(f"a worker process of the simulation has died or failed ({_cause(told)})")


def _reason(reply: Message) -> str:
    return reply.error.reason or f"error {reply.error.code}"


def _cause(reason: str) -> str:
    """Return what a simulation says about an error; of one that was raised in a worker the end tells what it was."""
    lines = _RAISED.sub(": ", reason).strip(": \n").splitlines()
    return sentence(lines[-1] if lines and "RayTaskError" in lines[0] else "\n".join(lines))


@contextmanager
def reached() -> Iterator[None]:
    """Say in a sentence that a grid has failed; what it raises depends on its kind."""
    try:
        yield
    except Exception as error:
        raise LostError(f"Flower cannot be reached ({type(error).__name__}: {sentence(str(error))})") from error


def _read(reply: RecordDict | ErrorReply, request: Request) -> Reply:
    if isinstance(reply, ErrorReply):
        return reply
    try:
        return read_answer(reply, request)
    except WireError as error:
        return ErrorReply(f"answer refused, {error}")
    except Exception as error:
        # Whatever a node sends, the round is everybody's.
        return ErrorReply(f"answer refused, it cannot be read ({type(error).__name__})")


def _introduced(reply: RecordDict | ErrorReply) -> Introduction | ErrorReply:
    """Return what a node says about itself; one with another fedmate would compute something else."""
    from fedmate import __version__

    if isinstance(reply, ErrorReply):
        return reply
    try:
        site = read_introduction(reply)
    except WireError as error:
        return ErrorReply(f"introduction refused, {error}")
    except Exception as error:
        return ErrorReply(f"introduction refused, it cannot be read ({type(error).__name__})")
    if isinstance(site, Introduction) and site.fedmate != __version__:
        return ErrorReply(f"client {site.partition} runs fedmate {site.fedmate}, the server {__version__}")
    return site
