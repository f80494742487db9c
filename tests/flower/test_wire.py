"""What crosses as Flower's records: it comes back as it was, and what is not declared is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fedmate.flower.client_app import answer, introduce
from fedmate.flower.wire import (
    DTYPES,
    LONGEST,
    STYPE,
    Introduction,
    Order,
    WireError,
    check_query,
    read_answer,
    read_introduction,
    read_request,
    sentence,
    write_answer,
    write_introduction,
    write_request,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmate.backends.base import itemise
from fedmate.core import flatten, fold, make_key
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.flower.client import Site
from fedmate.flower.client_state import AheadError, ClientState
from fedmate.flower.messages import Answer, ErrorReply, Kind, Request
from fedmate.storage import BusyError

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

TOKEN = "ab" * 16
LEAVES = {
    "classifier/bias": torch.tensor([0.1, -math.inf, math.nan], dtype=torch.float32),
    "extractor/weight": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "num_samples": torch.tensor(12),
    "known": torch.tensor([True, False]),
    "small": torch.tensor([[1], [2]], dtype=torch.int32),
    "bytes": torch.tensor([0, 255], dtype=torch.uint8),
    "nothing": torch.zeros(0, 3),
}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
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


@pytest.mark.parametrize("kind", ["train", "view"])
@pytest.mark.parametrize("evaluate", [True, False])
def test_a_request_arrives_as_it_was(kind: Kind, evaluate: bool) -> None:
    order = Order(TOKEN, 3, Request(kind, 7, evaluate, LEAVES))
    content = write_request(order)
    assert {*content} == {"download", "request"}
    found = read_request(carried(content))
    assert same(found.request.download, LEAVES)
    assert found._replace(request=found.request._replace(download={})) == order._replace(
        request=order.request._replace(download={})
    )


def test_an_answer_arrives_as_it_was() -> None:
    metrics = {"losses": [2.5, math.inf], "valid": [1.0], "post": [0.0, 1.0, 0.1]}
    content = write_answer(Answer(LEAVES, metrics))
    assert {*content} == {"upload", "metrics"}
    found = read_answer(carried(content), Request("train", 0, True, {}))
    assert isinstance(found, Answer)
    assert found.metrics == metrics
    assert same(found.upload, LEAVES)
    # It is the receiver's own, to be written to.
    found.upload["bytes"][0] = 1


def test_views_arrive_as_they_were() -> None:
    views = {"pre": [0.25, 0.5], "classifier_tuned": [0.125, math.nan]}
    found = read_answer(carried(write_answer(Answer({}, views))), Request("view", 0, True, {}))
    assert isinstance(found, Answer)
    assert found.upload == {}
    assert str(found.metrics) == str(views)


def test_a_fault_and_an_introduction_arrive_as_they_were() -> None:
    for request in (Request("train", 0, False, {}), Request("view", 0, True, {})):
        assert read_answer(carried(write_answer(ErrorReply("out of paper"))), request) == ErrorReply("out of paper")
    assert read_introduction(carried(write_introduction(ErrorReply("no such folder")))) == ErrorReply("no such folder")
    assert read_introduction(carried(write_introduction(Introduction(4, "0.1.0")))) == Introduction(4, "0.1.0")
    check_query(carried(RecordDict()))


@settings(max_examples=50)
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    shape=st.lists(st.integers(0, 3), max_size=3),
    data=st.data(),
)
def test_every_bit_arrives(dtype: str, shape: list[int], data: st.DataObject) -> None:
    kind = getattr(torch, dtype)
    size = math.prod(shape) * torch.zeros((), dtype=kind).element_size()
    raw = data.draw(st.lists(st.integers(0, 1 if dtype == "bool" else 255), min_size=size, max_size=size))
    leaf = torch.tensor(raw, dtype=torch.uint8).view(kind).reshape(shape)
    content = write_request(Order(TOKEN, 0, Request("train", 0, False, {"leaf": leaf})))
    assert content["download"]["leaf"].data == bytes(raw)
    assert same(read_request(content).request.download, {"leaf": leaf})


def test_a_type_that_no_tree_holds_does_not_leave() -> None:
    with pytest.raises(WireError, match="`odd` is complex64, which does not travel"):
        write_answer(Answer({"odd": torch.zeros(1, dtype=torch.complex64)}, {}))


# -------------------- what is hostile


def array(**changes: Any) -> Array:
    return Array(**{"dtype": "float32", "shape": (2,), "stype": STYPE, "data": b"\0" * 8, **changes})


HOSTILE_ARRAYS: dict[str, tuple[Array, str]] = {
    "numpy": (array(stype="numpy.ndarray"), "`upload/x` is stored as `numpy.ndarray`, not as `fedmate.raw`"),
    "objects": (array(dtype="object"), "`upload/x` is of type `object`, which does not travel"),
    "short": (array(data=b"\0" * 7), r"`upload/x` has 7 bytes, but its shape (2,) takes 8"),
    "long": (array(data=b"\0" * 9), r"`upload/x` has 9 bytes, but its shape (2,) takes 8"),
    "empty": (array(data=b""), r"`upload/x` has 0 bytes"),
    "negative": (array(shape=(-1, -2)), r"`upload/x` is of shape (-1, -2), which nothing is"),
    "huge": (array(shape=(2**62, 4)), "which nothing is"),
    "huge and empty": (array(shape=(2**40, 0), data=b""), "which nothing is"),
    "too many axes": (array(shape=(1,) * 65, data=b"\0" * 4), "which nothing is"),
    "nothing of too much": (array(shape=(0, 2**31 - 1, 2**31 - 1), data=b""), "which nothing is"),
    "wraps": (array(shape=(2**30, 2**30, 2**30), data=b""), "takes"),
    "bool": (array(dtype="bool", data=b"\0\2"), "`upload/x` holds bytes that are neither true nor false"),
}


@pytest.mark.parametrize("kind", HOSTILE_ARRAYS)
def test_an_array_that_is_none_is_named(kind: str) -> None:
    odd, reason = HOSTILE_ARRAYS[kind]
    content = RecordDict({"upload": ArrayRecord({"x": odd}), "metrics": MetricRecord({"losses": [], "valid": []})})
    with pytest.raises(WireError) as error:
        read_answer(content, Request("train", 0, False, {}))
    assert reason in str(error.value)


GOOD_METRICS = MetricRecord({"losses": [1.0, 0.5], "valid": [1.0]})


@pytest.mark.parametrize("name", ["x\n\x1b[31mError", "y" * 5000])
def test_an_array_whose_name_is_no_name_is_refused(name: str) -> None:
    content = RecordDict({"upload": ArrayRecord({name: array()}), "metrics": GOOD_METRICS})
    with pytest.raises(WireError, match="whose name is not plain text") as error:
        read_answer(content, Request("train", 0, False, {}))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


GOOD: dict[str, Any] = {
    "upload": ArrayRecord({"x": array()}),
    "metrics": GOOD_METRICS,
}

HOSTILE_ANSWERS: dict[str, tuple[dict[str, Any], str]] = {
    "extra record": ({**GOOD, "more": ConfigRecord({"x": 1})}, "the message holds `more`, which is not declared"),
    "no upload": ({"metrics": GOOD["metrics"]}, "the message does not hold `upload`"),
    "no metrics": ({"upload": GOOD["upload"]}, "the message does not hold `metrics`"),
    "nothing": ({}, "the message does not hold `metrics`"),
    "wrong record": (
        {**GOOD, "upload": MetricRecord({"x": 1.0})},
        "`upload` is of type `MetricRecord`, not `ArrayRecord`",
    ),
    "extra metric": (
        {**GOOD, "metrics": MetricRecord({**GOOD["metrics"], "secret": [1.0]})},
        "`metrics` holds `secret`, which is not declared",
    ),
    "accuracies nobody asked for": (
        {**GOOD, "metrics": MetricRecord({**GOOD["metrics"], "post": [1.0]})},
        "`metrics` holds `post`, which is not declared",
    ),
    "missing metric": ({**GOOD, "metrics": MetricRecord({"losses": [1.0]})}, "`metrics` does not hold `valid`"),
    "whole numbers": (
        {**GOOD, "metrics": MetricRecord({"losses": [1, 2], "valid": [1.0]})},
        "`metrics` holds `losses`, which is no list of floats",
    ),
    "one number": (
        {**GOOD, "metrics": MetricRecord({"losses": 1.0, "valid": [1.0]})},
        "`metrics` holds `losses`, which is no list of floats",
    ),
    "error and more": (
        {**GOOD, "error": ConfigRecord({"reason": "x"})},
        "the message holds `upload`, which is not declared",
    ),
    "error of numbers": ({"error": ConfigRecord({"reason": 1})}, "`error.reason` is of type `int`, not `str`"),
    "error of more": (
        {"error": ConfigRecord({"reason": "x", "more": "y"})},
        "`error` holds `more`, which is not declared",
    ),
    "error of arrays": ({"error": ArrayRecord({"x": array()})}, "`error` is of type `ArrayRecord`"),
}


@pytest.mark.parametrize("kind", HOSTILE_ANSWERS)
def test_an_answer_that_is_none_is_named(kind: str) -> None:
    records, reason = HOSTILE_ANSWERS[kind]
    with pytest.raises(WireError) as error:
        read_answer(carried(RecordDict(records)), Request("train", 0, False, {}))
    assert str(error.value).startswith(reason)


def test_a_good_answer_is_one() -> None:
    assert isinstance(read_answer(carried(RecordDict(GOOD)), Request("train", 0, False, {})), Answer)


def test_an_answer_is_held_against_its_question() -> None:
    with pytest.raises(WireError, match="`metrics` does not hold `post`"):
        read_answer(RecordDict(GOOD), Request("train", 0, True, {}))
    with pytest.raises(WireError, match="`upload` holds arrays, but only accuracies were asked for"):
        read_answer(RecordDict(GOOD), Request("view", 0, True, {}))
    many = MetricRecord({f"view_{i}": [1.0] for i in range(17)})
    with pytest.raises(WireError, match="`metrics` names 17 views"):
        read_answer(RecordDict({"upload": ArrayRecord(), "metrics": many}), Request("view", 0, True, {}))


ASKED: dict[str, Any] = {"experiment": TOKEN, "client": 0, "kind": "train", "round": 0, "evaluate": False}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "steal"}, "`request.kind` is `steal`, which is neither `train` nor `view`"),
        ({"round": -1}, "`request.round` is -1, which is negative"),
        ({"round": 1.0}, "`request.round` is of type `float`, not `int`"),
        ({"round": True}, "`request.round` is of type `bool`, not `int`"),
        ({"evaluate": 1}, "`request.evaluate` is of type `int`, not `bool`"),
        ({"client": "0"}, "`request.client` is of type `str`, not `int`"),
        ({"experiment": b"ab"}, "`request.experiment` is of type `bytes`, not `str`"),
        ({"seed": 1}, "`request` holds `seed`, which is not declared"),
    ],
)
def test_a_request_that_is_none_is_named(changes: dict[str, Any], reason: str) -> None:
    content = RecordDict({"download": ArrayRecord(), "request": ConfigRecord({**ASKED, **changes})})
    with pytest.raises(WireError) as error:
        read_request(carried(content))
    assert str(error.value) == reason


def test_an_introduction_that_is_none_is_named() -> None:
    for fields, reason in [
        ({"partition": 1.0, "fedmate": "0"}, "`site.partition` is of type `float`"),
        ({"partition": 1}, "`site` does not hold `fedmate`"),
        ({"partition": 1, "fedmate": "0", "samples": 12}, "`site` holds `samples`"),
    ]:
        with pytest.raises(WireError, match=reason):
            read_introduction(RecordDict({"site": ConfigRecord(fields)}))
    with pytest.raises(WireError, match="the message holds `x`"):
        check_query(RecordDict({"x": ConfigRecord({})}))


def test_what_others_write_is_one_harmless_line() -> None:
    assert sentence("\n first\x1b[31m\u202e line \nsecond") == "first?[31m? line "
    assert sentence(" \n") == "without a reason"
    assert len(sentence("x" * 10**6)) == LONGEST
    odd = RecordDict({"error": ConfigRecord({"reason": "\x1b[2Jgone\nTraceback"})})
    assert read_answer(odd, Request("train", 0, False, {})) == ErrorReply("?[2Jgone")
    with pytest.raises(WireError, match=r"^the message holds `\?\[2J`, which is not declared$"):
        read_answer(RecordDict({"\x1b[2J": ConfigRecord({})}), Request("train", 0, False, {}))


# -------------------- a site behind the wire


def a_site(folder: Path, method: str = "fedmate", model: str = "cifar_cnn") -> Site:
    """Client 1 of two, with noise for images."""
    from fedmate import Pool
    from fedmate.experiment.user_inputs import UserInputs

    draw = torch.Generator().manual_seed(0)
    images = torch.rand(80, 3, 32, 32, generator=draw).numpy()
    pool = UserInputs(data=Pool(images, torch.arange(80).remainder(10).numpy()))
    values = {
        "device": "cpu",
        "backend": "sequential",
        "rounds": 2,
        "partition": {"name": "iid", "clients": 2},
        "model": {"name": model},
        "training": {"epochs": 1},
        "method": {"name": method},
    }
    built = build(resolve([ConfigSource("test", values), pool.layer()]), pool)
    federation = built.federation
    store = ClientState(folder, TOKEN, 1)
    return Site(1, 2, built.method, federation.clients[1], federation.test, make_key(0), store, lambda: "now")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return a_site(tmp_path_factory.mktemp("site"))


def asked(site: Site, round_number: int = 0, client: int = 1) -> RecordDict:
    method = site.method
    server = method.init_server(method.setup.model.init_params(), 2, fold(site.key, "server"))
    download = method.download(server, torch.tensor(client))
    parts = {part: content for part, content in download.items() if part in method.wire(round_number).down}
    return write_request(Order(TOKEN, client, Request("train", round_number, False, flatten(parts))))


def num_array_bytes(record: ArrayRecord) -> int:
    return sum(len(one.data) for one in record.values())


def test_the_bytes_of_arrays_are_those_of_the_ledger(site: Site) -> None:
    """FedMate with the network for CIFAR: not a byte more than is counted, and what Flower adds is small."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    question = asked(site)
    reply = carried(answer(carried(question), lambda _: site))
    found = read_answer(reply, Request("train", 0, False, {}))
    assert isinstance(found, Answer)
    for record, leaves in (
        (question["download"], read_request(question).request.download),
        (reply["upload"], found.upload),
    ):
        parts: dict[str, Any] = {}
        for path, leaf in leaves.items():
            parts.setdefault(path.partition("/")[0], {})[path] = leaf
        assert num_array_bytes(record) == sum(itemise(parts).values()) > 1e5
    for content in (question, reply):
        whole = sum(len(piece.deflate()) for piece in get_all_nested_objects(content).values())
        arrays = sum(num_array_bytes(record) for record in content.array_records.values())
        assert 0 < whole - arrays < 12_000


