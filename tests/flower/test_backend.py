"""Runs on the back end `flower`, with clients in this process: what is kept where, how they stop, go on and leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fedmate.flower.virtual import Home, rebuild
from torch.testing import assert_close

import fedmate
from fedmate.cli import main
from fedmate.core import flatten
from fedmate.errors import UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.export import export_model
from fedmate.experiment.record import Record
from fedmate.experiment.restore import Restored
from fedmate.flower import backend
from fedmate.flower.backend import Flower, Work
from fedmate.flower.messages import Answer, ErrorReply, Request, Transport

pytest.importorskip("flwr", reason="Flower is not installed: `make test-flower` installs it")

SETTINGS = {
    "rounds": 3,
    "eval_every": 3,
    "device": "cpu",
    "dtype": "float64",
    "partition": {"clients": 4},
    "training": {"epochs": 1},
}


class Here(Transport):
    """Clients in this process, each as a worker would rebuild it; those in `away` do not answer."""

    def __init__(self, work: Work, away: Mapping[int, set[int]]) -> None:
        self.work, self.away = work, away
        self.home: Home = rebuild(work.folder, work.given)

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Answer | ErrorReply]:
        return {client: self._send(client, request) for client, request in requests.items()}

    def _send(self, client: int, request: Request) -> Answer | ErrorReply:
        if client in self.away.get(request.round, set()):
            return ErrorReply("away")
        return self.home.site(client, self.work.experiment).answer(request)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """Who does not answer, by round; nothing of Flower is started."""
    absent: dict[int, set[int]] = {}

    @contextmanager
    def reach(work: Work) -> Iterator[Transport]:
        yield Here(work, absent)

    monkeypatch.setattr(backend, "simulated", reach)
    return absent


def go(folder: Path, name: str, method: str = "fedmate") -> Record:
    return fedmate.run({**SETTINGS, "backend": name, "method": {"name": method}}, out=folder)


def figures(record: Record) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in record.metrics]


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize("method", ["fedmate", "fedbabu"])
def test_a_run_and_the_models_that_leave_it_are_those_of_the_reference(tmp_path: Path, method: str) -> None:
    there, here = go(tmp_path / "there", "flower", method), go(tmp_path / "here", "sequential", method)
    assert figures(there) == figures(here)
    assert there.rounds == here.rounds
    assert_close(Restored(there.folder).server, Restored(here.folder).server, rtol=0, atol=0)
    # States of clients lie with the clients, and are found there.
    assert not list((there.folder / "checkpoint" / "clients").iterdir())
    for client in range(4):
        assert_close(
            flatten(Restored(there.folder).client(client)),
            flatten(Restored(here.folder).client(client)),
            rtol=0,
            atol=0,
        )
        states = [export_model(record.folder, client).module.state_dict() for record in (there, here)]
        assert_close(states[0], states[1], rtol=0, atol=0)


@pytest.mark.usefixtures("away")
def test_without_the_sites_folder_only_the_global_model_leaves(tmp_path: Path) -> None:
    record = go(tmp_path / "run", "flower", "fedavg")
    (tmp_path / "run" / "sites").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="has no states of clients: each site keeps its own"):
        export_model(record.folder, 0)
    export_model(record.folder, None)


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["fedmate", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_too_few_answers_stop_a_run_which_then_goes_on_as_if_nothing_had_been(
    tmp_path: Path,
    away: dict[int, set[int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--method", "fedmate", "--set", "backend=flower", "--set", "min_clients=3", "--set", "eval_every=3"]
    words += ["--set", "rounds=3", "--set", "device=cpu", "--set", "partition.clients=4", "--set", "training.epochs=1"]
    folder = tmp_path / "run"
    away[1] = {0, 2}
    assert command(monkeypatch, "run", *words, "--out", str(folder)) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "2 of 4 clients answered as they should, and `min_clients` is 3 (client 0: away; client 2: away)" in said
    assert f"is saved after round 1 of 3. Continue with: fedmate run --resume {folder}" in said
    assert Checkpoint(folder).state.round == 1
    # One is away for good: that many are enough, if the user says so.
    away[1] = {0}
    away[2] = {0}
    assert command(monkeypatch, "run", "--resume", str(folder), "--set", "min_clients=2") == 0
    assert "round 2: dropped, away: client 0" in " ".join(capsys.readouterr().out.split())
    record = Record(folder)
    assert [row["client"] for row in record.rounds if not int(row["valid"])] == [0, 0]
    assert record.summary["left_out"] == 2


def test_newcomers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"`holdout_clients` is 0\.5, but on the back end `flower` newcomers are met only"
    ):
        fedmate.run({**SETTINGS, "backend": "flower", "holdout_clients": 0.5}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_is_given_what_the_experiment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = list[Work]()

    @contextmanager
    def reach(work: Work) -> Iterator[Transport]:
        works.append(work)
        yield Here(work, {})

    monkeypatch.setattr(Flower, "__init__", _reached_by(reach))
    fedmate.run(
        {**SETTINGS, "backend": "flower", "min_clients": 4, "patience": 7.5, "method": {"name": "fedavg"}},
        out=tmp_path / "run",
    )
    assert [(work.min_clients, work.patience, work.clients) for work in works] == [(4, 7.5, 4)]


def _reached_by(reach: Any) -> Any:
    plain = Flower.__init__

    def init(self: Flower, *arguments: Any, **more: Any) -> None:
        plain(self, *arguments, **more)
        self.reach = reach

    return init
