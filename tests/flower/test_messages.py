"""Messages as Flower's records: they arrive as they were, and undeclared content is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flower.loop import TOKEN, Loop, built, start

from fedmate.backends.base import itemise
from fedmate.core import Tree, flatten, select, unflatten
from fedmate.errors import UserError
from fedmate.flower.client import Client
from fedmate.flower.messages import (
    DTYPES,
    LONGEST,
    STYPE,
    Address,
    Answer,
    ErrorReply,
    Introduction,
    Leaves,
    MessageError,
    Request,
    read_answer,
    read_introduction,
    read_request,
    sentence,
    write_answer,
    write_introduction,
    write_request,
)
from fedmate.flower.node import answer, introduce

LEAVES = {
    "classifier/bias": torch.tensor([0.1, -math.inf, math.nan], dtype=torch.float32),
    "num_samples": torch.tensor(12),
    "nothing": torch.zeros(0, 3),
}


def same(found: Leaves, expected: Leaves) -> bool:
    """Names, their order, types, shapes and bits."""
    return list(found) == list(expected) and all(
        (found[path].dtype, found[path].shape) == (leaf.dtype, leaf.shape)
        and bytes(found[path].numpy().tobytes()) == leaf.numpy().tobytes()
        for path, leaf in expected.items()
    )


def carried(content: RecordDict) -> RecordDict:
    """Send records as Flower does: in pieces, as bytes."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    pieces = {number: piece.deflate() for number, piece in get_all_nested_objects(content).items()}
    return inflate_object_from_contents(content.object_id, pieces)


# -------------------- there and back


def test_messages_arrive_as_they_were() -> None:
    address, request = Address(TOKEN, 3), Request("view", 7, True, LEAVES)
    found_address, found = read_request(carried(write_request(address, request)))
    assert (found_address, found._replace(download={})) == (address, request._replace(download={}))
    assert same(found.download, LEAVES)
    metrics = {"losses": [2.5, math.inf], "valid": [1.0], "post": [0.0, math.nan]}
    reply = read_answer(carried(write_answer(Answer(LEAVES, metrics))))
    assert isinstance(reply, Answer)
    assert str(reply.metrics) == str(metrics)
    assert same(reply.upload, LEAVES)
    # It is the receiver's own, to be written to.
    reply.upload["num_samples"].fill_(1)
    error, node = ErrorReply("out of paper"), Introduction(4, "0.1.0")
    assert read_answer(carried(write_answer(error))) == error
    assert read_introduction(carried(write_introduction(error))) == error
    assert read_introduction(carried(write_introduction(node))) == node


@settings(max_examples=50)
@given(dtype=st.sampled_from(sorted(DTYPES)), shape=st.lists(st.integers(0, 3), max_size=3), data=st.data())
def test_every_bit_arrives(dtype: str, shape: list[int], data: st.DataObject) -> None:
    kind = getattr(torch, dtype)
    size = math.prod(shape) * torch.zeros((), dtype=kind).element_size()
    raw = data.draw(st.lists(st.integers(0, 1 if dtype == "bool" else 255), min_size=size, max_size=size))
    leaf = torch.tensor(raw, dtype=torch.uint8).view(kind).reshape(shape)
    content = write_request(Address(TOKEN, 0), Request("train", 0, False, {"leaf": leaf}))
    assert content["download"]["leaf"].data == bytes(raw)
    assert same(read_request(content)[1].download, {"leaf": leaf})


# -------------------- hostile content


def array(**changes: Any) -> Array:
    return Array(**{"dtype": "float32", "shape": (2,), "stype": STYPE, "data": b"\0" * 8, **changes})


