"""What crosses, as Flower's records: exactly what is declared here, and anything else is refused by name.

request   ArrayRecord `download`; ConfigRecord `request`: experiment, client, kind, round, evaluate
answer    ArrayRecord `upload`; MetricRecord `metrics`: lists of floats by name
query     nothing
site      ConfigRecord `site`: partition, fedmate
error     ConfigRecord `error`: reason

Arrays are the raw bytes of their numbers, little end first: a message has as many of them as the ledger counts, and
reading it executes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmate.flower.messages import Answer, ErrorReply, Leaves, Metrics, PublicError, Reply, Request

if TYPE_CHECKING:
    from flwr.app import Array, ArrayRecord, RecordDict

STYPE = "fedmate.raw"
"""What Flower calls the form of an array's bytes; it looks into none but its own."""

DTYPES = {"float32": "<f4", "float64": "<f8", "int64": "<i8", "int32": "<i4", "uint8": "|u1", "bool": "|b1"}
"""The types that travel, and what numpy calls them with the little end first."""

LONGEST = 300
"""How many characters of a text that somebody else wrote are shown."""

MOST_AXES = 8
"""How many axes an array may have."""

MOST_VIEWS = 16
"""How many views a method may have."""


class WireError(PublicError):
    """A message that holds something else than what is declared, and what that is: a sentence without its end."""


class Order(NamedTuple):
    """A request with its address.

    Attributes:
        experiment: what tells the experiment from others.
        client: who is asked.
        request: what for.
    """

    experiment: str
    client: int
    request: Request


class Introduction(NamedTuple):
    """What a node says about itself.

    Attributes:
        partition: which client it is.
        fedmate: the version that it runs.
    """

    partition: int
    fedmate: str


def sentence(text: str) -> str:
    """Return the first line of a text that somebody else wrote, without what a terminal might obey."""
    lines = text.strip().splitlines() or ["without a reason"]
    return "".join(mark if mark.isprintable() else "?" for mark in lines[0])[:LONGEST]


def write_request(order: Order) -> RecordDict:
    """Return a request as records."""
    from flwr.app import ConfigRecord, RecordDict

    request = order.request
    address = {"experiment": order.experiment, "client": order.client}
    asked = {"kind": request.kind, "round": request.round, "evaluate": request.evaluate}
    return RecordDict({"download": _arrays(request.download), "request": ConfigRecord({**address, **asked})})


def read_request(content: RecordDict) -> Order:
    """Return what is asked of whom, or raise `WireError`."""
    from flwr.app import ArrayRecord, ConfigRecord

    _check_records(content, {"download": ArrayRecord, "request": ConfigRecord})
    types = {"experiment": str, "client": int, "kind": str, "round": int, "evaluate": bool}
    told = _fields("request", content["request"], types)
    kind = told["kind"]
    if kind not in ("train", "view"):
        raise WireError(f"`request.kind` is `{sentence(kind)}`, which is neither `train` nor `view`")
    if told["round"] < 0:
        raise WireError(f"`request.round` is {told['round']}, which is negative")
    request = Request(kind, told["round"], told["evaluate"], _leaves("download", content["download"]))
    return Order(told["experiment"], told["client"], request)


def write_answer(answer: Reply) -> RecordDict:
    """Return an answer, or the reason why there is none, as records."""
    from flwr.app import ConfigRecord, MetricRecord, RecordDict

    if isinstance(answer, ErrorReply):
        return RecordDict({"error": ConfigRecord({"reason": sentence(answer.reason)})})
    return RecordDict({"upload": _arrays(answer.upload), "metrics": MetricRecord(dict(answer.metrics))})


def read_answer(content: RecordDict, request: Request) -> Reply:
    """Return what was answered to a request, or raise `WireError`."""
    from flwr.app import ArrayRecord, MetricRecord

    if "error" in content:
        return _error_reply(content)
    _check_records(content, {"upload": ArrayRecord, "metrics": MetricRecord})
    metrics = _metrics(content["metrics"])
    if request.kind == "train":
        _check_keys("metrics", metrics, {"losses", "valid", *(["post"] if request.evaluate else [])})
    elif len(content["upload"]):
        raise WireError("`upload` holds arrays, but only accuracies were asked for")
    elif len(metrics) > MOST_VIEWS:
        raise WireError(f"`metrics` names {len(metrics)} views")
    return Answer(_leaves("upload", content["upload"]), metrics)


def write_introduction(site: Introduction | ErrorReply) -> RecordDict:
    """Return what a node says about itself, or why it cannot, as records."""
    from flwr.app import ConfigRecord, RecordDict

    if isinstance(site, ErrorReply):
        return write_answer(site)
    return RecordDict({"site": ConfigRecord(site._asdict())})


