"""Messages between a server and its clients, and their form as Flower's records.

request   ArrayRecord `download`; ConfigRecord `request`: experiment, client, kind, round, evaluate
answer    ArrayRecord `upload`; MetricRecord `metrics`: lists of floats by name
error     ConfigRecord `error`: reason
query     nothing; a node answers with ConfigRecord `node`: partition, fedmate

An array travels as the raw bytes of its numbers: a message has as many as the run's record counts.
Reading it executes nothing, and its receiver compares all paths, shapes and types with those that it expects.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from fedmate.core import Tree, flatten, unflatten
from fedmate.errors import FedmateError

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict

Leaves: TypeAlias = dict[str, Tensor]
"""A tree as it travels: its leaves by path."""

Metrics: TypeAlias = dict[str, list[float]]
"""Numbers that a client reports: `losses` before and after training, `valid`, and what each view is judged by."""

Kind: TypeAlias = Literal["train", "view"]

STYPE = "fedmate.raw"
"""Flower's name for the form of an array's bytes; it only reads its own."""

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool")
"""The types that travel."""


class Request(NamedTuple):
    """A server's request to a client in round t, from 0; `download` has the parts that cross.

    Of kind `train`: take part, and `evaluate` the result or not. Of kind `view`: evaluate the model that it makes.
    """

    kind: Kind
    round: int
    evaluate: bool
    download: Leaves


class Answer(NamedTuple):
    """A client's answer: the parts that cross, none for a view, and the numbers that it reports."""

    upload: Leaves
    metrics: Metrics


class ErrorReply(NamedTuple):
    """The reason why there is no answer, without a full stop."""

    reason: str


class Introduction(NamedTuple):
    """A node's client number and its version of fedmate."""

    partition: int
    fedmate: str


Reply: TypeAlias = Answer | ErrorReply


class PublicError(FedmateError):
    """A reason that may leave the site: it says nothing of its data, its files or its user."""


def to_numbers(tests: Tree) -> list[float]:
    """Return what a view is judged by as numbers, in the order of paths."""
    return [number for _, leaf in sorted(flatten(tests).items()) for number in leaf.flatten().tolist()]


def from_numbers(numbers: list[float] | None, like: Tree, most: float) -> Tree:
    """Return such numbers as a tree, float64; numbers out of 0 to `most` are NaN, and all are if some lack."""
    leaves = dict(sorted(flatten(like).items()))
    sizes = [leaf.numel() for leaf in leaves.values()]
    if numbers is None or len(numbers) != sum(sizes):
        numbers = [math.nan] * sum(sizes)
    found = torch.tensor(numbers, dtype=torch.float64)
    parts = torch.split(found.masked_fill(~((found >= 0) & (found <= most)), math.nan), sizes)
    shaped = (part.reshape(leaf.shape) for part, leaf in zip(parts, leaves.values(), strict=True))
    return unflatten(dict(zip(leaves, shaped, strict=True)))


def sentence(text: str) -> str:
    """Return the first line of a text from elsewhere, 300 characters at most and none that control a terminal."""
    lines = text.strip().splitlines() or ["without a reason"]
    return "".join(mark if mark.isprintable() else "?" for mark in lines[0])[:300]


def write_request(experiment: str, client: int, request: Request) -> RecordDict:
    """Return a request to a client of an experiment, which has a token, as records."""
    from flwr.app import ConfigRecord, RecordDict

    asked = {"kind": request.kind, "round": request.round, "evaluate": request.evaluate}
    record = ConfigRecord({"experiment": experiment, "client": client, **asked})
    return RecordDict({"download": _arrays(request.download), "request": record})


def read_request(content: RecordDict) -> tuple[str, int, Request]:
    """Return experiment, client and request, or raise `PublicError`."""
    if {*content} != {"download", "request"}:
        raise _unknown(content)
    types = {"experiment": str, "client": int, "kind": str, "round": int, "evaluate": bool}
    experiment, client, kind, number, evaluate = _entries(content, "request", types)
    if kind not in get_args(Kind) or number < 0:
        raise PublicError("`request` has an unknown kind or a negative round")
    return experiment, client, Request(kind, number, evaluate, _leaves(content, "download"))


def write_reply(reply: Reply | Introduction) -> RecordDict:
    """Return an answer, a node's introduction, or the reason why there is none, as records."""
    from flwr.app import ConfigRecord, MetricRecord, RecordDict

    if isinstance(reply, Answer):
        return RecordDict({"upload": _arrays(reply.upload), "metrics": MetricRecord(dict(reply.metrics))})
    name = "error" if isinstance(reply, ErrorReply) else "node"
    return RecordDict({name: ConfigRecord(reply._asdict())})


def read_reply(content: RecordDict) -> Reply | Introduction:
    """Return the reply to a request or a query, or raise `PublicError`."""
    names = {*content}
    if names == {"error"}:
        return ErrorReply(sentence(*_entries(content, "error", {"reason": str})))
    if names == {"node"}:
        partition, fedmate = _entries(content, "node", {"partition": int, "fedmate": str})
        return Introduction(partition, sentence(fedmate))
    if names != {"upload", "metrics"}:
        raise _unknown(content)
    metrics = _record(content, "metrics", "MetricRecord")
    if any(not isinstance(values, list) or {*map(type, values)} - {float} for values in metrics.values()):
        raise PublicError("`metrics` holds something else than lists of floats")
    return Answer(_leaves(content, "upload"), metrics)


def _unknown(content: RecordDict) -> PublicError:
    found = ", ".join(f"`{sentence(name)}`" for name in content)
    return PublicError(f"the message holds {found or 'nothing'}, which is not declared")


def _record(content: RecordDict, name: str, kind: str) -> dict[str, Any]:
    if type(content[name]).__name__ != kind:
        raise PublicError(f"`{name}` is a `{type(content[name]).__name__}`, not a `{kind}`")
    return dict(content[name])


def _entries(content: RecordDict, name: str, types: dict[str, type]) -> list[Any]:
    """Return the entries of a record if they have exactly these types: to Python, true is an integer."""
    record = _record(content, name, "ConfigRecord")
    if {key: type(value) for key, value in record.items()} != types:
        raise PublicError(f"`{name}` has other entries than {', '.join(types)}, or entries of another type")
    return [record[key] for key in types]


def _arrays(leaves: Leaves) -> ArrayRecord:
    from flwr.app import Array, ArrayRecord

    arrays = {}
    for path, leaf in leaves.items():
        dtype, numbers = str(leaf.dtype).removeprefix("torch."), leaf.detach().cpu().numpy()
        arrays[path] = Array(dtype=dtype, shape=tuple(leaf.shape), stype=STYPE, data=numbers.tobytes())
    return ArrayRecord(arrays)


def _leaves(content: RecordDict, name: str) -> Leaves:
    leaves: Leaves = {}
    for path, array in _record(content, name, "ArrayRecord").items():
        try:
            if array.stype != STYPE or array.dtype not in DTYPES or path != sentence(path):
                raise ValueError
            numbers = np.frombuffer(array.data, "uint8" if array.dtype == "bool" else array.dtype)
            # A copy, to be written to; any byte but 0 makes a true value.
            leaves[path] = torch.from_numpy(numbers.reshape(array.shape).astype(array.dtype))
        except (TypeError, ValueError, OverflowError):
            place = sentence(f"{name}/{path}")
            raise PublicError(f"`{place}` has bytes that do not fit its type and shape") from None
    return leaves
