"""The back end `flower` with virtual clients: the reference's numbers, errors with names, and nothing left behind."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tests.flower.federation import MARK, wait_for, with_mark
from torch import Tensor, nn
from torch.testing import assert_close

import fedmate
from fedmate import flower
from fedmate.core.tree import unpack
from fedmate.errors import UserError
from fedmate.experiment.build import Built, build
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import ConfigSource, resolve, stored_experiment
from fedmate.experiment.export import export_model
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.prepare import begin
from fedmate.experiment.record import Record
from fedmate.experiment.run import run
from fedmate.flower.backend import IDENTITY, Flower, identity
from fedmate.flower.transport import GridTransport, LostError

# Without importing Ray: its output to the terminal is decided then.
if find_spec("flwr") is None or find_spec("ray") is None:
    pytest.skip("Flower or Ray is not installed", allow_module_level=True)

CLIENTS = 6
WORKER = "ray::ClientAppActor"


def own_network() -> nn.Module:
    """A class that no other process can import."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.head(torch.relu(self.body(x)))
            return answer

    torch.manual_seed(0)
    return Own()


def own_inputs() -> UserInputs:
    draw = torch.Generator().manual_seed(0)
    pool = fedmate.Pool(torch.randn(90, 4, generator=draw), torch.arange(90).remainder(3))
    return UserInputs(data=pool, module=own_network(), classifier="head")


def ready(backend: str) -> Built:
    inputs = own_inputs()
    values = {
        "seed": 3,
        "rounds": 4,
        "eval_every": 2,
        "participation": 0.5,
        "device": "cpu",
        "backend": backend,
        "partition": {"name": "iid", "clients": CLIENTS},
        "training": {"epochs": 1},
        "method": {"name": "fedmate"},
    }
    return build(resolve([inputs.layer(), ConfigSource("test", values)]), inputs)


def resumed(folder: Path) -> None:
    run(build(stored_experiment(folder), own_inputs(), Checkpoint(folder).initial()[0]), folder)


def check_equal(found: Path, expected: Path) -> None:
    ours, reference = Record(found), Record(expected)
    assert [{**row, "seconds": 0} for row in ours.metrics] == [{**row, "seconds": 0} for row in reference.metrics]
    assert (ours.rounds, ours.clients) == (reference.rounds, reference.clients)
    states = [unpack(max((folder / "checkpoint").glob("server-*")).read_bytes())[0] for folder in (found, expected)]
    assert_close(states[0], states[1], rtol=0, atol=0)


@pytest.fixture
def check_nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Check that no thread and no process is left; dropped objects of Ray are collected while warnings are ignored."""
    mark, threads, path = secrets.token_hex(8), {*threading.enumerate()}, os.environ.get("PYTHONPATH")
    monkeypatch.setenv(MARK, mark)

    def check() -> None:
        wait_for(lambda: not with_mark(mark), 20, "all processes have ended")
        # Flower's own threads look up now and then whether they are still wanted.
        wait_for(lambda: {*threading.enumerate()} <= threads, 20, "all threads have ended")
        assert os.environ.get("PYTHONPATH") == path

    yield check
    gc.collect()


# -------------------- whole simulations


@pytest.mark.flower
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_simulation_that_is_interrupted_twice_gives_the_numbers_of_the_reference(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    check_nothing_left: Callable[[], None],
) -> None:
    """A signal in round 2, a killed worker in round 3: records, states and models are the same to the last bit."""
    reference, folder = tmp_path / "reference", tmp_path / "flower"

    def kill_a_worker() -> None:
        # A worker takes its name a moment after it has begun.
        wait_for(lambda: bool(with_mark(os.environ[MARK], WORKER)), 20, "there is a worker")
        os.kill(with_mark(os.environ[MARK], WORKER)[0], signal.SIGKILL)

    begin(reference, ready("sequential"))
    resumed(reference)
    begin(folder, ready("flower"))

    def done() -> int:
        return Checkpoint(folder).state.round

    during(monkeypatch, lambda: done() == 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with hearing_signals(), pytest.raises(KeyboardInterrupt):
        resumed(folder)
    assert done() == 1
    check_nothing_left()

    during(monkeypatch, lambda: done() == 2, kill_a_worker)
    with pytest.raises(LostError, match=r"^a worker process .* has died or failed \(<class 'ray.exceptions.ActorDied"):
        resumed(folder)
    assert done() == 2
    check_nothing_left()

    resumed(folder)
    check_equal(folder, reference)
    check_nothing_left()
    assert capfd.readouterr() == ("", "")
    check_models_and_token(folder, reference)


@contextmanager
def hearing_signals() -> Iterator[None]:
    """Hear SIGTERM, which Ray would take for itself."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def during(monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool], do: Callable[[], None]) -> None:
    """Do something once, while answers are waited for."""
    usual, left = GridTransport._rest, [do]

    def rest(self: GridTransport) -> None:
        if left and when():
            left.pop()()
        usual(self)

    monkeypatch.setattr(GridTransport, "_rest", rest)


def check_models_and_token(folder: Path, reference: Path) -> None:
    """Check models with the states of clients, the error without these, and that no run gets another token."""
    for client in range(CLIENTS):
        models = [export_model(place, client, own_inputs()).module.state_dict() for place in (folder, reference)]
        assert_close(models[0], models[1], rtol=0, atol=0)
    (folder / "sites").rename(folder / "elsewhere")
    with pytest.raises(UserError, match="has no states of clients: each site keeps its own"):
        export_model(folder, 0, own_inputs())
    for damaged in (b"", b"[]", b'{"experiment": "../../secret"}', b"\xff"):
        (folder / IDENTITY).write_bytes(damaged)
        with pytest.raises(UserError, match=r"`.*federation.json` holds the token of this run, but cannot be used"):
            identity(folder)


# -------------------- parts


def test_what_a_simulation_cannot_start_with_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"`holdout_clients` is 0\.5, which the back end `flower` does not"):
        build(resolve([ConfigSource("test", {"backend": "flower", "holdout_clients": 0.5})]))
    flower.silence()
    import ray

    built = ready("sequential")
    begin(tmp_path / "run", built)
    backend = Flower(built.method, built.federation, torch.tensor(3))
    monkeypatch.setattr(ray, "init", Mock(side_effect=ValueError("no room\nat all")))
    lost = r"^the simulation did not start \(ValueError: no room\)$"
    with pytest.raises(LostError, match=lost), backend.at_work(tmp_path / "run"):
        pass
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(UserError, match=r"^Ray runs in this process already"), backend.at_work(tmp_path / "run"):
        pass
    monkeypatch.setattr(flower, "find_spec", lambda name: None if name == "ray" else object())
    advice = r"needs the package `ray`, .*`pip install 'fedmate\[flower\]'`.$"
    with pytest.raises(UserError, match=advice), backend.at_work(tmp_path / "run"):
        pass