def test_a_site_answers_whatever_happens(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    def error(content: RecordDict, open_site: Any = lambda _: site) -> str:
        found = read_answer(carried(answer(content, open_site)), Request("train", 0, False, {}))
        assert isinstance(found, ErrorReply)
        return found.reason

    def broken(token: str) -> Site:
        assert token == TOKEN
        raise ValueError("no such thing\nTraceback, with data: 0.25")

    def silent(token: str) -> Site:
        raise KeyError

    assert error(RecordDict()) == "the message does not hold `download`"
    assert error(asked(site, client=0)) == "client 0 is asked, but this is client 1"
    assert error(asked(site), broken) == "it failed, and its own log says why (ValueError)"
    assert error(asked(site), silent) == "it failed, and its own log says why (KeyError)"
    # What stays at the site is the whole of it.
    assert "with data: 0.25" in caplog.text
    less = asked(site)
    del less["download"]["round"]
    assert error(less).startswith("the download of round 1 is none of this experiment: it does not hold the expected")


def test_what_a_virtual_client_says_may_be_read_by_its_server(site: Site) -> None:
    def said(error: Exception, is_virtual: bool) -> str:
        def opener(token: str) -> Site:
            raise error

        content = carried(answer(asked(site), opener, is_virtual=is_virtual))
        found = read_answer(content, Request("train", 0, False, {}))
        assert isinstance(found, ErrorReply)
        return found.reason

    assert said(ValueError("no such thing\nTraceback"), True) == "ValueError: no such thing"
    assert said(KeyError(), True) == "KeyError"
    secret = "`/home/ward 7/patients.npz` cannot be read."
    for error in (UserError(secret), OSError(28, "No space left", "/home/ward 7")):
        assert "ward" not in said(error, False)
    assert said(BusyError("/home/ward 7/lock"), False) == "it is still at an earlier message"
    assert said(AheadError("client 1 is asked for round 2."), False) == "client 1 is asked for round 2"


def test_a_node_says_which_client_it_is() -> None:
    from fedmate import __version__

    assert read_introduction(introduce(RecordDict(), {"partition-id": 3})) == Introduction(3, __version__)
    for config in ({}, {"partition-id": "3"}, {"partition-id": -1}, {"partition-id": True}):
        found = read_introduction(introduce(RecordDict(), config))
        assert isinstance(found, ErrorReply)
        assert found.reason.startswith("a node's `partition-id` is ")
    assert read_introduction(introduce(RecordDict({"x": ConfigRecord({})}), {"partition-id": 3})) == ErrorReply(
        "the message holds `x`, which is not declared"
    )
