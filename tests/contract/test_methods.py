"""The contract of a method: what its pure functions promise, for every row of the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.contract.unreadable import Unreadable
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from fedmate.backends.base import itemise
from fedmate.backends.client import train_client, view_client
from fedmate.core import (
    PER_CLIENT,
    Augmentation,
    ClientData,
    EvaluationData,
    LocalResult,
    Method,
    Source,
    Tree,
    Wire,
    all_finite,
    num_bytes,
    pad,
    stack,
    stack_clients,
    tree_map,
    unmapped,
)
from fedmate.methods import METHODS

if TYPE_CHECKING:
    from tests.contract.conftest import Lab, MakeLab

Spec = Callable[[Tree], Tree]
SIZE = 10
"""What clients are padded to: the last batch of everybody is then padding alone."""


def as_tree(data: ClientData) -> Tree:
    source = data.source
    own = {"rows": data.rows, "y": data.y, "mask": data.mask}
    return {**own, "samples": source.samples, "mean": source.mean, "std": source.std}


def as_data(tree: Tree, augmentation: Augmentation) -> ClientData:
    source = Source(tree["samples"], tree["mean"], tree["std"], augmentation)
    return ClientData(source, tree["rows"], tree["y"], tree["mask"])


def lasting(server: Tree) -> Tree:
    """Leave out what a round may change although nobody took part in it."""
    return {part: value for part, value in server.items() if part not in ("round", "diagnostics")}


def spoilt(leaf: Tensor) -> Tensor:
    """Return what an upload must not be read as."""
    return torch.full_like(leaf, torch.nan if leaf.is_floating_point() else torch.iinfo(leaf.dtype).min)


def copied(tree: Tree) -> Tree:
    return tree_map(torch.clone, tree)


# -------------------- trees and messages


def test_trees_keep_their_structure_from_round_to_round(any_lab: Lab, spec: Spec) -> None:
    server_spec, client_spec = spec(any_lab.server()), spec(any_lab.clients()[0])
    messages: dict[Wire, tuple[Tree, Tree]] = {}
    for t, step in enumerate(any_lab.steps):
        assert spec(step.server) == server_spec
        for i in any_lab.everyone:
            assert spec(step.trained[i].client) == client_spec
            message = (spec(any_lab.received(step.server, t, i)), spec(step.trained[i].upload))
            assert messages.setdefault(any_lab.method.wire(t), message) == message
    assert spec(any_lab.after(step)[0]) == server_spec


def test_every_view_is_a_whole_model(lab: Lab, spec: Spec) -> None:
    method, expected = lab.method, spec(lab.method.setup.model.init_params())
    server, clients = lab.started
    data, key = lab.federation.clients[0], lab.client_key(1, 0)
    download = lab.received(server, 1, 0)
    pre = method.personal_params(clients[0], download)
    views = {
        "pre": method.personalise(pre, clients[0], download, data, key),
        "post": method.local_update(clients[0], download, data, key).params,
        "global": method.global_params(server),
        **method.extra_views(clients[0], download, data, key),
    }
    assert {name: spec(params) for name, params in views.items() if params is not None} == {
        name: expected for name, params in views.items() if params is not None
    }
    assert method.primary_view in views
    assert views[method.primary_view] is not None


def test_messages_have_exactly_the_parts_the_wire_names(any_lab: Lab) -> None:
    for t, step in enumerate(any_lab.steps):
        wire = any_lab.method.wire(t)
        for i in any_lab.everyone:
            assert set(any_lab.received(step.server, t, i)) == wire.down
            assert set(step.trained[i].upload) == wire.up


def test_the_ledger_counts_what_crosses(lab: Lab) -> None:
    for t, step in enumerate(lab.steps):
        for message in (lab.received(step.server, t, 0), step.trained[0].upload):
            by_hand = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(message))
            assert sum(itemise(message).values()) == num_bytes(message) == by_hand


def test_a_newcomer_receives_what_a_member_does(lab: Lab, spec: Spec) -> None:
    server, _ = lab.started
    stranger = lab.method.download(server, torch.tensor(-1))
    assert spec(stranger) == spec(lab.method.download(server, torch.tensor(0)))
    assert all_finite(stranger)


# -------------------- pure functions


def test_functions_are_pure(lab: Lab) -> None:
    """The same arguments give the same bits, and the arguments stay as they were."""
    server, clients = lab.started
    before = {"server": copied(server), "client": copied(clients[0])}
    first, second = (lab.train(server, clients[0], 1, 0) for _ in range(2))
    assert_close(first, second, rtol=0, atol=0, equal_nan=True)
    uploads = lab.steps[1].uploads()
    sent = copied(uploads)
    first_server, second_server = (lab.aggregate(server, uploads, lab.everyone, [True] * 5) for _ in range(2))
    assert_close(first_server, second_server, rtol=0, atol=0)
    assert_close({"server": server, "client": clients[0]}, before, rtol=0, atol=0)
    assert_close(uploads, sent, rtol=0, atol=0)


def test_another_key_gives_another_result(plain_lab: Lab) -> None:
    """Every method shuffles its batches; the data and the initial model stay."""
    server, clients = plain_lab.server(), plain_lab.clients()
    one, other = (lab.train(server, clients[0], 0, 0) for lab in (plain_lab, plain_lab.with_key(12)))
    assert one.loss[0] == other.loss[0]
    with pytest.raises(AssertionError, match="not close"):
        assert_close((one.client, one.upload), (other.client, other.upload), rtol=0, atol=1e-9)


# -------------------- padding and many at once


def test_padding_does_not_matter(any_lab: Lab) -> None:
    for t in any_lab.structures().values():
        server, clients, trained = any_lab.steps[t]
        for i in any_lab.everyone:
            padded = any_lab.train(server, clients[i], t, i, pad(any_lab.federation.clients[i], SIZE))
            assert_close(padded, trained[i], rtol=0, atol=1e-12, equal_nan=True)


def test_padding_does_not_matter_to_views(any_lab: Lab) -> None:
    server, clients = any_lab.started
    for i in any_lab.everyone:
        data, download, key = any_lab.federation.clients[i], any_lab.received(server, 1, i), any_lab.client_key(0, i)
        plain, padded = (views(any_lab.method, clients[i], download, d, key) for d in (data, pad(data, SIZE)))
        assert_close(padded, plain, rtol=0, atol=1e-12)


def views(method: Method, client: Tree, download: Tree, data: ClientData, key: Tensor) -> dict[str, Tree]:
    """Return the models behind the views that are made for evaluation."""
    with torch.no_grad():
        personal = method.personalise(method.personal_params(client, download), client, download, data, key)
        return {"pre": personal, **method.extra_views(client, download, data, key)}


def test_many_clients_at_once_are_many_single_ones(any_lab: Lab) -> None:
    """Under vmap, padded to one length: the functions contain nothing that only a single client can run.

    With the largest client and the two awkward ones; back ends are held against the loop with all.
    """
    method, test = any_lab.method, any_lab.federation.test
    (server, clients), tests = any_lab.started, EvaluationData(test, test)

    def one(t: int, client_id: Tensor, client: Tree, own: ClientData, key: Tensor) -> Tree:
        whole = method.download(server, client_id)
        download = {part: value for part, value in whole.items() if part in method.wire(t).down}
        trained = train_client(method, t, client, download, own, key, tests)
        _, seen = view_client(method, trained.client, download, own, key, tests)
        return {"trained": trained._asdict(), "seen": seen, "views": views(method, client, download, own, key)}

    few, ids, per_client = any_lab.federation.clients[:3], torch.arange(3), (0, 0, PER_CLIENT, 0)
    for t in any_lab.structures().values():
        rows = (ids, stack(clients[:3]), stack_clients(few), torch.stack([any_lab.client_key(t, i) for i in range(3)]))
        with torch.no_grad():
            together = torch.func.vmap(lambda *rows, t=t: one(t, *rows), per_client)(*rows)
            alone = stack([one(t, ids[i], clients[i], few[i], any_lab.client_key(t, i)) for i in range(3)])
        assert_close(together, alone, rtol=0, atol=1e-9, equal_nan=True)


# -------------------- aggregation


def test_the_order_of_clients_does_not_matter_to_aggregate(lab: Lab) -> None:
    valid, order = torch.tensor([True, True, False, True, True]), torch.tensor([3, 0, 4, 1, 2])
    for step in lab.late_steps():
        uploads, ids = step.uploads(), torch.tensor(lab.everyone)
        shuffled = tree_map(lambda leaf: leaf[order], uploads)
        with torch.no_grad():
            expected = lab.method.aggregate(step.server, uploads, ids, valid, lab.key)
            found = lab.method.aggregate(step.server, shuffled, ids[order], valid[order], lab.key)
        assert_close(found, expected, rtol=0, atol=1e-12)


def test_who_is_not_valid_is_as_good_as_absent(lab: Lab) -> None:
    for step in lab.late_steps():
        uploads = [result.upload for result in step.trained]
        without = lab.aggregate(step.server, stack([uploads[i] for i in (0, 1, 2, 4)]), (0, 1, 2, 4), [True] * 4)
        uploads[3] = tree_map(spoilt, uploads[3])
        found = lab.aggregate(step.server, stack(uploads), lab.everyone, [i != 3 for i in lab.everyone])
        assert_close(found, without, rtol=0, atol=1e-12)


def test_without_a_valid_client_the_server_stays(lab: Lab) -> None:
    for step in lab.late_steps():
        uploads = tree_map(spoilt, step.uploads())
        found = lab.aggregate(step.server, uploads, lab.everyone, [False] * 5)
        assert all_finite(found)
        assert_close(lasting(found), lasting(step.server), rtol=0, atol=0)


@pytest.mark.parametrize("cause", ["learning_rate", "data"])
def test_a_client_that_diverges_keeps_its_state(plain_lab: Lab, cause: str) -> None:
    server, clients = plain_lab.started
    assert plain_lab.steps[1].trained[0].valid
    lab, data = plain_lab, plain_lab.federation.clients[0]
    if cause == "data":
        data = data._replace(source=data.source._replace(samples=data.source.samples * torch.nan))
    else:
        setup = lab.method.setup
        wild = dataclasses.replace(setup, training=dataclasses.replace(setup.training, learning_rate=1e200))
        lab = dataclasses.replace(lab, method=dataclasses.replace(lab.method, setup=wild))
    result = lab.train(server, clients[0], 1, 0, data)
    assert not result.valid
    assert_close(result.client, clients[0], rtol=0, atol=0)


# -------------------- awkward clients


def test_awkward_clients_leave_everything_finite(lab: Lab) -> None:
    """A class nobody holds, a client with one class, a client with one sample."""
    for step in lab.steps:
        assert all_finite(step.server)
        for result in step.trained:
            assert result.valid
            assert all_finite(result._asdict())
    server, clients = lab.after(step)
    assert all_finite(server)
    for i in lab.everyone:
        found = views(lab.method, clients[i], lab.received(server, 3, i), lab.federation.clients[i], lab.key)
        assert all_finite(found)


def test_a_lone_awkward_client_leaves_everything_finite(plain_lab: Lab) -> None:
    """One class or one sample is all there is in the round: most classes have no holder."""
    for i in (1, 2):
        server, clients = plain_lab.server(), plain_lab.clients()
        for t in range(plain_lab.method.setup.rounds):
            result = plain_lab.train(server, clients[i], t, i)
            assert result.valid
            server = plain_lab.aggregate(server, stack([result.upload]), [i], [True])
            clients[i] = result.client
            assert all_finite({"server": server, "client": result.client})


# -------------------- no host reads


TRACED = (0, 2)
"""Clients with several batches and with one sample."""


def trace(lab: Lab) -> None:
    """Run a round on tensors without content: reading one back to the host raises."""
    lab = lab.with_few_steps()
    states, clients = lab.clients(), lab.federation.clients
    inputs: Tree = {
        "server": lab.server(),
        "states": {str(i): states[i] for i in TRACED},
        "ids": {str(i): torch.tensor(i) for i in TRACED},
        "data": {str(i): as_tree(clients[i]) for i in TRACED},
        "test": as_tree(lab.federation.test),
        "key": lab.key,
    }
    for t in lab.structures().values():
        # A real pass first: it makes the modules, which hold tensors with content, and it must work.
        _round(lab.method, t, inputs)
        with Unreadable() as mode:
            _round(lab.method, t, tree_map(mode.from_tensor, inputs))


def _round(method: Method, t: int, inputs: Tree) -> None:
    """Run a whole round, evaluation included."""
    server, key, test = inputs["server"], inputs["key"], as_data(inputs["test"], Augmentation())
    trained, tests = [], EvaluationData(test, test)
    with torch.no_grad():
        for name, client in inputs["states"].items():
            data = as_data(inputs["data"][name], Augmentation(crop=1, flip=True))
            whole = method.download(server, inputs["ids"][name])
            download = {part: value for part, value in whole.items() if part in method.wire(t).down}
            trained.append(train_client(method, t, client, download, data, key, tests))
            view_client(method, client, download, data, key, tests)
        uploads = stack([result.upload for result in trained])
        ids = torch.stack(list(inputs["ids"].values()))
        method.aggregate(server, uploads, ids, torch.stack([result.valid for result in trained]), key)


def test_nothing_in_a_round_is_read_back_to_the_host(buffered_lab: Lab) -> None:
    trace(buffered_lab)


def test_nothing_is_read_back_with_unmapped_either(telling_lab: Lab) -> None:
    with unmapped():
        trace(telling_lab)


class NoNumbers(TorchFunctionMode):
    """Refuses to make tensors of Python's numbers: each would be sent to the device, in every round."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        makes = func in (torch.tensor, torch.as_tensor, torch.scalar_tensor)
        if makes or (func is torch.where and not all(isinstance(argument, Tensor) for argument in args)):
            raise AssertionError(f"{func.__name__} of numbers")
        return func(*args, **(kwargs or {}))


