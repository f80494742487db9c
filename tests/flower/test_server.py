"""The server of the app: the record of any other run, of data that it never sees; it stops and goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

import fedmate
from fedmate.errors import FedmateError, UserError
from fedmate.experiment.record import Record
from fedmate.flower import node, server
from fedmate.flower.backend import Federated
from fedmate.flower.messages import Answer, ErrorReply, Reply, Request
from fedmate.flower.node import open_client
from fedmate.flower.server import conduct, over
from fedmate.flower.transport import Transport

CLIENTS = 3
DEALT = """
rounds = 3
eval_every = 1
device = "cpu"
[dataset]
name = "npz"
path = "all.npz"
[partition]
clients = 3
[training]
epochs = 1
[method]
name = "fedper"
"""

SITES = """
rounds = 2
eval_every = 1
device = "cpu"
[dataset]
name = "sites"
classes = ["ant", "bee", "cat"]
shape = [1, 4, 4]
[partition]
clients = 3
[training]
epochs = 1
[method]
name = "fedper"
"""

LIES: tuple[list[float], ...] = ([2.0], [-0.1], [float("inf")], [0.5, 0.5], [])
"""Reports that are no accuracies."""


class Nodes(Transport):
    """The nodes of a grid, in this process; `spoil` may put something in the place of an answer."""

    def __init__(self, app: Path, run_config: dict[str, Any], run: Federated) -> None:
        self.app, self.run_config, self.run = app, run_config, run
        self.answers = list[tuple[Request, Answer]]()
        self.spoil: Callable[[int, Request], ErrorReply | None] = lambda client, request: None

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        return {client: self._send(client, request) for client, request in requests.items()}

    def _send(self, client: int, request: Request) -> Reply:
        error = self.spoil(client, request)
        if error is not None:
            return error
        told: dict[str, Any] = {"partition-id": client}
        if self.run_config["experiment"] == "sites":
            told["site"] = str(self.app / f"site {client}" / "site.toml")
        answer = open_client(self.run_config, told, self.run.experiment, self.app).answer(request)
        self.answers.append((request, answer))
        return answer


class App:
    """The app in a folder of its own, and what its server prints."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.text = folder, io.StringIO()
        self.transports = list[Nodes]()
        self.spoil: Callable[[int, Request], ErrorReply | None] = lambda client, request: None

    def run(self, experiment: str, out: Path | str = "", set_: str = "") -> str:
        """Run its server once, and return what it said."""
        config = {"experiment": experiment, "set": set_, "out": str(out), "min-clients": 0, "patience": 0.0}

        @contextmanager
        def connect(run: Federated) -> Iterator[Transport]:
            self.transports.append(Nodes(self.folder, config, run))
            self.transports[-1].spoil = self.spoil
            yield self.transports[-1]

        self.text.seek(0)
        self.text.truncate()
        conduct(config, self.folder, connect, Console(file=self.text, width=140))
        return self.text.getvalue()

    def fail(self, *arguments: Any, **more: Any) -> str:
        """Run its server, which fails, and return the sentence; it was said, too."""
        with pytest.raises(FedmateError) as caught:
            self.run(*arguments, **more)
        assert f"Error: {caught.value}\n" in self.text.getvalue()
        return str(caught.value)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    node._plan.cache_clear()
    for name, text in (("dealt", DEALT), ("sites", SITES)):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    (tmp_path / "sets").mkdir()
    monkeypatch.setenv("FEDMATE_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("FEDMATE_STATE", str(tmp_path / "states"))
    monkeypatch.chdir(tmp_path)
    x, y = samples(90, 3)
    np.savez(tmp_path / "all.npz", train_x=x, train_y=y)
    for client in range(CLIENTS):
        write_site(tmp_path / f"site {client}", client)
    return App(tmp_path)


def samples(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of two classes."""
    labels = np.arange(count) % 2
    x = np.random.default_rng(seed).integers(0, 60, (count, 1, 4, 4)) + 90 * labels[:, None, None, None]
    return x.astype(np.uint8), labels


def write_site(folder: Path, client: int) -> None:
    """A site with two of three classes, and as many samples as nobody else has."""
    folder.mkdir()
    names = [name for i, name in enumerate(("ant", "bee", "cat")) if i != client]
    x, y = samples(40 + 10 * client, client)
    np.savez(folder / "own.npz", train_x=x, train_y=y)
    text = f'[data]\nloader = "npz"\npath = "own.npz"\nclass_names = {json.dumps(names)}\n'
    (folder / "site.toml").write_text(text, encoding="utf-8")


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def figures(record: Record) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in record.metrics]


# -------------------- a run


def test_the_record_has_the_numbers_of_the_reference(app: App) -> None:
    said = app.run("dealt", app.folder / "out")
    reference = fedmate.run(app.folder / "dealt.toml", set={"backend": "sequential"}, out=app.folder / "reference")
    record = Record(app.folder / "out")
    assert figures(record) == figures(reference)
    assert record.rounds == reference.rounds
    assert record.clients == reference.clients
    assert record.config["backend"] == "flower"
    assert f"Record: {app.folder / 'out'}\n" in said
    assert "fedper: round 3/3  accuracy " in said
    assert "accuracy in percent, mean over clients" in said


# -------------------- data that lies with sites


def test_of_data_at_sites_the_record_has_the_reports_of_sites_and_nothing_else(app: App) -> None:
    # A method that has a global model, which the server cannot test.
    output = app.run("sites", app.folder / "out", set_="method.name=fedavg")
    record = Record(app.folder / "out")
    last = record.metrics[-1]["accuracy"]
    assert last["global"] is None
    for view in ("pre", "post"):
        assert {last[view]["balanced"]["mean"], *last[view]["balanced"]["clients"]} == {None}
        assert last[view]["own"]["per_class"] == [None] * 3
    reported = [answer.metrics["pre"][0] for request, answer in app.transports[0].answers if request.kind == "view"]
    assert last["pre"]["own"]["clients"] == [100 * one for one in reported[-CLIENTS:]]
    assert record.accuracy() == last["pre"]["own"]["mean"] == pytest.approx(100 * sum(reported[-CLIENTS:]) / CLIENTS)
    # The only counted samples are those of uploads.
    assert "samples" not in (record.folder / "partition.json").read_text()
    assert f"round 2/2  accuracy {last['pre']['own']['mean']:.2f} %" in output
    assert "Note:" not in output


def test_a_site_that_cannot_is_left_out_and_named(app: App) -> None:
    app.spoil = lambda client, request: ErrorReply("it is night there") if client == 1 else None
    said = app.run("sites", app.folder / "out")
    assert "round 1: dropped, it is night there: client 1" in said
    record = Record(app.folder / "out")
    assert record.summary["left_out"] == 2
    assert record.metrics[-1]["accuracy"]["pre"]["own"]["clients"][1] is None
    assert record.metrics[-1]["accuracy"]["pre"]["own"]["mean"] is not None


def test_a_number_that_is_no_accuracy_is_not_recorded(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    send = Nodes._send

    def lie(self: Nodes, client: int, request: Request) -> Reply:
        answer = send(self, client, request)
        assert isinstance(answer, Answer)
        told = LIES[request.round]
        lies = {"pre": told} if request.kind == "view" else {**answer.metrics, "post": told}
        return answer._replace(metrics=lies) if client == 0 else answer

    monkeypatch.setattr(Nodes, "_send", lie)
    app.run("sites", app.folder / "out", set_=f"rounds={len(LIES)}")
    for row in Record(app.folder / "out").metrics:
        for view in ("pre", "post"):
            assert [one is None for one in row["accuracy"][view]["own"]["clients"]] == [True, False, False]


# -------------------- going on


def test_a_server_that_was_stopped_goes_on_where_it_was(app: App) -> None:
    app.run("dealt", app.folder / "undisturbed")
    app.spoil = lambda client, request: ErrorReply("away") if request.round == 2 else None
    sentence = app.fail("dealt", app.folder / "out")
    assert sentence.startswith("round 3 was asked for 3 times, but 0 of 3 clients answered as they should")
    assert f"{app.folder / 'out'} is saved after round 2 of 3; a run with it as `out` goes on" in app.text.getvalue()
    app.spoil = lambda client, request: None
    said = app.run("dealt", app.folder / "out")
    assert "fedper: continuing after round 2/3" in said
    assert figures(Record(app.folder / "out")) == figures(Record(app.folder / "undisturbed"))
    assert app.transports[1].run.experiment == app.transports[2].run.experiment


def test_it_goes_on_with_the_patience_that_its_file_has_now(app: App) -> None:
    app.spoil = lambda client, request: ErrorReply("away")
    app.fail("dealt", app.folder / "out")
    file, app.spoil = app.folder / "dealt.toml", lambda client, request: None
    usual = file.read_text()
    file.write_text(f"patience = 50\nmin_clients = 4\n{usual}")
    assert app.fail("dealt", app.folder / "out") == ("`min_clients` is 4, but there are 3 clients; lower it.")
    file.write_text(f"patience = 50\nmin_clients = 2\n{usual}")
    app.run("dealt", app.folder / "out")
    assert [(one.run.patience, one.run.min_clients) for one in app.transports] == [(600.0, 1), (50.0, 2)]


def test_a_finished_run_is_left_alone_and_another_experiment_refused(app: App) -> None:
    app.run("dealt", app.folder / "out", set_="rounds=1")
    before = content(app.folder / "out")
    assert "It is finished already: nothing to do." in app.run("dealt", app.folder / "out", set_="rounds=1")
    assert "was run with `rounds` 1, not 2; " in app.fail("dealt", app.folder / "out", set_="rounds=2")
    assert content(app.folder / "out") == before


@pytest.mark.parametrize(
    ("experiment", "set_", "sentence"),
    [
        ("deal", "", "`experiment` of the run config is `deal`"),
        ("dealt", "rounds=x", "`rounds` in `set` of the run config is the string 'x'"),
        ("sites", "dataset.shape=[]", "`dataset.shape` is []"),
        ("sites", "partition.examples=3", "`partition.examples` is `3`, but `dataset.name` is `sites`"),
    ],
)
def test_a_mistake_writes_nothing(app: App, experiment: str, set_: str, sentence: str) -> None:
    assert sentence in app.fail(experiment, app.folder / "out", set_=set_)
    assert not (app.folder / "out").exists()
    assert not app.transports


# -------------------- nodes


class FakeGrid:
    """A grid that tells of more nodes each time it is asked."""

    def __init__(self, *counts: int) -> None:
        self.counts, self.asked = list(counts), 0

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        return list(range(count))


class InMemoryGrid(FakeGrid):
    """Called as Flower calls the grid of a simulation."""


def work(tmp_path: Path, patience: float) -> Federated:
    return Federated(tmp_path, "ab" * 16, CLIENTS, 1, patience, fedmate.experiment.user_inputs.NO_INPUTS)


def reached(grid: FakeGrid, tmp_path: Path, patience: float = 60.0) -> tuple[Any, str]:
    text = io.StringIO()
    with over(grid, Console(file=text, width=140))(work(tmp_path, patience)) as transport:
        return transport, text.getvalue()


def test_nodes_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PAUSE", 0.0)
    transport, output = reached(FakeGrid(0, 1, 1, 3), tmp_path)
    assert output.splitlines() == [f"{n} of 3 nodes are connected; waiting up to 60 s." for n in (0, 1)]
    # Later rounds begin without those that have left.
    assert (transport.patience, transport._alive) == (60.0, None)
    assert reached(FakeGrid(2), tmp_path, patience=0.05)[0].patience == 0.05


def test_a_run_that_goes_on_waits_a_little_only_for_more_than_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PAUSE", 0.01)
    monkeypatch.setattr(server, "LATECOMERS", 0.05)
    text = io.StringIO()
    with over(FakeGrid(0, 1), Console(file=text, width=140))(work(tmp_path, 600.0)._replace(done=2)):
        told = [line.partition(" nodes")[0] for line in text.getvalue().splitlines()]
        assert told == ["0 of 3", "1 of 3"]
    # One that begins waits for everybody, however many would be enough.
    monkeypatch.setattr(server, "LATECOMERS", -1.0)
    fresh = FakeGrid(0, 1, 1, 1, 3)
    with over(fresh, Console(file=text, width=140))(work(tmp_path, 600.0)):
        assert fresh.asked == 5


def test_a_simulation_has_a_node_for_each_client_and_must_not_lose_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "START", -1.0)
    transport, _ = reached(InMemoryGrid(3), tmp_path)
    assert transport._alive()
    for nodes in (2, 20):
        grid = InMemoryGrid(nodes)
        with pytest.raises(UserError, match=rf"has {nodes} nodes, but .* 3 clients; .* num-supernodes=3`\.$"):
            reached(grid, tmp_path)
        # Its patience is its own: what is not there by then does not come.
        assert grid.asked == 1
