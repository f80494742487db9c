"""The app: its server has the record of any other run, of data that it never sees; what its nodes keep and tell."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rich.console import Console

import fedmate
from fedmate.backends.client import judge
from fedmate.core import EvaluationData, flatten
from fedmate.errors import FedmateError, UserError
from fedmate.experiment.predict import load_model
from fedmate.experiment.record import Record
from fedmate.flower import node, server
from fedmate.flower.backend import Flower
from fedmate.flower.client import Client
from fedmate.flower.messages import Answer, ErrorReply, PublicError, Reply, Request
from fedmate.flower.node import open_client
from fedmate.flower.server import conduct, over
from fedmate.flower.transport import Transport

CLIENTS, TOKEN = 3, "ab" * 16
COMMON = """
rounds = 3
eval_every = 1
device = "cpu"
partition.clients = 3
training.epochs = 1
method.name = "fedper"
[dataset]
"""
DATASETS = {
    "shares": 'name = "npz"\npath = "all.npz"',
    "sites": 'name = "sites"\nclasses = ["ant", "bee", "cat"]\nshape = [1, 4, 4]',
}
USUAL = {"set": "", "out": "", "min-clients": 0, "patience": 0.0}
PRIOR = {**USUAL, "experiment": "sites", "set": "method.name=fedavg objective.own_prior=true"}
LIES: tuple[list[float], ...] = ([2.0], [-0.1], [float("inf")], [0.5, 0.5], [])


class Nodes(Transport):
    """The nodes of a grid, in this process."""

    def __init__(self, app: App, config: dict[str, Any], backend: Flower, token: str) -> None:
        self.app, self.config, self.backend, self.token = app, config, backend, token
        self.answers = list[tuple[Request, Answer]]()

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        return {client: self._send(client, request) for client, request in requests.items()}

    def _send(self, client: int, request: Request) -> Reply:
        answer = self.app.open(self.config, client, self.token).answer(request)
        self.answers.append((request, answer))
        return self.app.spoil(client, request, answer)


class App:
    """The app in a folder of its own; `spoil` may put something in the place of an answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.text, self.transports = folder, "", list[Nodes]()
        self.spoil: Callable[[int, Request, Answer], Reply] = lambda client, request, answer: answer

    def open(self, config: dict[str, Any], client: int, token: str = TOKEN) -> Client:
        own = {"site": str(self.folder / f"site-{client}.toml")} if config["experiment"] == "sites" else {}
        return open_client(config, {"partition-id": client, **own}, token, self.folder)

    def run(self, experiment: str, set_: str = "") -> str:
        """Run its server once, and return what it prints."""
        config = USUAL | {"experiment": experiment, "set": set_, "out": str(self.folder / "out")}
        console = Console(file=io.StringIO(), width=140)

        @contextmanager
        def connect(backend: Flower, folder: Path, token: str) -> Iterator[Transport]:
            self.transports.append(Nodes(self, config, backend, token))
            yield self.transports[-1]

        try:
            conduct(config, self.folder, connect, console)
        finally:
            self.text = console.file.getvalue()  # type: ignore[attr-defined]
        return self.text

    def fail(self, *arguments: str, **more: str) -> str:
        """Run its server, which fails, and return the sentence; it was printed, too."""
        with pytest.raises(FedmateError) as caught:
            self.run(*arguments, **more)
        assert f"Error: {caught.value}\n" in self.text
        return str(caught.value)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    node._built.cache_clear()
    monkeypatch.setenv("FEDMATE_STATE", str(tmp_path / "states"))
    monkeypatch.chdir(tmp_path)
    for name, text in DATASETS.items():
        (tmp_path / f"{name}.toml").write_text(COMMON + text, encoding="utf-8")
    for client in range(CLIENTS):
        # Two of three classes, and another number of samples than the others have.
        names = [name for i, name in enumerate(("ant", "bee", "cat")) if i != client]
        write_samples(tmp_path / f"own-{client}.npz", 40 + 10 * client, client)
        text = f'[data]\nloader = "npz"\npath = "own-{client}.npz"\nclass_names = {names}\n'
        (tmp_path / f"site-{client}.toml").write_text(f'state = "state-{client}"\n{text}', encoding="utf-8")
    write_samples(tmp_path / "all.npz", 90, 3)
    return App(tmp_path)