def test_nothing_in_a_round_is_made_of_numbers(lab: Lab) -> None:
    lab = lab.with_few_steps()
    method, (server, clients) = lab.method, lab.started
    tests = EvaluationData(lab.federation.test, lab.federation.test)
    for t in lab.structures().values():
        downloads, key = {i: lab.received(server, t, i) for i in (0, 1)}, lab.client_key(t, 0)
        ids, people = torch.arange(2), lab.federation.clients
        with NoNumbers(), torch.no_grad():
            trained = [train_client(method, t, clients[i], downloads[i], people[i], key, tests) for i in downloads]
            view_client(method, clients[0], downloads[0], people[0], key, tests)
            uploads = stack([result.upload for result in trained])
            method.aggregate(server, uploads, ids, torch.stack([result.valid for result in trained]), key)


@pytest.mark.parametrize("made", [lambda: torch.tensor(1), lambda: torch.where(torch.ones(2) > 0, torch.ones(2), 0)])
def test_a_planted_number_is_found(made: Callable[[], Tensor]) -> None:
    with NoNumbers(), pytest.raises(AssertionError, match="of numbers"):
        made()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planted(Method):
    """Another method, with a read back to the host in one place."""

    inner: Method
    place: str
    read: Callable[[Tensor], Any]

    def _plant(self, place: str, number: Tensor) -> None:
        if place == self.place:
            self.read(number)

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        return self.inner.init_server(params, num_clients, key)

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        return self.inner.init_client(params, key)

    def wire(self, round_number: int) -> Wire:
        return self.inner.wire(round_number)

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        self._plant("download", client_id)
        return self.inner.download(server, client_id)

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        self._plant("local_update", data.mask.sum())
        return self.inner.local_update(client, download, data, key)

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        self._plant("aggregate", valid.sum())
        return self.inner.aggregate(server, uploads, client_ids, valid, key)

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        return self.inner.personal_params(client, download)

    def global_params(self, server: Tree) -> Tree | None:
        return self.inner.global_params(server)

    def personalise(self, params: Tree, client: Tree, download: Tree, data: ClientData, key: Tensor) -> Tree:
        self._plant("personalise", data.mask.sum())
        return params

    def extra_views(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> dict[str, Tree]:
        self._plant("extra_views", data.mask.sum())
        return {}


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda number: number.item(),
    "truth": lambda number: bool(number > 0),
    "list": lambda number: number.tolist(),
    "index": lambda number: torch.arange(9)[number],
    "choice": lambda number: number[None][number[None] > 0],
}


@pytest.mark.parametrize(
    ("place", "read"),
    [(place, "item") for place in ("download", "local_update", "aggregate", "personalise", "extra_views")]
    + [("local_update", read) for read in READS if read != "item"],
)
def test_a_planted_read_is_found(make_lab: MakeLab, place: str, read: str) -> None:
    planted = plant(make_lab("fedavg", "plain"), place, read)
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        trace(planted)


def test_where_nothing_is_planted_nothing_is_found(make_lab: MakeLab) -> None:
    trace(plant(make_lab("fedavg", "plain"), "nowhere", "item"))


def plant(lab: Lab, place: str, read: str) -> Lab:
    method = Planted(setup=lab.method.setup, inner=lab.method, place=place, read=READS[read])
    return dataclasses.replace(lab, method=method)


# -------------------- the tables


def test_a_method_is_concrete_and_final(method_name: str) -> None:
    cls = METHODS[method_name]
    assert dataclasses.is_dataclass(cls)
    assert not cls.__abstractmethods__
    assert vars(cls).get("__final__", False)