ARRAYS: dict[str, Array] = {
    "numpy": array(stype="numpy.ndarray"),
    "objects": array(dtype="object"),
    "short": array(data=b"\0" * 7),
    "long": array(data=b"\0" * 12),
    "huge": array(shape=(2**62, 4)),
    "too many axes": array(shape=(1,) * 65, data=b"\0" * 4),
    "overflow": array(shape=(0, 2**31 - 1, 2**31 - 1, 2**31 - 1), data=b""),
    "wraps": array(shape=(2**30, 2**30, 2**30), data=b""),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_that_is_none_is_named(kind: str) -> None:
    content = RecordDict({"upload": ArrayRecord({"x": ARRAYS[kind]}), "metrics": MetricRecord({})})
    with pytest.raises(MessageError, match=r"^`upload/x` has bytes that do not fit its type and shape$"):
        read_answer(content)


@pytest.mark.parametrize("name", ["x\n\x1b[31mError", "y" * 5000])
def test_a_name_that_is_no_plain_text_is_refused(name: str) -> None:
    content = RecordDict({"upload": ArrayRecord({name: array()}), "metrics": MetricRecord({})})
    with pytest.raises(MessageError) as error:
        read_answer(content)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


GOOD: dict[str, Any] = {
    "upload": ArrayRecord({"x": array()}),
    "metrics": MetricRecord({"losses": [1.0, 0.5], "valid": [1.0]}),
}
ASKED: dict[str, Any] = {"experiment": TOKEN, "client": 0, "kind": "train", "round": 0, "evaluate": False}

ANSWERS: dict[str, tuple[dict[str, Any], str]] = {
    "extra record": ({**GOOD, "more": ConfigRecord({"x": 1})}, "the message holds `upload`, `metrics`, `more`"),
    "no upload": ({"metrics": GOOD["metrics"]}, "the message holds `metrics` instead"),
    "nothing": ({}, "the message holds nothing"),
    "wrong record": ({**GOOD, "upload": MetricRecord({"x": 1.0})}, "`upload` is a `MetricRecord`"),
    "whole numbers": ({**GOOD, "metrics": MetricRecord({"losses": [1, 2]})}, "something else than lists of floats"),
    "one number": ({**GOOD, "metrics": MetricRecord({"losses": 1.0})}, "something else than lists of floats"),
    "error and more": ({**GOOD, "error": ConfigRecord({"reason": "x"})}, "the message holds `upload`"),
    "error of numbers": ({"error": ConfigRecord({"reason": 1})}, "`error` has other entries than reason"),
    "error of arrays": ({"error": ArrayRecord({"x": array()})}, "`error` is a `ArrayRecord`"),
    "terminal codes": ({"\x1b[2J": ConfigRecord({})}, "the message holds `?[2J`"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_is_none_is_named(kind: str) -> None:
    records, reason = ANSWERS[kind]
    with pytest.raises(MessageError) as error:
        read_answer(carried(RecordDict(records)))
    assert reason in str(error.value)
    assert isinstance(read_answer(carried(RecordDict(GOOD))), Answer)


@pytest.mark.parametrize(
    "changes", [{"kind": "steal"}, {"round": -1}, {"round": True}, {"client": "0"}, {"experiment": b"ab"}, {"seed": 1}]
)
def test_a_request_or_introduction_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    content = RecordDict({"download": ArrayRecord(), "request": ConfigRecord({**ASKED, **changes})})
    with pytest.raises(MessageError, match="`request` has"):
        read_request(carried(content))
    with pytest.raises(MessageError, match="`node` has other entries"):
        read_introduction(RecordDict({"node": ConfigRecord({"partition": 1.0, "fedmate": "0", **changes})}))


def test_a_text_from_elsewhere_is_one_harmless_line() -> None:
    assert sentence("\n first\x1b[31m\u202e line \nsecond") == "first?[31m? line "
    assert sentence(" \n") == "without a reason"
    assert len(sentence("x" * 10**6)) == LONGEST


# -------------------- a client behind messages


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Loop(built("fedmate"), tmp_path).client(1)


def download_of(client: Client) -> Tree:
    down: Tree = client.method.download(start(built("fedmate")), torch.tensor(1))
    return select(down, client.method.wire(0).down)


def test_the_bytes_of_arrays_are_those_that_are_counted(client: Client) -> None:
    download = download_of(client)
    question = write_request(Address(TOKEN, 1), Request("train", 0, False, flatten(download)))
    reply = answer(question, lambda _: client)
    for record, tree in (
        (question["download"], download),
        (reply["upload"], unflatten(read_answer(reply).upload)),  # type: ignore[union-attr]
    ):
        assert sum(len(one.data) for one in record.values()) == sum(itemise(tree).values()) > 0
    assert answer(question, lambda _: client) == reply


def test_an_error_becomes_a_sentence_that_says_nothing_of_the_site(client: Client) -> None:
    asked = write_request(Address(TOKEN, 1), Request("train", 0, False, flatten(download_of(client))))

    def failing(error: Exception, **more: Any) -> str:
        def fail(_: str) -> Client:
            raise error

        reply = read_answer(answer(asked, fail, **more))
        assert isinstance(reply, ErrorReply)
        return reply.reason

    assert failing(OSError("/home/essen/patients.csv")) == "it failed, and its own log says why (OSError)"
    assert "patients" not in failing(UserError("`/home/essen/patients.csv` is odd."))
    # On the server's own machine the reason is no secret.
    assert failing(OSError("disk full"), is_virtual=True) == "OSError: disk full"
    assert failing(UserError("`x` is odd."), is_virtual=True) == "`x` is odd"
    with client.state.lock():
        assert read_answer(answer(asked, lambda _: client)) == ErrorReply("it is still at an earlier message")
    other = write_request(Address(TOKEN, 0), Request("train", 0, False, {}))
    assert read_answer(answer(other, lambda _: client)) == ErrorReply("client 0 is asked, but this is client 1")
    client.state.save(5, {}, {})
    for broken in (RecordDict(), write_request(Address(TOKEN, 1), Request("train", 0, False, {}))):
        assert isinstance(read_answer(answer(broken, lambda _: client)), ErrorReply)


def test_a_node_introduces_itself() -> None:
    from fedmate import __version__

    assert read_introduction(introduce({"partition-id": 3})) == Introduction(3, __version__)
    for odd in (None, -1, "3", True):
        found = read_introduction(introduce({"partition-id": odd}))
        assert isinstance(found, ErrorReply)
        assert "which is no client's number" in found.reason