def write_samples(path: Path, count: int, seed: int) -> None:
    """Write images of two classes, a quarter of the first."""
    labels: NDArray[np.int64] = (np.arange(count) % 4 > 0).astype(np.int64)
    x = np.random.default_rng(seed).integers(0, 60, (count, 1, 4, 4)) + 90 * labels[:, None, None, None]
    np.savez(path, train_x=x.astype(np.uint8), train_y=labels)


def figures(record: Record) -> list[dict[str, Any]]:
    return [{**row, "seconds": 0} for row in record.metrics]


def test_a_server_that_was_stopped_goes_on_to_the_numbers_of_the_reference(app: App) -> None:
    app.spoil = lambda client, request, answer: answer if request.round < 2 else ErrorReply("away")
    sentence = app.fail("shares")
    assert sentence.startswith("round 3 was asked for 3 times, but 0 of 3 clients answered as they should")
    assert f"{app.folder / 'out'} is saved after round 2 of 3; a run with it as `out` goes on" in app.text
    # It goes on with the waits that its file has now.
    file, app.spoil = app.folder / "shares.toml", lambda client, request, answer: answer
    file.write_text(f"patience = 50\nmin_clients = 2\n{file.read_text()}")
    output = app.run("shares")
    assert "fedper: continuing after round 2/3" in output
    assert f"Record: {app.folder / 'out'}\n" in output
    assert [(one.backend.patience, one.backend.min_clients) for one in app.transports] == [(600.0, 1), (50.0, 2)]
    reference = fedmate.run(file, set={"backend": "sequential"}, out=app.folder / "reference")
    record = Record(app.folder / "out")
    assert figures(record) == figures(reference)
    assert (record.rounds, record.clients) == (reference.rounds, reference.clients)
    # A finished run is left alone.
    assert "It is finished already: nothing to do." in app.run("shares")
    assert "was run with `rounds` 3, not 2; " in app.fail("shares", set_="rounds=2")


def test_of_data_at_sites_the_record_has_the_reports_of_sites_and_nothing_else(app: App) -> None:
    # A method that has a global model, which the server cannot test.
    output = app.run("sites", set_="method.name=fedavg")
    record = Record(app.folder / "out")
    last = record.metrics[-1]["accuracy"]
    assert last["global"] is None
    for view in ("pre", "post"):
        assert {test: [*figures] for test, figures in last[view].items()} == {
            "local": ["mean", "std", "worst_tenth", "clients"]
        }
    reported = [answer.metrics["pre"][0] for request, answer in app.transports[0].answers if request.kind == "view"]
    assert last["pre"]["local"]["clients"] == [100 * one for one in reported[-CLIENTS:]]
    assert record.accuracy() == last["pre"]["local"]["mean"] == pytest.approx(100 * sum(reported[-CLIENTS:]) / CLIENTS)
    # The only counted samples are those of uploads.
    assert "samples" not in (record.folder / "partition.json").read_text()
    assert f"round 3/3  accuracy {last['pre']['local']['mean']:.2f} %" in output
    assert "Note:" not in output


