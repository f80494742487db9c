"""Requests and answers over a stand-in for Flower's grid: which nodes are found, and which replies are errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Error, Message, RecordDict

from fedmate.flower import transport as module
from fedmate.flower.messages import Answer, ErrorReply, Introduction, Request, write_answer, write_introduction
from fedmate.flower.node import introduce
from fedmate.flower.transport import GridTransport, LostError

TOKEN = "ab" * 16
NODES = {11: 0, 22: 1, 33: 2}
"""Which node is which client."""


class Clock:
    """Time that passes while somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Grid:
    """A grid whose nodes are functions: they answer with records, an error, or `None`, which is silence."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.numbers = clock, itertools.count()
        self.sent, self.waiting = list[Message](), dict[str, Message]()
        self.nodes = dict(NODES)
        self.absent_until = dict[int, float]()
        self.since = dict[int, str]()
        self.reply: Callable[[int, Message], RecordDict | Error | None] = lambda client, message: good(message)
        self.introduce: Callable[[int], RecordDict | Error | None] = lambda client: introduce({"partition-id": client})
        self.refused = set[int]()
        self.slow = dict[int, float]()

    def get_nodes(self) -> list[Any]:
        there = [node for node in self.nodes if self.clock.now >= self.absent_until.get(node, 0.0)]
        return [SimpleNamespace(node_id=node, last_activated_at=self.since.get(node, "")) for node in there]

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str | None:
        node = message.metadata.dst_node_id
        if node in self.refused:
            return None
        message.metadata.__dict__["_message_id"] = f"message {next(self.numbers)}"
        self.sent.append(message)
        self.waiting[message.metadata.message_id] = message
        return str(message.metadata.message_id)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for number in message_ids if (reply := self._pull(number)) is not None]

    def _pull(self, number: str) -> Message | None:
        message = self.waiting.get(number)
        if message is None or self.clock.now < self.slow.get(message.metadata.dst_node_id, 0.0):
            return None
        client = self.nodes[message.metadata.dst_node_id]
        query = message.metadata.message_type == "query"
        content = self.introduce(client) if query else self.reply(client, message)
        if content is None:
            return None
        del self.waiting[number]
        reply = Message(content, reply_to=message)
        if isinstance(content, Error):
            # As the SuperLink tells of a node that has gone.
            reply.metadata.__dict__["_src_node_id"] = 1
        return reply

    def types(self) -> list[str]:
        return [message.metadata.message_type for message in self.sent]


def good(message: Message) -> RecordDict:
    metrics = {"pre": [1.0]} if message.metadata.message_type == "evaluate" else {"losses": [2.0, 1.0], "valid": [1.0]}
    return write_answer(Answer({}, metrics))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    time = Clock()
    monkeypatch.setattr(module, "time", time)
    return time


@pytest.fixture
def grid(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Grid:
    from flwr.supercore.task_identity import TaskIdentity

    # Flower makes messages within a task of its own only.
    for name, value in (("_task_id", 1), ("_run_id", 1), ("_node_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    return Grid(clock)


def transport(grid: Grid, **changes: Any) -> GridTransport:
    return GridTransport(grid, TOKEN, **{"patience": 60.0, **changes})


def requests(*clients: int, kind: Any = "train") -> dict[int, Request]:
    return {client: Request(kind, 4, kind == "view", {"client": torch.tensor(client)}) for client in clients}


# -------------------- who is who


def test_each_client_gets_its_own_message_and_nodes_are_asked_once(grid: Grid, clock: Clock) -> None:
    ours, start = transport(grid), clock.now
    found = ours.send(requests(2, 0), 2)
    # Nobody waits for a client that is not asked for.
    assert clock.now == start
    assert list(found) == [2, 0]
    assert all(isinstance(one, Answer) for one in found.values())
    assert grid.types() == ["query"] * 3 + ["train"] * 2
    asked = {NODES[one.metadata.dst_node_id]: one for one in grid.sent[3:]}
    assert {client: dict(one.content["request"]) for client, one in asked.items()} == {
        client: {"experiment": TOKEN, "client": client, "kind": "train", "round": 4, "evaluate": False}
        for client in (2, 0)
    }
    assert all(one.content["download"]["client"].data[0] == client for client, one in asked.items())
    assert {one.metadata.group_id for one in asked.values()} == {"5"}
    ours.send(requests(1, kind="view"), 1)
    assert grid.types()[5:] == ["evaluate"]
    assert ours.send({}, 1) == {}


def test_a_node_that_was_away_is_asked_again_who_it_is(grid: Grid) -> None:
    ours = transport(grid)
    ours.send(requests(0, 1), 1)
    del grid.nodes[22]
    assert ours.send(requests(0, 1), 1)[1] == ErrorReply("no node says that it is this client")
    grid.nodes[22], grid.sent[:] = 7, []
    assert isinstance(ours.send(requests(0, 1), 1)[1], ErrorReply)
    assert grid.types() == ["query", "train"]
    grid.nodes[44] = 1
    assert isinstance(ours.send(requests(0, 1), 1)[1], Answer)


def test_two_that_say_they_are_one_are_both_left_out(grid: Grid) -> None:
    grid.nodes[44] = 1
    ours = transport(grid)
    found = ours.send(requests(0, 1), 1)
    assert isinstance(found[0], Answer)
    assert found[1] == ErrorReply("2 nodes say that they are this client")
    del grid.nodes[22]
    assert isinstance(ours.send(requests(0, 1), 1)[1], Answer)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (write_introduction(ErrorReply("`site.toml` does not exist")), "`site.toml` does not exist"),
        (write_introduction(Introduction(1, "0.0.0")), "client 1 runs fedmate 0.0.0, the server "),
        (RecordDict(), "introduction refused, the message holds nothing instead of node"),
        (Error(2, "ImportError\nTraceback"), "Flower reports: ImportError)"),
        (None, "no answer in 60 s"),
    ],
)
def test_a_node_that_cannot_say_who_it_is_is_asked_again_next_time(
    grid: Grid, said: RecordDict | Error | None, reason: str
) -> None:
    ours, usual = transport(grid), grid.introduce
    grid.introduce = lambda client: said if client == 1 else usual(client)
    found = ours.send(requests(0, 1, 2), 2)
    assert isinstance(found[0], Answer)
    assert isinstance(found[1], ErrorReply)
    assert found[1].reason.startswith(f"no node says that it is this client (one says: {reason}")
    grid.introduce = usual
    assert isinstance(ours.send(requests(0, 1, 2), 3)[1], Answer)


def test_enough_nodes_are_waited_for_and_in_a_simulation_all(grid: Grid, clock: Clock) -> None:
    grid.absent_until = {11: 130.0, 22: 120.0, 33: 150.0}
    found = transport(grid).send(requests(0, 1, 2), 2)
    assert [isinstance(one, Answer) for one in found.values()] == [True, True, False]
    assert 130 <= clock.now < 135
    found = transport(grid, alive=lambda: True).send(requests(0, 1, 2), 1)
    assert all(isinstance(one, Answer) for one in found.values())
    grid.nodes.clear()
    assert set(transport(grid).send(requests(0, 1), 1).values()) == {ErrorReply("no node says that it is this client")}
    assert 210 <= clock.now < 215


# -------------------- what comes back


def test_silence_and_errors_are_faults_and_the_others_count(grid: Grid, clock: Clock) -> None:
    odd: dict[int, Any] = {0: None, 1: Error(5, "Node\x1b is unavailable\nTraceback (most recent call last):")}
    grid.reply = lambda client, message: odd.get(client, good(message))
    found = transport(grid).send(requests(0, 1, 2), 3)
    assert found[0] == ErrorReply("no answer in 60 s")
    assert found[1] == ErrorReply("Flower reports: Node? is unavailable")
    assert isinstance(found[2], Answer)
    assert 160 <= clock.now < 165


def test_the_next_answer_is_waited_for_not_the_last(grid: Grid, clock: Clock) -> None:
    """Or many clients on few cores would be late for no error of theirs."""
    ours = transport(grid, patience=50.0)
    ours.send(requests(0, 1, 2), 3)
    grid.slow, start = {11: clock.now + 45, 22: clock.now + 90, 33: clock.now + 200}, clock.now
    found = ours.send(requests(0, 1, 2), 3)
    assert [isinstance(one, Answer) for one in found.values()] == [True, True, False]
    assert clock.now - start == pytest.approx(140, abs=3)
    # No message expires while somebody waits for its answer.
    assert all(message.metadata.ttl > 3 * 50 for message in grid.sent)


def test_an_answer_that_flower_cannot_unpack_spoils_nobody_elses(grid: Grid) -> None:
    usual, asked = grid.pull_messages, dict[str, Message]()

    def pull(message_ids: Iterable[str]) -> list[Message]:
        asked.update({number: grid.waiting[number] for number in message_ids})
        kinds = {(asked[number].metadata.message_type, asked[number].metadata.dst_node_id) for number in message_ids}
        if ("train", 22) in kinds:
            raise ValueError("Error parsing message")
        return usual(message_ids)

    grid.pull_messages = pull  # type: ignore[method-assign]
    found = transport(grid).send(requests(0, 1, 2), 3)
    assert found[1] == ErrorReply("answer refused, it cannot be unpacked (ValueError)")
    assert [isinstance(found[client], Answer) for client in (0, 2)] == [True, True]


def test_a_node_that_comes_back_has_lost_what_it_was_asked(grid: Grid, clock: Clock) -> None:
    ours = transport(grid, patience=600.0)

    def leave(client: int, message: Message) -> RecordDict | None:
        if message.metadata.dst_node_id != 22:
            return good(message)
        grid.since[22], grid.nodes[22] = "later", 7
        return None

    grid.reply = leave
    found = ours.send(requests(0, 1, 2), 3)
    assert found[1] == ErrorReply("it was away in between, and what it had been asked is lost")
    assert isinstance(found[2], Answer)
    assert clock.now < 105
    # It may have come back as somebody else.
    assert ours.send(requests(0, 1), 1)[1] == ErrorReply("no node says that it is this client")


def test_what_was_answered_before_a_node_went_away_counts(grid: Grid, clock: Clock) -> None:
    ours = transport(grid)
    ours.send(requests(0, 1, 2), 3)
    grid.slow = {22: clock.now + 5}
    present = grid.get_nodes

    def get_nodes() -> list[Any]:
        if clock.now >= grid.slow[22]:
            grid.since[22] = "later"
        return present()

    grid.get_nodes = get_nodes  # type: ignore[method-assign]
    assert isinstance(ours.send(requests(0, 1, 2), 3)[1], Answer)


def test_a_node_that_is_busy_is_waited_for_until_it_says_who_it_is(grid: Grid, clock: Clock) -> None:
    grid.slow = {22: clock.now + 120}
    found = transport(grid, patience=600.0).send(requests(0, 1, 2), 2)
    assert isinstance(found[1], Answer)
    assert clock.now < 225


def test_a_node_that_is_not_needed_is_not_waited_for(grid: Grid, clock: Clock) -> None:
    grid.nodes[44], grid.slow, ours = 9, {44: 1e9}, transport(grid, patience=600.0)
    assert all(isinstance(one, Answer) for one in ours.send(requests(0, 1, 2), 3).values())
    assert clock.now < 105


def test_an_error_in_a_simulation_ends_it(grid: Grid) -> None:
    for raised, cause in (
        ("ActorDiedError'>:<'The actor died.\n\tpid: 3'>", "ray.exceptions.ActorDiedError: The actor died."),
        ("RayTaskError(X)'>:<'\x1b[36mray::run()\n  File 'y'\nImportError: no module\n'>", "ImportError: no module"),
    ):
        odd = {2: Error(0, f"<class 'ray.exceptions.{raised}")}
        grid.reply = partial(lambda odd, client, message: odd.get(client, good(message)), odd)
        with pytest.raises(LostError) as lost:
            transport(grid, alive=lambda: True).send(requests(0, 1, 2), 3)
        assert str(lost.value) == f"a worker process of the simulation has died or failed ({cause})"
    # That no worker is left for a message says less than why.
    pool, died = "<class 'IndexError'>:<'pop from empty list'>", "<class 'ray.exceptions.ActorDiedError'>:<'It died.'>"
    for reasons, cause in (([pool, died, pool], "ray.exceptions.ActorDiedError: It died."), ([pool] * 3, pool[8:18])):
        grid.reply = partial(lambda reasons, client, message: Error(0, reasons[client]), reasons)
        with pytest.raises(LostError, match=re.escape(f"({cause}")):
            transport(grid, alive=lambda: True).send(requests(0, 1, 2), 3)
    # A client's own error does not.
    grid.reply = lambda client, message: write_answer(ErrorReply("ValueError: odd")) if client == 2 else good(message)
    found = transport(grid, alive=lambda: True).send(requests(0, 1, 2), 3)
    assert found[2] == ErrorReply("ValueError: odd")
    assert isinstance(found[1], Answer)


def test_a_simulation_that_ended_is_not_waited_for(grid: Grid, clock: Clock) -> None:
    grid.reply = lambda client, message: None
    with pytest.raises(LostError, match="the simulation has ended by itself"):
        transport(grid, alive=lambda: clock.now < 105).send(requests(0), 1)
    assert clock.now < 106


@pytest.mark.parametrize("call", ["get_nodes", "push_messages", "pull_messages"])
def test_a_grid_that_fails_is_lost(grid: Grid, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        monkeypatch.setattr(grid, "get_nodes", fail)
        raise OSError("All connection attempts failed\nand more")

    monkeypatch.setattr(grid, call, fail)
    with pytest.raises(LostError, match=r"^Flower cannot be reached \(OSError: All connection attempts failed\)$"):
        transport(grid).send(requests(0), 1)
