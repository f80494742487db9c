"""Messages as Flower's records: they arrive as they were, and undeclared content is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from tests.flower.loop import TOKEN, Loop, built, start

from fedmate.backends.base import itemise
from fedmate.core import flatten, select, unflatten
from fedmate.core.tree import pack
from fedmate.errors import UserError
from fedmate.flower.client import Client
from fedmate.flower.messages import (
    DTYPES,
    STYPE,
    Answer,
    ErrorReply,
    Introduction,
    Leaves,
    PublicError,
    Request,
    read_reply,
    read_request,
    write_reply,
    write_request,
)
from fedmate.flower.node import answer
from fedmate.storage import lock

LEAVES = {
    "classifier/bias": torch.tensor([0.1, -math.inf, math.nan], dtype=torch.float32),
    **{f"one/{name}": torch.ones(2, 1, dtype=getattr(torch, name)) for name in sorted(DTYPES)},
    "num_samples": torch.tensor(12),
    "nothing": torch.zeros(0, 3),
}


def same(found: Leaves, expected: Leaves) -> bool:
    """Names, their order, types, shapes and bits."""
    return list(found) == list(expected) and pack(dict(found), {}) == pack(dict(expected), {})


def carried(content: Any) -> Any:
    """Send records as Flower does: in pieces, as bytes."""
    children = {number: carried(child) for number, child in (content.children or {}).items()}
    return type(content).inflate(content.deflate(), children)


# -------------------- there and back


def test_messages_arrive_as_they_were() -> None:
    request = Request("view", 7, True, LEAVES)
    experiment, client, found = read_request(carried(write_request(TOKEN, 3, request)))
    assert (experiment, client, found._replace(download={})) == (TOKEN, 3, request._replace(download={}))
    assert same(found.download, LEAVES)
    metrics = {"losses": [2.5, math.inf], "valid": [1.0], "post": [0.0, math.nan]}
    reply = read_reply(carried(write_reply(Answer(LEAVES, metrics))))
    assert isinstance(reply, Answer)
    assert str(reply.metrics) == str(metrics)
    assert same(reply.upload, LEAVES)
    # It is the receiver's own, to be written to.
    reply.upload["num_samples"].fill_(1)
    error, node = ErrorReply("out of paper"), Introduction(4, "0.1.0")
    assert read_reply(carried(write_reply(error))) == error
    assert read_reply(carried(write_reply(node))) == node


# -------------------- hostile content


def upload(name: str = "x", **changes: Any) -> RecordDict:
    array = Array(**{"dtype": "float32", "shape": (2,), "stype": STYPE, "data": b"\0" * 8, **changes})
    metrics = MetricRecord({"losses": [1.0, 0.5], "valid": [1.0]})
    return RecordDict({"upload": ArrayRecord({name: array}), "metrics": metrics})


@pytest.mark.parametrize(
    "changes",
    [
        {"stype": "numpy.ndarray"},
        {"dtype": "object"},
        {"data": b"\0" * 7},
        {"shape": (2**62, 4)},
        {"shape": (0, 2**31 - 1, 2**31 - 1, 2**31 - 1), "data": b""},
        {"name": "x\n\x1b[31mError"},
        {"name": "y" * 5000},
    ],
)
def test_an_array_that_is_none_is_named(changes: dict[str, Any]) -> None:
    assert isinstance(read_reply(upload()), Answer)
    with pytest.raises(PublicError, match=r"^`upload/.*` has bytes that do not fit its type and shape$") as error:
        read_reply(upload(**changes))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("read", "records", "reason"),
    [
        (read_reply, {**upload(), "more": ConfigRecord({"x": 1})}, "holds `upload`, `metrics`, `more`"),
        (read_reply, {"\x1b[2J": ConfigRecord({})}, "holds `?[2J`"),
        (read_reply, {**upload(), "upload": MetricRecord({"x": 1.0})}, "`upload` is a `MetricRecord`"),
        (read_reply, {**upload(), "metrics": MetricRecord({"losses": [1, 2]})}, "something else than lists of floats"),
        (read_reply, {"error": ConfigRecord({"reason": 1})}, "`error` has other entries than reason"),
        (read_request, {"download": ArrayRecord(), "request": ConfigRecord({"client": "0"})}, "`request` has"),
        (read_reply, {"node": ConfigRecord({"partition": 1.0, "fedmate": "0"})}, "`node` has other entries"),
    ],
)
def test_a_message_that_is_none_is_refused(read: Callable[[Any], Any], records: dict[str, Any], reason: str) -> None:
    with pytest.raises(PublicError) as error:
        read(carried(RecordDict(records)))
    assert reason in str(error.value)


# -------------------- a client behind messages


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Loop(built("fedmate"), tmp_path).client(1)


def test_the_bytes_of_arrays_are_those_that_are_counted(client: Client) -> None:
    everything = client.backend.method.download(start(built("fedmate")), torch.tensor(1))
    download = select(everything, client.backend.method.wire(0).down)
    question = write_request(TOKEN, 1, Request("train", 0, False, flatten(download)))
    reply = answer(question, lambda _: client)
    found = read_reply(reply)
    assert isinstance(found, Answer)
    for record, tree in ((question["download"], download), (reply["upload"], unflatten(found.upload))):
        assert sum(len(one.data) for one in record.values()) == sum(itemise(tree).values()) > 0
    assert answer(question, lambda _: client) == reply


def test_an_error_becomes_a_sentence_that_says_nothing_of_the_site(client: Client) -> None:
    def reason(error: Exception | None = None, asked: int = 1, **more: Any) -> str:
        def opened(_: str) -> Client:
            if error is not None:
                raise error
            return client

        reply = read_reply(answer(write_request(TOKEN, asked, Request("train", 0, False, {})), opened, **more))
        assert isinstance(reply, ErrorReply)
        return reply.reason

    assert reason(OSError("/home/essen/patients.csv")) == "it failed, and its own log says why (OSError)"
    assert "patients" not in reason(UserError("`/home/essen/patients.csv` is odd."))
    # On the server's own machine the reason is no secret.
    assert reason(UserError("`x` is odd."), is_virtual=True) == "`x` is odd"
    with lock(client.state.folder / "lock"):
        assert reason() == "it is still at an earlier message"
    assert reason(asked=0) == "client 0 is asked, but this is client 1"
    assert reason().startswith("the download of round 1 is none of this experiment")