def read_introduction(content: RecordDict) -> Introduction | ErrorReply:
    """Return what a node says about itself, or raise `WireError`."""
    from flwr.app import ConfigRecord

    if "error" in content:
        return _error_reply(content)
    _check_records(content, {"site": ConfigRecord})
    told = _fields("site", content["site"], {"partition": int, "fedmate": str})
    return Introduction(told["partition"], sentence(told["fedmate"]))


def check_query(content: RecordDict) -> None:
    """Raise `WireError` unless a query is as empty as it should be."""
    _check_records(content, {})


def _error_reply(content: RecordDict) -> ErrorReply:
    from flwr.app import ConfigRecord

    _check_records(content, {"error": ConfigRecord})
    return ErrorReply(sentence(_fields("error", content["error"], {"reason": str})["reason"]))


# -------------------- records


def _check_records(content: RecordDict, declared: Mapping[str, type]) -> None:
    _check_keys("the message", content, declared)
    for name, kind in declared.items():
        if not isinstance(content[name], kind):
            raise WireError(f"`{name}` is of type `{type(content[name]).__name__}`, not `{kind.__name__}`")


def _check_keys(place: str, found: Mapping[str, Any], declared: Mapping[str, Any] | set[str]) -> None:
    """Raise `WireError` for what is undeclared, and for what is missing."""
    where = place if place.startswith("the ") else f"`{place}`"
    odd = next((name for name in found if name not in declared), None)
    if odd is not None:
        raise WireError(f"{where} holds `{sentence(odd)}`, which is not declared")
    missing = next((name for name in sorted(declared) if name not in found), None)
    if missing is not None:
        raise WireError(f"{where} does not hold `{missing}`")


def _fields(place: str, record: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    _check_keys(place, record, types)
    for name, kind in types.items():
        # Exactly that: to Python, true is an integer.
        if type(record[name]) is not kind:
            raise WireError(f"`{place}.{name}` is of type `{type(record[name]).__name__}`, not `{kind.__name__}`")
    return dict(record)


def _metrics(record: Mapping[str, Any]) -> Metrics:
    for name, values in record.items():
        if not isinstance(values, list) or any(type(value) is not float for value in values):
            raise WireError(f"`metrics` holds `{sentence(name)}`, which is no list of floats")
    return {name: list(values) for name, values in record.items()}


# -------------------- arrays


def _arrays(leaves: Leaves) -> ArrayRecord:
    from flwr.app import ArrayRecord

    return ArrayRecord({path: _array(path, leaf) for path, leaf in leaves.items()})


def _array(path: str, leaf: Tensor) -> Array:
    from flwr.app import Array

    dtype = str(leaf.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise WireError(f"`{path}` is {dtype}, which does not travel")
    numbers = leaf.detach().cpu().contiguous().numpy().astype(DTYPES[dtype], copy=False)
    return Array(dtype=dtype, shape=tuple(leaf.shape), stype=STYPE, data=numbers.tobytes())


def _leaves(place: str, record: ArrayRecord) -> Leaves:
    odd = next((path for path in record if path != sentence(path)), None)
    if odd is not None:
        raise WireError(f"`{place}` holds `{sentence(odd)}`, whose name is not plain text")
    return {path: _tensor(f"{place}/{path}", array) for path, array in record.items()}


def _tensor(place: str, array: Array) -> Tensor:
    if array.stype != STYPE:
        raise WireError(f"`{place}` is stored as `{sentence(array.stype)}`, not as `{STYPE}`")
    if array.dtype not in DTYPES:
        raise WireError(f"`{place}` is of type `{sentence(array.dtype)}`, which does not travel")
    shape, dtype = tuple(array.shape), np.dtype(DTYPES[array.dtype])
    if len(shape) > MOST_AXES or any(not 0 <= size < 2**31 for size in shape):
        raise WireError(f"`{place}` is of shape {sentence(str(shape))}, which nothing is")
    wanted = math.prod(shape) * dtype.itemsize
    if len(array.data) != wanted:
        raise WireError(f"`{place}` has {len(array.data)} bytes, but its shape {shape} takes {wanted}")
    if array.dtype == "bool" and not {*array.data} <= {0, 1}:
        raise WireError(f"`{place}` holds bytes that are neither true nor false")
    numbers = np.frombuffer(array.data, dtype).astype(dtype.newbyteorder("="))
    try:
        return torch.from_numpy(numbers.reshape(shape))
    except (ValueError, RuntimeError, OverflowError):
        # Nothing along one axis, and more than there can be along others.
        raise WireError(f"`{place}` is of shape {shape}, which nothing is") from None
