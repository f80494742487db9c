"""Requests and answers over a grid that is not Flower's: who is found, what is waited for, and what becomes a error."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import pytest
import torch
from fedmate.flower.client_app import answer, introduce
from fedmate.flower.remote import Remote, TooFewError
from fedmate.flower.wire import Introduction, write_answer, write_introduction
from torch.testing import assert_close

from fedmate.backends.base import Round, RoundResult
from fedmate.backends.sequential import Sequential
from fedmate.core import Tree, flatten, fold, make_key
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.flower import transport as module
from fedmate.flower.client import Site
from fedmate.flower.client_state import ClientState
from fedmate.flower.messages import Answer, ErrorReply, Request
from fedmate.flower.transport import GridTransport, LostError

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

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
        self.introduce: Callable[[int], RecordDict | Error | None] = lambda client: introduce(
            RecordDict(), {"partition-id": client}
        )
        self.refused = set[int]()
        self.slow = dict[int, float]()

    def get_nodes(self) -> list[NodeInfo]:
        there = [node for node in self.nodes if self.clock.now >= self.absent_until.get(node, 0.0)]
        return [NodeInfo(node_id=node, last_activated_at=self.since.get(node, "")) for node in there]

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
        (RecordDict(), "introduction refused, the message does not hold `site`"),
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


def test_enough_nodes_are_waited_for_and_no_more(grid: Grid, clock: Clock) -> None:
    grid.absent_until = {11: 130.0, 22: 120.0, 33: 1e9}
    found = transport(grid).send(requests(0, 1, 2), 2)
    assert [isinstance(one, Answer) for one in found.values()] == [True, True, False]
    assert 130 <= clock.now < 135


def test_in_a_simulation_everybody_is_waited_for(grid: Grid, clock: Clock) -> None:
    grid.absent_until = {33: 130.0}
    found = transport(grid, alive=lambda: True).send(requests(0, 1, 2), 1)
    assert all(isinstance(one, Answer) for one in found.values())
    assert 130 <= clock.now < 135


def test_patience_with_nodes_that_do_not_come_ends(grid: Grid, clock: Clock) -> None:
    grid.nodes.clear()
    found = transport(grid).send(requests(0, 1), 1)
    assert set(found.values()) == {ErrorReply("no node says that it is this client")}
    assert 160 <= clock.now < 165


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


def test_a_message_that_flower_does_not_take_is_a_fault(grid: Grid, clock: Clock) -> None:
    ours = transport(grid)
    ours.send(requests(0, 1, 2), 3)
    grid.refused, start = {22}, clock.now
    found = ours.send(requests(0, 1, 2), 3)
    assert found[1] == ErrorReply("Flower did not take the message")
    assert isinstance(found[2], Answer)
    assert clock.now == start


def test_an_answer_to_something_else_is_nobodys(grid: Grid) -> None:
    usual = grid.pull_messages

    def pull(message_ids: Iterable[str]) -> list[Message]:
        replies = usual(message_ids)
        for reply in replies:
            if reply.metadata.src_node_id == 22 and reply.metadata.message_type == "train":
                reply.metadata.__dict__["_reply_to_message_id"] = "something else"
        return replies

    grid.pull_messages = pull  # type: ignore[method-assign]
    found = transport(grid).send(requests(0, 1, 2), 3)
    assert found[1] == ErrorReply("no answer in 60 s")
    assert isinstance(found[0], Answer)


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

    def get_nodes() -> list[NodeInfo]:
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


def test_a_node_that_is_not_needed_is_waited_for_a_little_only(grid: Grid, clock: Clock) -> None:
    grid.nodes[44], grid.slow = 9, {44: 1e9}
    found = transport(grid, patience=600.0).send(requests(0, 1, 2), 3)
    assert all(isinstance(one, Answer) for one in found.values())
    assert 160 <= clock.now < 165


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


def test_answers_that_a_lost_grid_does_not_bring_are_no_faults_of_their_nodes(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = transport(grid)
    ours.send(requests(0), 1)

    def fail(*_: object) -> None:
        raise OSError("All connection attempts failed")

    def last(*_: object) -> None:
        monkeypatch.setattr(grid, "get_nodes", fail)
        raise OSError("Connection reset by peer")

    monkeypatch.setattr(grid, "pull_messages", last)
    with pytest.raises(LostError, match=r"^Flower cannot be reached \(OSError: All connection attempts failed\)$"):
        ours.send(requests(0), 1)


# -------------------- a whole round over the grid


@cache
def built() -> Built:
    values = {
        "rounds": 2,
        "dtype": "float64",
        "device": "cpu",
        "backend": "sequential",
        "partition": {"name": "share", "clients": 3},
        "training": {"epochs": 1},
        "method": {"name": "fedmate"},
    }
    return build(resolve([ConfigSource("test", values)]))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, RecordDict], RecordDict]:
    """Answers of the sites themselves, each computed once."""
    ready, folder, known = built(), tmp_path_factory.mktemp("sites"), dict[int, RecordDict]()

    def site(client: int) -> Site:
        federation, store = ready.federation, ClientState(folder, TOKEN, client)
        return Site(client, 3, ready.method, federation.clients[client], federation.test, make_key(0), store, str)

    def reply(client: int, content: RecordDict) -> RecordDict:
        if client not in known:
            known[client] = answer(content, lambda _: site(client))
        return RecordDict(dict(known[client]))

    return reply


@pytest.fixture
def a_round(
    grid: Grid, honest: Callable[[int, RecordDict], RecordDict]
) -> Callable[..., tuple[RoundResult, dict[int, str]]]:
    """Train all clients over the grid; return why some did not count. What client 1 answers is changed on the way."""

    def run(change: Callable[[RecordDict], RecordDict], min_clients: int = 1) -> tuple[RoundResult, dict[int, str]]:
        def reply(client: int, message: Message) -> RecordDict:
            content = honest(client, message.content)
            return change(content) if client == 1 else content

        grid.reply, ready = reply, built()
        remote = Remote(ready.method, ready.federation, make_key(0), transport(grid))
        remote.min_clients = min_clients
        return remote.run_round(server(), Round(0, (0, 1, 2), evaluate=False)), remote.reasons

    return run


def server() -> Tree:
    method = built().method
    return method.init_server(method.setup.model.init_params(), 3, fold(make_key(0), "server"))


@cache
def reference(*participants: int) -> RoundResult:
    ready = built()
    return Sequential(ready.method, ready.federation, make_key(0)).run_round(
        server(), Round(0, participants, evaluate=False)
    )


def test_a_round_over_the_grid_is_one_of_the_reference(
    a_round: Callable[..., tuple[RoundResult, dict[int, str]]],
) -> None:
    (found, _), expected = a_round(lambda content: content), reference(0, 1, 2)
    assert_close(flatten(found.server), flatten(expected.server), rtol=0, atol=0)
    assert found.reports == expected.reports


def raw(leaf: torch.Tensor, **changes: Any) -> Array:
    dtype = str(leaf.dtype).removeprefix("torch.")
    whole = {"dtype": dtype, "shape": tuple(leaf.shape), "stype": "fedmate.raw", "data": leaf.numpy().tobytes()}
    return Array(**{**whole, **changes})


def with_array(path: str, odd: Array) -> Callable[[RecordDict], RecordDict]:
    return lambda content: RecordDict({**content, "upload": ArrayRecord({**content["upload"], path: odd})})


BIAS, TEN = "classifier/bias", torch.zeros(10, dtype=torch.float64)
HOSTILE: dict[str, tuple[Callable[[RecordDict], RecordDict], str]] = {
    "NaN": (with_array(BIAS, raw(TEN * torch.nan)), f"upload refused, `{BIAS}` is not finite"),
    "shape": (with_array(BIAS, raw(TEN[:3])), f"upload refused, `{BIAS}` is float64 of shape (3,)"),
    "dtype": (with_array(BIAS, raw(TEN.float())), f"upload refused, `{BIAS}` is float32 of shape (10,)"),
    "counts": (
        with_array("class_counts", raw(torch.full((10,), -1))),
        "upload refused, `class_counts` is negative",
    ),
    "extra array": (with_array("more", raw(TEN)), "upload refused, it does not hold the expected parts (more)"),
    "stype": (
        with_array(BIAS, raw(TEN, stype="numpy.ndarray")),
        f"answer refused, `upload/{BIAS}` is stored as `numpy.ndarray`",
    ),
    "length": (with_array(BIAS, raw(TEN, data=b"\0" * 79)), f"answer refused, `upload/{BIAS}` has 79 bytes"),
    "extra record": (
        lambda content: RecordDict({**content, "notes": ConfigRecord({"x": "y"})}),
        "answer refused, the message holds `notes`, which is not declared",
    ),
    "metrics": (
        lambda content: RecordDict({**content, "metrics": MetricRecord({"losses": [1.0]})}),
        "answer refused, `metrics` does not hold `valid`",
    ),
    "losses": (
        lambda content: RecordDict({**content, "metrics": MetricRecord({"losses": [1.0], "valid": [1.0]})}),
        "not finite",
    ),
    "a error": (lambda content: write_answer(ErrorReply("OSError: disk full")), "OSError: disk full"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_hostile_is_left_out_and_named_and_the_others_count(
    kind: str, a_round: Callable[..., tuple[RoundResult, dict[int, str]]]
) -> None:
    change, reason = HOSTILE[kind]
    found, reasons = a_round(change)
    assert [report.valid for report in found.reports] == [True, False, True]
    assert reasons[1].startswith(reason)
    expected = {part: tree for part, tree in reference(0, 2).server.items() if part != "diagnostics"}
    assert_close({part: found.server[part] for part in expected}, expected, rtol=0, atol=1e-12)


def test_too_few_answers_end_a_round(grid: Grid, a_round: Callable[..., tuple[RoundResult, dict[int, str]]]) -> None:
    with pytest.raises(TooFewError, match="client 1: no reason at all"):
        a_round(lambda content: write_answer(ErrorReply("no reason at all")), min_clients=3)
    assert grid.types().count("train") == 5
