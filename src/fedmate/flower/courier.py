"""Requests and answers over Flower's grid: which node is which client, and what came back from whom."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, final

from fedmate.errors import StoppedError
from fedmate.flower.wire import Introduction, Order, WireError, read_answer, read_site, sentence, write_request
from fedmate.sites.courier import Answer, Courier, Fault, Request

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

QUERY_PATIENCE = 60.0
"""Seconds to wait until a node says who it is; it has nothing to compute."""

PAUSE = 1.0
"""Seconds between looks for answers from elsewhere."""

BRIEF = 0.05
"""Seconds between looks for answers from this machine."""

SLACK = 60.0
"""Seconds that a message stays valid after nobody waits for its answer any longer: expiry is no error then."""


_RAISED = re.compile(r"^<class '|'>:<'|'>$")
"""What Flower puts around an error that was raised: its type and its text."""


class LostError(StoppedError):
    """A federation that cannot go on: a simulation has lost a worker or ended by itself, or Flower is not reached."""


class _Exchange(NamedTuple):
    """How messages travel: their type, what groups them, and how long to wait for the next answer."""

    kind: str
    group: str
    patience: float


@final
class GridCourier(Courier):
    """Brings requests to nodes.

    Args:
        grid: Flower's.
        experiment: what tells the experiment from others.
        patience: seconds to wait for the next answer; then those that are missing are given up.
        at_least: for how many of the clients asked for to wait until there are nodes, within that patience.
        alive: in a simulation, whether it still runs. There an error that is not a client's own means that a worker
            died, whose messages Flower would lose from then on: `LostError`.
    """

    def __init__(
        self,
        grid: Grid,
        experiment: str,
        *,
        patience: float,
        at_least: int = 1,
        alive: Callable[[], bool] | None = None,
    ) -> None:
        """Know nobody yet."""
        self.grid, self.experiment = grid, experiment
        self.patience, self.at_least, self._alive = patience, at_least, alive
        self._nodes: dict[int, Introduction | Fault] = {}

    def deliver(self, requests: Mapping[int, Request]) -> dict[int, Answer | Fault]:
        """Return what each client answered; what is not declared, late or an error is a fault."""
        if not requests:
            return {}
        first = next(iter(requests.values()))
        found = self._find(requests)
        nodes = {client: node for client, node in found.items() if isinstance(node, int)}
        contents = {
            node: write_request(Order(self.experiment, client, requests[client])) for client, node in nodes.items()
        }
        exchange = _Exchange("train" if first.kind == "train" else "evaluate", str(first.round + 1), self.patience)
        replies = self._exchange(contents, exchange)
        answers: dict[int, Answer | Fault] = {c: fault for c, fault in found.items() if isinstance(fault, Fault)}
        answers |= {client: _read(replies[node], requests[client]) for client, node in nodes.items()}
        return {client: answers[client] for client in requests}

    # -------------------- who is who

    def _find(self, clients: Collection[int]) -> dict[int, int | Fault]:
        """Return the node of each client, once enough of them are there or patience has ended."""
        # Who could not say who it is may know by now.
        self._nodes = {node: known for node, known in self._nodes.items() if isinstance(known, Introduction)}
        deadline = time.monotonic() + self.patience
        while True:
            with _reached():
                nodes = list(self.grid.get_node_ids())
            self._meet(nodes)
            found = {client: self._node_of(client) for client in clients}
            there = sum(isinstance(node, int) for node in found.values())
            if there >= min(self.at_least, len(found)) or time.monotonic() > deadline:
                return found
            self._rest()

    def _meet(self, nodes: Collection[int]) -> None:
        """Ask new nodes who they are, and forget those that have gone: they may come back as somebody else."""
        from flwr.app import RecordDict

        self._nodes = {node: known for node, known in self._nodes.items() if node in nodes}
        new = [node for node in nodes if node not in self._nodes]
        # In a simulation the first to be asked have to be started.
        patience = min(self.patience, QUERY_PATIENCE) if self._alive is None else self.patience
        exchange = _Exchange("query", "query", patience)
        replies = self._exchange({node: RecordDict() for node in new}, exchange)
        self._nodes |= {node: _introduced(reply) for node, reply in replies.items()}

    def _node_of(self, client: int) -> int | Fault:
        nodes = [
            node for node, known in self._nodes.items() if isinstance(known, Introduction) and known.partition == client
        ]
        if len(nodes) == 1:
            return nodes[0]
        if nodes:
            return Fault(f"{len(nodes)} nodes say that they are this client")
        faults = [known.reason for known in self._nodes.values() if isinstance(known, Fault)]
        return Fault("no node says that it is this client" + "".join(f" (one says: {reason})" for reason in faults[:1]))

    # -------------------- messages

    def _exchange(self, contents: Mapping[int, RecordDict], how: _Exchange) -> dict[int, RecordDict | Fault]:
        """Send a message to each node, and return what came back from it."""
        sent, replies = self._send(contents, how)
        deadline = time.monotonic() + how.patience
        while sent and time.monotonic() < deadline:
            for reply in self._pull(sent):
                # The sender may be the SuperLink, which tells of a node that has gone.
                node = sent.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    replies[node] = self._open(reply)
                    deadline = time.monotonic() + how.patience
            if sent:
                self._rest()
        return replies | {node: Fault(f"no answer in {how.patience:g} s") for node in sent.values()}

    def _send(
        self, contents: Mapping[int, RecordDict], how: _Exchange
    ) -> tuple[dict[str, int], dict[int, RecordDict | Fault]]:
        """Send messages; return the node of each by the message's number, and what could not be sent."""
        from flwr.app import Message

        sent: dict[str, int] = {}
        refused: dict[int, RecordDict | Fault] = {}
        ttl = how.patience * len(contents) + SLACK
        for node, content in contents.items():
            message = Message(content, node, how.kind, group_id=how.group, ttl=ttl)
            # One at a time: together they may be more than Flower takes.
            with _reached():
                number = next(iter(self.grid.push_messages([message])), None)
            if number is None:
                refused[node] = Fault("Flower did not take the message")
            else:
                sent[number] = node
        return sent, refused

    def _pull(self, sent: Mapping[str, int]) -> list[Message]:
        with _reached():
            return list(self.grid.pull_messages(set(sent)))

    def _open(self, reply: Message) -> RecordDict | Fault:
        if not reply.has_error():
            return reply.content
        reason = reply.error.reason or f"error {reply.error.code}"
        if self._alive is not None:
            raise LostError(f"a worker process of the simulation has died or failed ({_cause(reason)})")
        return Fault(f"Flower reports: {sentence(reason)}")

    def _rest(self) -> None:
        if self._alive is not None and not self._alive():
            raise LostError("the simulation has ended by itself")
        time.sleep(PAUSE if self._alive is None else BRIEF)


