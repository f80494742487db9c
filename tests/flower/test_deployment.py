"""A deployment in small, with all that happens to one: strangers, a site that is killed, a server that is killed.

One run of FedMate at three sites, each with digits of its own, over TLS and with authentication. In round 2 a site is
killed and started again, in round 3 the server is killed and its run is started again. The states of server and sites
are then those of the same run in this process, without Flower and without trouble.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_digits
from tests.flower.federation import APP, Federation, wait_for
from torch import Tensor
from torch.testing import assert_close

import fedmate
from fedmate.core.tree import unpack
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.record import Record
from fedmate.flower.client import Client
from fedmate.flower.deploy import status
from fedmate.flower.messages import Reply, Request
from fedmate.flower.node import open_client
from fedmate.flower.server import conduct
from fedmate.flower.transport import Transport

pytestmark = pytest.mark.flower

SITES, ROUNDS = 3, 3
TRIAL = f"""
rounds = {ROUNDS}
eval_every = {ROUNDS}
device = "cpu"
[dataset]
name = "sites"
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
shape = [1, 8, 8]
[partition]
clients = {SITES}
[model]
name = "digits_cnn"
[training]
epochs = 1
[method]
name = "fedmate"
cft = "period:2"
"""
CONFIG: dict[str, Any] = {"experiment": "trial", "set": "", "min-clients": SITES, "patience": 100.0}

LONG = 400.0
"""Seconds that a few rounds may take where others are at work, too."""


class Place(NamedTuple):
    """The app, and the folder of each site."""

    app: Path
    sites: list[Path]

    def node_config(self, client: int) -> dict[str, str | int]:
        return {"partition-id": client, "site": str(self.sites[client] / "site.toml")}

    def open(self, client: int, token: str) -> Client:
        return open_client({**CONFIG, "out": ""}, self.node_config(client), token, self.app)

    def state(self, run: Path, client: int) -> Path:
        token: str = json.loads((run / "federation.json").read_bytes())["experiment"]
        return self.sites[client] / "state" / token[:16] / str(client)

    def last_round(self, run: Path, client: int) -> int:
        """The last round of which something has left a site."""
        if not (run / "federation.json").exists() or not (self.state(run, client) / "audit.csv").exists():
            return 0
        return int((self.state(run, client) / "audit.csv").read_text().splitlines()[-1].split(",")[1])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An app with an experiment of one's own, and sites that hold some of the classes each."""
    folder = tmp_path_factory.mktemp("deployment")
    shutil.copytree(APP, folder / "app", ignore=shutil.ignore_patterns("runs", "__pycache__"))
    (folder / "app" / "trial.toml").write_text(TRIAL)
    digits, sites = load_digits(), list[Path]()
    for client in range(SITES):
        sites.append(folder / f"site-{client}")
        sites[-1].mkdir()
        rows = np.flatnonzero(np.isin(digits.target, [client, client + 3, client + 6, 9]))[client::3][:120]
        x, labels = (digits.images[rows, None] * 15).astype(np.uint8), digits.target[rows]
        np.savez(sites[-1] / "digits.npz", train_x=x, train_y=labels)
        (sites[-1] / "site.toml").write_text(
            f'[data]\nloader = "npz"\npath = "digits.npz"\nclass_names = {json.dumps(list(map(str, range(10))))}\n'
        )
    return Place(folder / "app", sites)


# -------------------- the same run without Flower and without trouble


class Direct(Transport):
    """Sites in this process."""

    def __init__(self, place: Place, token: str) -> None:
        self.place, self.token = place, token

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        return {client: self.place.open(client, self.token).answer(request) for client, request in requests.items()}


@pytest.fixture(scope="module")
def reference(place: Place) -> Path:
    """The folder of the run that nothing happens to."""
    folder = place.app.parent / "reference"
    config, console = {**CONFIG, "out": str(folder)}, Console(file=StringIO())
    conduct(config, place.app, lambda backend, folder, token: nullcontext(Direct(place, token)), console)
    return folder


# -------------------- what happens


class Story(NamedTuple):
    """The traces of a run."""

    folder: Path
    rounds_before: int
    """How many rounds the server had done when it was killed."""
    said: str
    """By the run, after the server was killed."""