def test_sites_that_fail_or_lie_are_left_out_and_named(app: App) -> None:
    def spoil(client: int, request: Request, answer: Answer) -> Reply:
        if client == 1:
            return ErrorReply("it is night there")
        told = LIES[request.round]
        lies = {"pre": told} if request.kind == "view" else {**answer.metrics, "post": told}
        return answer._replace(metrics=lies) if client == 0 else answer

    app.spoil = spoil
    assert "round 1: dropped, it is night there: client 1" in app.run("sites", set_=f"rounds={len(LIES)}")
    record = Record(app.folder / "out")
    assert record.summary["left_out"] == len(LIES)
    for row in record.metrics:
        for view in ("pre", "post"):
            own = row["accuracy"][view]["local"]
            assert [one is None for one in own["clients"]] == [True, True, False]
            assert own["mean"] is not None


# -------------------- nodes


def ask(site: Client, kind: Any) -> Answer:
    method, key = site.backend.method, site.backend.key
    server = method.init_server(method.setup.model.init_params(), CLIENTS, key)
    return site.answer(Request(kind, 0, True, flatten(site.backend.download(server, 0, torch.tensor(site.number)))))


def test_a_site_keeps_its_own_model_and_tells_one_number_for_a_view(app: App) -> None:
    """The accuracy on its own test samples: by hand, and of the model that it keeps."""
    site = app.open(PRIOR, 0)
    method, local = site.backend.method, site.tests.local
    assert local is not None
    assert site.tests.common is None
    assert method.setup.class_counts(site.data).tolist() == [0, 8, 24]
    assert method.setup.class_counts(local).tolist() == [0, 2, 6]
    metrics = ask(site, "train").metrics
    assert metrics.keys() == {"losses", "valid", "post"}
    assert len(metrics["post"]) == 1
    kept = site.state.folder / "model.safetensors"
    assert not kept.exists()
    view = ask(site, "view")
    assert view.upload == {}
    assert all(len(numbers) == 1 for numbers in view.metrics.values())
    model = load_model(kept)
    assert (model.origin["client"], model.origin["round"]) == (0, 1)
    right = model.predict(local.source.samples[local.rows].numpy(), prior="own").labels == local.y.numpy()
    assert view.metrics["pre"] == [pytest.approx(right.mean())]
    judged = judge(method, method.setup.model.init_params(), site.data, EvaluationData(local, local), is_global=True)
    hits, labels, _ = judged["local"]["tally"].tolist()
    assert hits != judged["balanced"]["tally"][0].tolist()
    assert labels == [0, 2, 6]
    assert view.metrics["pre"] == [sum(hits) / 8]


@pytest.mark.parametrize(
    ("experiment", "node_config", "sentence"),
    [
        ("shares", {}, "`partition-id` of the node config is None, but the experiment's clients are 0 to 2;"),
        ("shares", {"partition-id": 0, "site": "x.toml"}, "names a `site`, but the experiment is on `npz`"),
        ("sites", {"partition-id": 0}, "the node config has no `site`; name its file."),
        # The reason is in the site's own log alone.
        ("sites", {"partition-id": 0, "site": "site-0.toml"}, "the site cannot use its own data, and its own log says"),
    ],
)
def test_a_mistake_at_a_node_is_one_sentence(
    app: App, experiment: str, node_config: dict[str, Any], sentence: str
) -> None:
    file = app.folder / "site-0.toml"
    file.write_text(file.read_text().replace("cat", "secret disease"))
    with pytest.raises(PublicError) as caught:
        open_client({**USUAL, "experiment": experiment}, node_config, TOKEN, app.folder)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)


class InMemoryGrid:
    """Called as Flower calls the grid of a simulation."""

    def get_node_ids(self) -> range:
        return range(20)


def test_a_simulation_has_a_node_for_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "START", -1.0)
    backend = Mock(federation=Mock(clients=[None] * CLIENTS))
    monkeypatch.setattr(server, "Checkpoint", lambda folder: Mock(state=Mock(round=0)))
    wanted = r"has 20 nodes, but .* 3 clients; .* num-supernodes=3`\.$"
    with (
        pytest.raises(UserError, match=wanted),
        over(InMemoryGrid(), Console(file=io.StringIO()))(backend, Path(), TOKEN),
    ):
        pass
