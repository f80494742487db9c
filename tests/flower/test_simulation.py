"""The back end `flower` with virtual clients: the reference's numbers, errors with names, and nothing left behind."""

from __future__ import annotations

import gc
import json
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.flower.processes import MARK, wait_for, with_mark
from torch import Tensor, nn
from torch.testing import assert_close

import fedmate
from fedmate.core.serialise import unpack
from fedmate.errors import UserError
from fedmate.experiment.build import Built, build
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.experiment.export import export_model
from fedmate.experiment.prepare import begin, stored_experiment
from fedmate.experiment.request import NO_INPUTS, UserInputs
from fedmate.experiment.run import Observer, run
from fedmate.flower import environment
from fedmate.flower.backend import IDENTITY, Flower, identity
from fedmate.flower.transport import GridTransport, LostError

# Without importing Ray: its output to the terminal is decided then.
if find_spec("flwr") is None or find_spec("ray") is None:
    pytest.skip("Flower or Ray is not installed", allow_module_level=True)

CLIENTS = 6
WORKER = "ray::ClientAppActor"


class Listener(Observer):
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.done, self.sentences = 0, list[str]()

    def started(self, built: Built, done: int) -> None:
        self.done = done

    def round_done(self, done: int, primary: float | None) -> None:
        self.done = done

    def warned(self, sentence: str) -> None:
        self.sentences.append(sentence)


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


def ready(backend: str, method: str, rounds: int, inputs: UserInputs = NO_INPUTS) -> Built:
    values = {
        "seed": 3,
        "rounds": rounds,
        "eval_every": 2,
        "participation": 0.5,
        "device": "cpu",
        "backend": backend,
        "partition": {"name": "iid", "clients": CLIENTS},
        "training": {"epochs": 1},
        "method": {"name": method},
    }
    return build(resolve([inputs.layer(), ConfigSource("test", values)]), inputs)


def finished(folder: Path, backend: str, method: str, rounds: int, inputs: UserInputs = NO_INPUTS) -> Listener:
    built, listener = ready(backend, method, rounds, inputs), Listener()
    begin(folder, built)
    run(built, folder, listener)
    return listener


