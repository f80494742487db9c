"""Requests and answers over a stand-in for Flower's grid: which nodes are found, and which replies are errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import Error, RecordDict

from fedmate.flower import transport as module
from fedmate.flower.messages import Answer, ErrorReply, Introduction, Request, write_reply
from fedmate.flower.node import introduce
from fedmate.flower.transport import GridTransport, LostError

TOKEN = "ab" * 16
ABSENT = "no node says that it is this client"


class Sent(SimpleNamespace):
    """A message; Flower makes its own within a run only."""

    def __init__(self, content: RecordDict, node: int, kind: str, *, group_id: str, ttl: float) -> None:
        super().__init__(content=content, node=node, kind=kind, group=group_id, ttl=ttl)


class Grid:
    """A grid whose nodes are functions: they answer with records, an error, or `None`, which is silence."""

    def __init__(self) -> None:
        self.now, self.numbers = 100.0, itertools.count()
        self.sent, self.waiting = list[Sent](), dict[str, Sent]()
        self.nodes = {11: 0, 22: 1, 33: 2}
        self.slow, self.since = dict[int, float](), dict[int, str]()
        self.reply: Callable[[int, Sent], RecordDict | Error | None] = lambda client, message: good(message)
        self.introduce: Callable[[int], RecordDict | Error | None] = lambda client: introduce({"partition-id": client})

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, last_activated_at=self.since.get(node, "")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Sent]) -> list[str]:
        pushed = {f"message {next(self.numbers)}": one for one in messages}
        self.sent += pushed.values()
        self.waiting |= pushed
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        return [reply for number in message_ids if (reply := self._pull(number)) is not None]

    def _pull(self, number: str) -> Any:
        message = self.waiting.get(number)
        if message is None or self.now < self.slow.get(message.node, 0.0):
            return None
        client = self.nodes[message.node]
        content = self.introduce(client) if message.kind == "query" else self.reply(client, message)
        if content is None:
            return None
        del self.waiting[number]
        is_error, metadata = isinstance(content, Error), SimpleNamespace(reply_to_message_id=number)
        return SimpleNamespace(content=content, error=content, has_error=lambda: is_error, metadata=metadata)


def good(message: Sent) -> RecordDict:
    metrics = {"pre": [1.0]} if message.kind == "evaluate" else {"losses": [2.0, 1.0], "valid": [1.0]}
    return write_reply(Answer({}, metrics))


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Grid:
    made = Grid()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr("flwr.app.Message", Sent)
    return made


def transport(grid: Any, **changes: Any) -> GridTransport:
    return GridTransport(grid, TOKEN, **{"patience": 60.0, **changes})


def requests(*clients: int, kind: Any = "train") -> dict[int, Request]:
    return {client: Request(kind, 4, kind == "view", {"client": torch.tensor(client)}) for client in clients}


def answered(found: dict[int, Any]) -> list[bool]:
    return [isinstance(one, Answer) for one in found.values()]


# -------------------- who is who


def test_each_client_gets_its_own_message_and_nodes_are_asked_once(grid: Grid) -> None:
    ours, start = transport(grid), grid.now
    found = ours.send(requests(2, 0), 2)
    assert grid.now == start
    assert list(found) == [2, 0]
    assert answered(found) == [True, True]
    for message in grid.sent[3:]:
        client = grid.nodes[message.node]
        asked = {"experiment": TOKEN, "client": client, "kind": "train", "round": 4, "evaluate": False}
        assert dict(message.content["request"]) == asked
        assert message.content["download"]["client"].data[0] == client
        assert message.group == "5"
    ours.send(requests(1, kind="view"), 1)
    assert [message.kind for message in grid.sent] == ["query"] * 3 + ["train"] * 2 + ["evaluate"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (write_reply(Introduction(1, "0.0.0")), "client 1 runs fedmate 0.0.0, the server "),
        (RecordDict(), "introduction refused, the message holds nothing, which is not declared"),
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
    assert answered(found) == [True, False, True]
    assert found[1].reason.startswith(f"{ABSENT} (one says: {reason}")  # type: ignore[union-attr]
    # Two that say that they are one are both left out.
    grid.introduce, grid.nodes[55] = usual, 0
    assert transport(grid).send(requests(0), 1)[0] == ErrorReply("2 nodes say that they are this client")
    del grid.nodes[55]
    assert all(answered(ours.send(requests(0, 1, 2), 3)))


# -------------------- replies


def test_silence_and_errors_are_faults_and_the_others_count(grid: Grid) -> None:
    odd: dict[int, Any] = {0: None, 1: Error(5, "Node\x1b is unavailable\nTraceback (most recent call last):")}
    grid.reply = lambda client, message: odd.get(client, good(message))
    found = transport(grid).send(requests(0, 1, 2), 3)
    assert found[0] == ErrorReply("no answer in 60 s")
    assert found[1] == ErrorReply("Flower reports: Node? is unavailable")
    assert isinstance(found[2], Answer)
    assert 160 <= grid.now < 165


def test_the_next_answer_is_waited_for_not_the_last(grid: Grid) -> None:
    """Or many clients on few cores would be late for no error of theirs."""
    ours = transport(grid, patience=50.0)
    ours.send(requests(0, 1, 2), 3)
    grid.slow, start = {11: grid.now + 45, 22: grid.now + 90, 33: grid.now + 200}, grid.now
    assert answered(ours.send(requests(0, 1, 2), 3)) == [True, True, False]
    assert grid.now - start == pytest.approx(140, abs=3)
    # No message expires while its answer is waited for.
    assert all(message.ttl > 3 * 50 for message in grid.sent)


def test_a_node_that_comes_back_has_lost_what_it_was_asked(grid: Grid) -> None:
    def leave(client: int, message: Sent) -> RecordDict | None:
        if message.node != 22:
            return good(message)
        grid.since[22], grid.nodes[22] = "later", 7
        return None

    grid.reply = leave
    found = transport(grid, patience=600.0).send(requests(0, 1, 2), 3)
    assert found[1] == ErrorReply("it was away in between, and what it had been asked is lost")
    assert answered(found) == [True, False, True]
    assert grid.now < 105


def test_an_error_of_flower_in_a_simulation_ends_it(grid: Grid) -> None:
    # That no worker is left for a message says less than why.
    pool, died = "<class 'IndexError'>:<'pop from empty list'>", "<class 'ray.exceptions.ActorDiedError'>:<'It died.'>"
    grid.reply = lambda client, message: Error(0, [pool, died, pool][client])
    with pytest.raises(LostError, match=r"has died or failed \(<class 'ray.exceptions.ActorDiedError'>:<'It died.'>\)"):
        transport(grid, alive=lambda: True).send(requests(0, 1, 2), 3)
    # A client's own error does not.
    grid.reply = lambda client, message: write_reply(ErrorReply("odd")) if client == 2 else good(message)
    assert answered(transport(grid, alive=lambda: True).send(requests(0, 1, 2), 3)) == [True, True, False]
    grid.reply = lambda client, message: None
    with pytest.raises(LostError, match="the simulation has ended by itself"):
        transport(grid, alive=lambda: grid.now < 105).send(requests(0), 1)


def test_a_grid_that_fails_is_lost(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("All connection attempts failed\nand more")

    monkeypatch.setattr(grid, "get_nodes", fail)
    with pytest.raises(LostError, match=r"^Flower cannot be reached \(OSError: All connection attempts failed\)$"):
        transport(grid).send(requests(0), 1)
