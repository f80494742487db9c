"""Clients at sites of their own: the numbers of the reference, and errors that spoil nobody else's round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
import torch
from fedmate.flower.remote import Remote, TooFewError
from torch import Tensor
from torch.testing import assert_close

from fedmate.backends.base import Backend, Round, RoundResult
from fedmate.backends.sequential import Sequential
from fedmate.core import Tree, flatten, fold, make_key
from fedmate.core.serialise import pack, unpack
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.flower.client import MessageError, Site
from fedmate.flower.client_state import ClientState
from fedmate.flower.messages import Answer, ErrorReply, Reply, Request, Transport

EXPERIMENT = "ab" * 32
CLIENTS = 4
PARTICIPANTS = ((0, 1, 3), (1, 2), (0, 2, 3))
METHODS = ("fedavg", "fedmate_plus", "fedpac", "scaffold", "ditto", "fedbabu", "local")


@cache
def built(method: str, learning_rate: float = 0.02) -> Built:
    values = {
        "seed": 3,
        "rounds": 3,
        "dtype": "float64",
        "device": "cpu",
        "backend": "sequential",
        "partition": {"name": "share", "clients": CLIENTS},
        "training": {"epochs": 1, "learning_rate": learning_rate},
        "method": {"name": method, **({"cft": "period:2"} if method.startswith("fedmate") else {})},
    }
    return build(resolve([ConfigSource("test", values)]))


class Loop(Transport):
    """Sites in this process, each message as bytes on the way; what is done to an answer on the way is `change`."""

    def __init__(self, ready: Built, folder: Path) -> None:
        self.ready, self.folder = ready, folder
        self.requests, self.answers, self.wanted = list[tuple[int, Request]](), list[Answer](), list[int]()
        self.change: Callable[[int, Answer], Reply] = lambda _, answer: answer

    def site(self, client: int) -> Site:
        """A new one for each message, as in a process of its own: nothing survives but what is on disk."""
        federation = self.ready.federation
        store = ClientState(self.folder, EXPERIMENT, client)
        data, key = federation.clients[client], make_key(3)
        return Site(client, CLIENTS, self.ready.method, data, federation.test, key, store, lambda: "now")

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        self.wanted.append(wanted)
        return {client: self._send(client, request) for client, request in requests.items()}

    def _send(self, client: int, request: Request) -> Reply:
        answer = self.site(client).answer(request._replace(download=carried(request.download)))
        self.requests.append((client, request))
        self.answers.append(answer)
        return self.change(client, answer._replace(upload=carried(answer.upload)))


def carried(message: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(sorted(unpack(pack(dict(message), {}))[0].items()))


def rounds(backend: Backend, ready: Built, evaluate: bool = False) -> list[RoundResult]:
    server, results = start(ready), list[RoundResult]()
    for t, participants in enumerate(PARTICIPANTS):
        # Evaluation takes most of the time, and the last one shows what came of every round.
        is_evaluated = evaluate and t == len(PARTICIPANTS) - 1
        results.append(backend.run_round(server, Round(t, participants, is_evaluated)))
        server = results[-1].server
    return results


def start(ready: Built) -> Tree:
    return ready.method.init_server(ready.method.setup.model.init_params(), CLIENTS, fold(make_key(3), "server"))


def without_diagnostics(server: Tree) -> Tree:
    return {part: content for part, content in server.items() if part != "diagnostics"}


@pytest.mark.parametrize("method", METHODS)
def test_sites_give_the_numbers_of_the_reference(method: str, tmp_path: Path) -> None:
    """Server, losses, ledger and accuracies, to the last bit, though every message is answered by a new process."""
    ready = built(method)
    expected = rounds(Sequential(ready.method, ready.federation, make_key(3)), ready, evaluate=True)
    found = rounds(Remote(ready.method, ready.federation, make_key(3), Loop(ready, tmp_path)), ready, evaluate=True)
    for one, other in zip(found, expected, strict=True):
        assert_close(flatten(one.server), flatten(other.server), rtol=0, atol=0)
        assert one.reports == other.reports
        assert one.views.keys() == other.views.keys()
        for name, view in other.views.items():
            assert (one.views[name] is None) == (view is None)
            if view is not None:
                assert_close(one.views[name].accuracies, view.accuracies, rtol=0, atol=0)  # type: ignore[union-attr]


def test_clients_that_diverge_have_answered(tmp_path: Path) -> None:
    """As in the reference the round goes on with nobody, and it is for the run to say that all have diverged."""
    ready = built("fedavg", 1e300)
    expected = Sequential(ready.method, ready.federation, make_key(3)).run_round(start(ready), Round(0, (0, 1), False))
    transport = Loop(ready, tmp_path)
    remote = Remote(ready.method, ready.federation, make_key(3), transport)
    remote.min_clients = 2
    found = remote.run_round(start(ready), Round(0, (0, 1), False))
    assert [report.valid for report in found.reports] == [False, False]
    # As texts, for NaN is unlike itself.
    assert str(found.reports) == str(expected.reports)
    assert len(transport.requests) == 2


def test_what_crosses_is_what_the_wire_names_and_the_declared_metrics(tmp_path: Path) -> None:
    ready = built("fedmate")
    transport = Loop(ready, tmp_path)
    rounds(Remote(ready.method, ready.federation, make_key(3), transport), ready)
    # Of FedMate's parts the extractor does not cross in every round.
    assert len({ready.method.wire(t) for t in range(3)}) > 1
    assert [client for client, _ in transport.requests] == [client for clients in PARTICIPANTS for client in clients]
    for (client, request), answer in zip(transport.requests, transport.answers, strict=True):
        wire = ready.method.wire(request.round)
        assert {path.partition("/")[0] for path in request.download} == set(wire.down), client
        assert {path.partition("/")[0] for path in answer.upload} == set(wire.up)
        assert answer.metrics.keys() == {"losses", "valid"}


def test_a_site_logs_what_leaves(tmp_path: Path) -> None:
    ready = built("fedavg")
    results = rounds(Remote(ready.method, ready.federation, make_key(3), Loop(ready, tmp_path)), ready)
    rows = (tmp_path / EXPERIMENT[:16] / "1" / "audit.csv").read_text().splitlines()[1:]
    logged: dict[str, int] = {}
    for _, _, part, size in (row.split(",") for row in rows):
        logged[part] = logged.get(part, 0) + int(size)
    sent = [report.up for result in results for report in result.reports if report.client == 1]
    # Two losses and whether it counts, of eight bytes each.
    assert logged.pop("metrics") == 3 * 8 * len(sent)
    # By the names of what was sent, where the ledger puts counts together.
    assert logged.pop("num_samples") == sum(up.pop("bookkeeping") for up in sent)
    assert logged == {part: sum(up[part] for up in sent) for part in sent[0]}


# -------------------- errors


def spoiled(method: str, tmp_path: Path, change: Callable[[int, Answer], Reply]) -> tuple[RoundResult, Remote]:
    ready = built(method)
    transport = Loop(ready, tmp_path)
    transport.change = change
    backend = Remote(ready.method, ready.federation, make_key(3), transport)
    params, key = ready.method.setup.model.init_params(), fold(make_key(3), "server")
    server = ready.method.init_server(params, CLIENTS, key)
    return backend.run_round(server, Round(0, (0, 1, 3), evaluate=False)), backend


def with_leaf(path: str, function: Callable[[Tensor], Tensor]) -> Callable[[Answer], Answer]:
    return lambda answer: answer._replace(upload={**answer.upload, path: function(answer.upload[path])})


HOSTILE: dict[str, tuple[Callable[[Answer], Reply], str]] = {
    "NaN": (with_leaf("classifier/bias", lambda leaf: leaf * torch.nan), "`classifier/bias` is not finite"),
    "shape": (with_leaf("classifier/bias", lambda leaf: leaf[:3]), "`classifier/bias` is float64 of shape (3,)"),
    "dtype": (with_leaf("classifier/bias", lambda leaf: leaf.float()), "`classifier/bias` is float32"),
    "counts": (with_leaf("class_counts", lambda leaf: leaf - 10**6), "`class_counts` is negative"),
    "too many": (with_leaf("class_counts", lambda leaf: leaf + 2**62), "`class_counts` is larger than anybody's"),
    "extra": (lambda answer: answer._replace(upload={**answer.upload, "more": torch.ones(1)}), "parts (more)"),
    "missing": (lambda answer: answer._replace(upload={}), "expected parts"),
    "silence": (lambda _: ErrorReply("no answer in 60 s"), "no answer in 60 s"),
    "losses": (lambda answer: answer._replace(metrics={"valid": [1.0]}), ""),
    "not valid": (lambda answer: answer._replace(metrics={**answer.metrics, "valid": [0.0]}), ""),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_hostile_is_left_out_and_named_and_the_others_count(kind: str, tmp_path: Path) -> None:
    change, reason = HOSTILE[kind]
    found, backend = spoiled("fedmate", tmp_path, lambda client, answer: change(answer) if client == 1 else answer)
    assert [report.valid for report in found.reports] == [True, False, True]
    if reason:
        assert reason in backend.reasons[1]
    ready = built("fedmate")
    params, key = ready.method.setup.model.init_params(), fold(make_key(3), "server")
    server = ready.method.init_server(params, CLIENTS, key)
    alone = Sequential(ready.method, ready.federation, make_key(3)).run_round(server, Round(0, (0, 3), evaluate=False))
    assert_close(without_diagnostics(found.server), without_diagnostics(alone.server), rtol=0, atol=1e-12)


def test_too_few_answers_ask_again_and_then_stop(tmp_path: Path) -> None:
    ready, asked = built("fedavg"), list[int]()

    def change(client: int, answer: Answer) -> Reply:
        asked.append(client)
        # The first time nobody but client 0 is heard; then all are.
        return answer if client == 0 or len(asked) > 3 else ErrorReply("away")

    transport = Loop(ready, tmp_path)
    transport.change = change
    backend = Remote(ready.method, ready.federation, make_key(3), transport)
    backend.min_clients = 2
    params = ready.method.setup.model.init_params()
    server = ready.method.init_server(params, CLIENTS, make_key(0))
    found = backend.run_round(server, Round(0, (0, 1, 3), evaluate=False))
    assert sorted(asked) == [0, 1, 1, 3, 3]
    # One of the two has answered: a second attempt need not wait for more than one.
    assert transport.wanted == [2, 1]
    # Asked twice, sites began from the same state twice.
    expected = Sequential(ready.method, ready.federation, make_key(3)).run_round(server, Round(0, (0, 1, 3), False))
    assert_close(flatten(found.server), flatten(expected.server), rtol=0, atol=0)
    transport.change = lambda client, answer: ErrorReply("away")
    wanted = r"3 times, but 0 of 2 clients answered as they should, and `min_clients` is 2 \(client 0: away;"
    with pytest.raises(TooFewError, match=wanted):
        backend.run_round(found.server, Round(1, (0, 1), evaluate=False))


def test_a_single_site_cannot_bring_views_into_the_record_and_none_need_be_there(tmp_path: Path) -> None:
    ready = built("fedavg")
    transport = Loop(ready, tmp_path)
    transport.change = lambda client, answer: (
        answer._replace(metrics={**answer.metrics, "best": answer.metrics["pre"], "global": answer.metrics["pre"]})
        if client == 2 and "pre" in answer.metrics
        else answer
    )
    backend = Remote(ready.method, ready.federation, make_key(3), transport)
    server = ready.method.init_server(ready.method.setup.model.init_params(), CLIENTS, make_key(0))
    views = backend.view(server, Round(0, (0, 1), evaluate=True))
    assert {"pre", "classifier_tuned"} == views.keys()
    backend.min_clients = 3
    backend.view(server, Round(0, (0, 1), evaluate=True))
    assert transport.wanted == [1, 3]
    transport.change = lambda client, answer: ErrorReply("away")
    (name, silent), *others = backend.view(server, Round(0, (0, 1), evaluate=True)).items()
    assert (name, others) == ("pre", [])
    assert silent.isnan().all()


def test_a_site_refuses_a_download_of_another_experiment(tmp_path: Path) -> None:
    ready = built("fedavg")
    site = Loop(ready, tmp_path).site(0)
    with pytest.raises(MessageError, match="the download of round 1 is none of this experiment"):
        site.answer(Request("train", 0, False, {"classifier/bias": torch.zeros(2)}))
    assert not (site.store.folder / "state.safetensors").exists()