@pytest.fixture(scope="module")
def federation(place: Place) -> Iterator[Federation]:
    configs = [
        " ".join(f"{key}={json.dumps(value)}" for key, value in place.node_config(client).items())
        for client in range(SITES)
    ]
    folder = place.app.parent / "federation"
    folder.mkdir()
    # What is started is ended, also if the tests are told to end.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Federation(folder, configs) as started:
        yield started
    assert started.alive() == []
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def story(place: Place, federation: Federation, request: pytest.FixtureRequest) -> Story:
    run, victim = place.app.parent / "run", SITES - 1
    config = {**CONFIG, "out": str(run)}
    federation.run("first", place.app, config)
    wait_for(lambda: place.last_round(run, victim) == 2, LONG, "the site has trained in round 2")
    federation.kill_node(victim)
    kept = place.state(run, victim) / "state.safetensors"
    killed = kept.read_bytes()
    # The SuperLink takes the site for online for some time more; something else can be done meanwhile.
    request.getfixturevalue("reference")
    federation.supervise_node(victim)
    assert kept.read_bytes() == killed
    wait_for(lambda: any(place.last_round(run, client) == 3 for client in range(SITES)), LONG, "round 3 has begun")
    (server,) = federation.alive("flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: not federation.alive("flwr-serverapp"), 10, "the server has ended")
    before = Checkpoint(run).state.round
    assert federation.run("second", place.app, config).wait(LONG) == 0
    return Story(run, before, federation.log("second"))


def tensors(path: Path) -> dict[str, Tensor]:
    return unpack(path.read_bytes())[0]


def test_a_server_that_was_killed_has_the_record_of_an_undisturbed_one(story: Story, reference: Path) -> None:
    assert story.rounds_before == 2
    assert "Traceback" not in story.said
    last = f"checkpoint/server-{ROUNDS:06d}.safetensors"
    assert_close(tensors(story.folder / last), tensors(reference / last), rtol=0, atol=0)
    found, expected = Record(story.folder), Record(reference)
    assert found.rounds == expected.rounds
    assert [row["valid"] for row in found.rounds] == [1] * (SITES * ROUNDS)
    assert [row["accuracy"] for row in found.metrics] == [row["accuracy"] for row in expected.metrics]
    assert found.metrics[-1]["accuracy"]["pre"]["local"]["mean"] > 0
    assert list(status(story.folder))[1:] == [f"  client {i}: last answered in round {ROUNDS}" for i in range(SITES)]


def test_sites_have_their_private_state_and_log(story: Story, place: Place, reference: Path) -> None:
    for client in range(SITES):
        found, expected = (tensors(place.state(run, client) / "state.safetensors") for run in (story.folder, reference))
        assert_close(found, expected, rtol=0, atol=0)
        assert any(path.startswith("after/") for path in found)
        folder = place.state(story.folder, client)
        (line,) = (line for line in status(place.sites[client] / "state") if folder.parent.name in line)
        assert f"client {client}: round {ROUNDS} done, " in line
        rows = csv.DictReader((folder / "audit.csv").read_text().splitlines())
        assert {int(row["round"]) for row in rows} == {*range(1, ROUNDS + 1)}


# -------------------- strangers


@pytest.mark.parametrize(
    ("key", "told"), [("stranger", "Failed to activate SuperNode"), (None, "All SuperNodes must be registered")]
)
def test_a_supernode_without_a_registered_key_is_refused(federation: Federation, key: str | None, told: str) -> None:
    name = f"key-{key}"
    assert federation.start(name, *federation.node_command(key, "partition-id=0")).wait(60) != 0
    assert told in federation.log(name)
    assert "SuperNode ID" not in federation.log(name)


def test_the_app_in_a_simulation_gives_the_numbers_of_the_reference(federation: Federation, tmp_path: Path) -> None:
    out, settings = tmp_path / "record", "rounds=2 device=cpu training.epochs=1"
    nodes, config = ("--federation-config", "num-supernodes=20"), ("--run-config", f"set='{settings}' out='{out}'")
    federation.command("flwr", "run", APP, "local", "--stream", *nodes, *config)
    changes = {"rounds": 2, "device": "cpu", "training.epochs": 1, "backend": "sequential"}
    reference, record = fedmate.run(APP / "digits.toml", set=changes, out=tmp_path / "reference"), Record(out)
    assert [{**row, "seconds": 0} for row in record.metrics] == [{**row, "seconds": 0} for row in reference.metrics]
    assert record.rounds == reference.rounds