def _cause(reason: str) -> str:
    """Return what a simulation says about an error; of one that was raised in a worker the end tells what it was."""
    lines = _RAISED.sub(": ", reason).strip(": \n").splitlines()
    return sentence(lines[-1] if lines and "RayTaskError" in lines[0] else "\n".join(lines))


@contextmanager
def _reached() -> Iterator[None]:
    """Say in a sentence that a grid has failed; what it raises depends on its kind."""
    try:
        yield
    except Exception as error:
        raise LostError(f"Flower cannot be reached ({type(error).__name__}: {sentence(str(error))})") from error


def _read(reply: RecordDict | Fault, request: Request) -> Answer | Fault:
    if isinstance(reply, Fault):
        return reply
    try:
        return read_answer(reply, request)
    except WireError as error:
        return Fault(f"answer refused, {error}")
    except Exception as error:
        # Whatever a node sends, the round is everybody's.
        return Fault(f"answer refused, it cannot be read ({type(error).__name__})")


def _introduced(reply: RecordDict | Fault) -> Introduction | Fault:
    """Return what a node says about itself; one with another fedmate would compute something else."""
    from fedmate import __version__

    if isinstance(reply, Fault):
        return reply
    try:
        site = read_site(reply)
    except WireError as error:
        return Fault(f"introduction refused, {error}")
    except Exception as error:
        return Fault(f"introduction refused, it cannot be read ({type(error).__name__})")
    if isinstance(site, Introduction) and site.fedmate != __version__:
        return Fault(f"client {site.partition} runs fedmate {site.fedmate}, the server {__version__}")
    return site