def numbers(folder: Path) -> dict[str, Any]:
    """All that a record says, but for how long it took."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    metrics = [{**json.loads(line), "seconds": None} for line in lines]
    return {"metrics": metrics, "rounds": (folder / "rounds.csv").read_text().splitlines()}


def server_state(folder: Path) -> dict[str, Tensor]:
    done = Checkpoint(folder).state.round
    return unpack((folder / "checkpoint" / f"server-{done:06d}.safetensors").read_bytes())[0]


def client_states(folder: Path) -> dict[int, dict[str, Tensor]]:
    """The states of those that took part, wherever they are kept."""
    if (folder / IDENTITY).exists():
        kept = (folder / "sites" / identity(folder)[:16]).glob("*/state.safetensors")
        both = {int(path.parent.name): unpack(path.read_bytes())[0] for path in kept}
        return {
            client: {path.removeprefix("after/"): leaf for path, leaf in tensors.items() if path.startswith("after/")}
            for client, tensors in both.items()
        }
    files = (folder / "checkpoint" / "clients").iterdir()
    return {int(path.name.partition("-")[0]): unpack(path.read_bytes())[0] for path in files}


def check_equal(found: Path, expected: Path) -> None:
    assert numbers(found) == numbers(expected)
    assert_close(server_state(found), server_state(expected), rtol=0, atol=0)
    assert_close(client_states(found), client_states(expected), rtol=0, atol=0)


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
def test_a_simulation_gives_the_numbers_of_the_reference(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], check_nothing_left: Callable[[], None]
) -> None:
    """FedMate on data and a network from Python: the record, the server's state and the clients', to the last bit."""
    finished(tmp_path / "reference", "sequential", "fedmate", 3, own_inputs())
    listener = finished(tmp_path / "flower", "flower", "fedmate", 3, own_inputs())
    check_equal(tmp_path / "flower", tmp_path / "reference")
    assert len(client_states(tmp_path / "flower")) > CLIENTS // 2
    assert not list((tmp_path / "flower" / "checkpoint" / "clients").iterdir())
    assert listener.sentences == []
    check_nothing_left()
    assert capfd.readouterr() == ("", "")


@pytest.mark.flower
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_and_a_killed_worker_leave_a_run_that_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    check_nothing_left: Callable[[], None],
) -> None:
    """A signal in round 2, a killed worker in round 3; resumed twice, FedPer ends with the reference's numbers."""
    folder = tmp_path / "flower"

    def kill_a_worker() -> None:
        # A worker takes its name a moment after it has begun.
        wait_for(lambda: bool(with_mark(os.environ[MARK], WORKER)), 20, "there is a worker")
        os.kill(with_mark(os.environ[MARK], WORKER)[0], signal.SIGKILL)

    finished(tmp_path / "reference", "sequential", "fedper", rounds=4)
    built, listener = ready("flower", "fedper", 4), Listener()
    begin(folder, built)
    during(monkeypatch, lambda: listener.done == 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with hearing_signals(), pytest.raises(KeyboardInterrupt):
        run(built, folder, listener)
    assert Checkpoint(folder).state.round == 1
    check_nothing_left()

    built, listener = build(stored_experiment(folder), initial=Checkpoint(folder).initial()[0]), Listener()
    during(monkeypatch, lambda: listener.done == 2, kill_a_worker)
    with pytest.raises(LostError, match=r"^a worker process .* has died or failed \(ray.exceptions.ActorDied"):
        run(built, folder, listener)
    assert Checkpoint(folder).state.round == 2
    check_nothing_left()

    run(build(stored_experiment(folder), initial=Checkpoint(folder).initial()[0]), folder, Listener())
    check_equal(folder, tmp_path / "reference")
    check_nothing_left()
    assert capfd.readouterr() == ("", "")
    check_models_and_token(folder, tmp_path / "reference")


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
        models = [export_model(place, client).module.state_dict() for place in (folder, reference)]
        assert_close(models[0], models[1], rtol=0, atol=0)
    (folder / "sites").rename(folder / "elsewhere")
    with pytest.raises(UserError, match="has no states of clients: each site keeps its own"):
        export_model(folder, 0)
    for damaged in (b"", b"[]", b'{"experiment": "../../secret"}', b"\xff"):
        (folder / IDENTITY).write_bytes(damaged)
        with pytest.raises(UserError, match=r"`.*federation.json` holds the token .* cannot be used"):
            identity(folder)


# -------------------- parts


def flower(folder: Path) -> Flower:
    built = ready("sequential", "fedper", 2)
    begin(folder, built)
    return Flower(built.method, built.federation, torch.tensor(3))


def test_held_out_clients_are_refused() -> None:
    with pytest.raises(UserError, match=r"`holdout_clients` is 0\.5, which the back end `flower` does not"):
        build(resolve([ConfigSource("test", {"backend": "flower", "holdout_clients": 0.5})]))


def test_a_simulation_that_does_not_start_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.silence()
    import ray

    def fail(**_: object) -> None:
        raise ValueError("no room\nat all")

    backend = flower(tmp_path / "run")
    monkeypatch.setattr(ray, "init", fail)
    lost = r"^the simulation did not start \(ValueError: no room\)$"
    with pytest.raises(LostError, match=lost), backend.at_work(tmp_path / "run"):
        pass
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(UserError, match=r"^Ray runs in this process already"), backend.at_work(tmp_path / "run"):
        pass


@pytest.mark.parametrize("missing", ["flwr", "ray"])
def test_a_missing_package_is_named(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name == missing else object())
    advice = rf"needs the package `{missing}`, .*`pip install 'fedmate\[flower\]'`.$"
    # Without Ray there are no virtual clients, but a server works.
    with pytest.raises(UserError, match=advice), flower(tmp_path / "run").at_work(tmp_path / "run"):
        pass
