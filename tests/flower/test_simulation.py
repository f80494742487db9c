"""The back end `flower` with virtual clients: the reference's numbers, errors with names, and nothing left behind."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from fedmate.flower.client_app import client_app
from fedmate.flower.processes import MARK, WORKER, end_all, end_workers, marked, with_mark
from torch import Tensor, nn
from torch.testing import assert_close

import fedmate
from fedmate.core.serialise import unpack
from fedmate.errors import UserError
from fedmate.experiment.build import Built, build
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.experiment.prepare import stored_experiment
from fedmate.experiment.run import Observer, begin, run
from fedmate.experiment.user_inputs import NO_INPUTS, UserInputs
from fedmate.flower import environment, simulation
from fedmate.flower.backend import IDENTITY, Flower, Work, identity
from fedmate.flower.client import Site
from fedmate.flower.messages import Answer, Request, Transport
from fedmate.flower.transport import GridTransport, LostError

# Without importing Ray: what it writes to the terminal is decided then.
if find_spec("flwr") is None or find_spec("ray") is None:
    pytest.skip("Flower or Ray is not installed", allow_module_level=True)

Test = TypeVar("Test", bound=Callable[..., None])

CLIENTS = 20
TOKEN = "ab" * 16


class Listener(Observer):
    """Remembers what it hears, and the mark of the processes that are at work."""

    def __init__(self) -> None:
        self.done, self.sentences, self.mark = 0, list[str](), ""

    def started(self, built: Built, done: int) -> None:
        self.done = done

    def round_done(self, done: int, primary: float | None) -> None:
        self.done, self.mark = done, os.environ.get(MARK, "")

    def warned(self, sentence: str) -> None:
        self.sentences.append(sentence)


def ready(backend: str, method: str, rounds: int, given: UserInputs = NO_INPUTS, **partition: Any) -> Built:
    values = {
        "seed": 3,
        "rounds": rounds,
        "eval_every": 2,
        "participation": 0.5,
        "device": "cpu",
        "backend": backend,
        "partition": partition,
        "training": {"epochs": 1},
        "method": {"name": method},
    }
    return build(resolve([given.layer(), ConfigSource("test", values)]), given)


def finished(folder: Path, backend: str, method: str, rounds: int) -> Listener:
    built, listener = ready(backend, method, rounds, name="share", clients=CLIENTS), Listener()
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
        after = "after/"
        return {
            client: {path.removeprefix(after): leaf for path, leaf in tensors.items() if path.startswith(after)}
            for client, tensors in both.items()
        }
    files = (folder / "checkpoint" / "clients").iterdir()
    return {int(path.name.partition("-")[0]): unpack(path.read_bytes())[0] for path in files}


def check_equal(found: Path, expected: Path) -> None:
    assert numbers(found) == numbers(expected)
    assert_close(server_state(found), server_state(expected), rtol=0, atol=0)
    assert_close(client_states(found), client_states(expected), rtol=0, atol=0)


def check_nothing_left(listener: Listener, threads: list[threading.Thread]) -> None:
    assert listener.mark
    assert [(folder / "cmdline").read_bytes() for folder in with_mark(listener.mark)] == []
    # Flower's own threads look up now and then whether they are still wanted.
    deadline = time.monotonic() + 20
    while not {*threading.enumerate()} <= {*threads} and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {*threading.enumerate()} <= {*threads}
    assert MARK not in os.environ


@pytest.fixture
def threads() -> list[threading.Thread]:
    """Those that were there before."""
    return threading.enumerate()


# -------------------- whole simulations


@pytest.fixture
def _collected() -> Iterator[None]:
    """Collect what Ray drops without closing it while its warnings are ignored."""
    yield
    gc.collect()


def whole(test: Test) -> Test:
    """Mark a test that runs a whole simulation."""
    for mark in (
        pytest.mark.flower,
        pytest.mark.filterwarnings("ignore::ResourceWarning"),
        pytest.mark.usefixtures("_collected"),
    ):
        test = mark(test)
    return test


@whole
def test_a_simulation_gives_the_numbers_of_the_reference(
    tmp_path: Path, threads: list[threading.Thread], capfd: pytest.CaptureFixture[str]
) -> None:
    """FedMate, half of 20 clients a round: the record, the server's state and the clients', to the last bit."""
    finished(tmp_path / "reference", "sequential", "fedmate", rounds=3)
    threads, path = threading.enumerate(), os.environ.get("PYTHONPATH")
    listener = finished(tmp_path / "flower", "flower", "fedmate", rounds=3)
    check_equal(tmp_path / "flower", tmp_path / "reference")
    assert len(client_states(tmp_path / "flower")) > CLIENTS // 2
    assert not list((tmp_path / "flower" / "checkpoint" / "clients").iterdir())
    assert listener.sentences == []
    check_nothing_left(listener, threads)
    assert os.environ.get("PYTHONPATH") == path
    assert capfd.readouterr() == ("", "")


@whole
def test_interrupted_and_without_a_worker_a_run_stands_where_it_was_saved(
    tmp_path: Path,
    threads: list[threading.Thread],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C in round 2, a killed worker in round 3; resumed twice, FedAvg ends with the reference's numbers.

    What Python remembers of the first two is forgotten while the third is under way, as it may be at any time.
    """
    held = list[object]()

    def forget() -> None:
        del held[:-1]
        gc.collect()

    def remembered(open_site: Callable[[Any, str], Site], *, is_virtual: bool) -> object:
        held.append(open_site)
        return client_app(open_site, is_virtual=is_virtual)

    monkeypatch.setattr(simulation, "client_app", remembered)
    finished(tmp_path / "reference", "sequential", "fedavg", rounds=4)
    threads, folder = threading.enumerate(), tmp_path / "flower"
    built, listener = ready("flower", "fedavg", 4, name="share", clients=CLIENTS), Listener()
    begin(folder, built)
    during(monkeypatch, lambda: listener.done == 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    with hearing_interrupts(), pytest.raises(KeyboardInterrupt):
        run(built, folder, listener)
    assert Checkpoint(folder).state.round == 1
    check_nothing_left(listener, threads)

    built, listener = build(stored_experiment(folder), initial=Checkpoint(folder).initial()[0]), Listener()
    during(monkeypatch, lambda: listener.done == 2, kill_a_worker)
    start = time.monotonic()
    with pytest.raises(LostError, match=r"^a worker process .* has died or failed \(ray.exceptions.ActorDied"):
        run(built, folder, listener)
    assert Checkpoint(folder).state.round == 2
    assert time.monotonic() - start < 120
    check_nothing_left(listener, threads)

    built, listener = build(stored_experiment(folder), initial=Checkpoint(folder).initial()[0]), Listener()
    during(monkeypatch, lambda: listener.done == 2, forget)
    run(built, folder, listener)
    assert len(held) == 1, "it has forgotten the others"
    check_equal(folder, tmp_path / "reference")
    check_nothing_left(listener, threads)
    assert capfd.readouterr() == ("", "")


@whole
def test_a_run_that_a_scheduler_ends_is_saved_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["run", "--dataset", "digits", "--method", "fedavg", "--set", "backend=flower", "--set", "rounds=500"]
    command = [sys.executable, "-c", "from fedmate.cli import main; main()", *words, "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while process.poll() is None and not (folder / "rounds.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert re.fullmatch(
        r"Stopped\. .*run is saved after round \d+ of 500\. Continue with: fedmate run --resume .*\n", errors
    )


@contextmanager
def hearing_interrupts() -> Iterator[None]:
    """Hear Ctrl-C, which a shell lets those ignore that it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def during(monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool], do: Callable[[], None]) -> None:
    """Do something once, while answers are waited for."""
    usual, left = GridTransport._rest, [do]

    def rest(self: GridTransport) -> None:
        if left and when():
            left.pop()()
        usual(self)

    monkeypatch.setattr(GridTransport, "_rest", rest)


def kill_a_worker() -> None:
    mark, deadline = os.environ[MARK], time.monotonic() + 20
    # A worker takes its name a moment after it has begun.
    while not (workers := [folder for folder in with_mark(mark) if is_worker(folder)]):
        assert time.monotonic() < deadline, [folder.joinpath("cmdline").read_bytes() for folder in with_mark(mark)]
        time.sleep(0.05)
    os.kill(int(workers[0].name), signal.SIGKILL)


def is_worker(folder: Path) -> bool:
    return (folder / "cmdline").read_bytes().startswith(WORKER)


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


@whole
def test_a_client_that_raises_is_left_out_and_what_came_from_python_arrives(
    tmp_path: Path, threads: list[threading.Thread]
) -> None:
    draw = torch.Generator().manual_seed(0)
    pool = fedmate.Pool(torch.randn(90, 4, generator=draw), torch.arange(90).remainder(3))
    given = UserInputs(data=pool, module=own_network(), classifier="head")
    built, listener, folder = ready("flower", "fedavg", 2, given, name="iid", clients=6), Listener(), tmp_path / "run"
    begin(folder, built)
    # Of one client the state is damaged, another cannot take its lock.
    (folder / IDENTITY).write_text(json.dumps({"experiment": TOKEN}))
    (folder / "sites" / TOKEN[:16] / "1").mkdir(parents=True)
    (folder / "sites" / TOKEN[:16] / "1" / "state.safetensors").write_bytes(b"damaged")
    (folder / "sites" / TOKEN[:16] / "4" / "lock").mkdir(parents=True)
    run(built, folder, listener)
    rows = [line.split(",")[:3] for line in (folder / "rounds.csv").read_text().splitlines()[1:]]
    assert len(rows) == 6
    assert {client for _, client, valid in rows if valid == "0"} == {client for _, client, _ in rows} & {"1", "4"}
    damaged = f"`{folder / 'sites' / TOKEN[:16] / '1' / 'state.safetensors'}` cannot be used"
    assert any(f"not evaluated, {damaged}" in sentence for sentence in listener.sentences)
    assert any("not evaluated, IsADirectoryError: [Errno 21]" in sentence for sentence in listener.sentences)
    assert any("dropped, " in sentence for sentence in listener.sentences)
    check_nothing_left(listener, threads)


# -------------------- parts


def test_a_simulation_that_does_not_start_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.silence()
    import ray

    def fail(**_: object) -> None:
        raise ValueError("no room\nat all")

    built = ready("sequential", "fedavg", 2, name="share", clients=4)
    begin(tmp_path / "run", built)
    monkeypatch.setattr(ray, "init", fail)
    lost = r"^the simulation did not start \(ValueError: no room\)$"
    with pytest.raises(LostError, match=lost), flower(built).at_work(tmp_path / "run"):
        pass
    assert MARK not in os.environ
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(UserError, match=r"^Ray runs in this process already"), flower(built).at_work(tmp_path / "run"):
        pass


def test_a_run_keeps_its_identity(tmp_path: Path) -> None:
    begin(tmp_path / "run", ready("sequential", "fedavg", 2, name="share", clients=4))
    token = identity(tmp_path / "run")
    assert identity(tmp_path / "run") == token
    assert json.loads((tmp_path / "run" / IDENTITY).read_bytes()) == {"experiment": token}
    for damaged in (b"", b"{}", b"[]", b'{"experiment": 3}', b'{"experiment": "../../secret"}', b"\xff", b"[" * 10**5):
        (tmp_path / "run" / IDENTITY).write_bytes(damaged)
        with pytest.raises(UserError, match=r"`.*federation.json` says by which token .* cannot be used"):
            identity(tmp_path / "run")
        assert (tmp_path / "run" / IDENTITY).read_bytes() == damaged
    begin(tmp_path / "other", ready("sequential", "fedavg", 2, name="share", clients=4))
    assert identity(tmp_path / "other") != token


def test_a_run_that_went_on_does_not_get_another_identity(tmp_path: Path) -> None:
    """Its clients would begin anew, and nobody would notice."""
    built, folder = ready("sequential", "fedavg", 1, name="share", clients=4), tmp_path / "run"
    begin(folder, built)
    run(built, folder, Listener())
    with pytest.raises(UserError, match=r"cannot be used \(it is missing\)"):
        identity(folder)


def flower(built: Built) -> Flower:
    return Flower(built.method, built.federation, torch.tensor(3), chunk_size=2, precision="tf32")


def test_a_courier_is_there_while_a_run_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Echo(Transport):
        def send(self, requests: Any, wanted: int) -> Any:
            return {client: Answer({}, {}) for client in requests}

    built, works = ready("sequential", "fedavg", 2, name="share", clients=4), list[Work]()
    begin(tmp_path / "run", built)
    monkeypatch.chdir(tmp_path)
    backend = flower(built)
    assert (backend.min_clients, backend.patience, backend.inputs) == (1, 600.0, None)
    assert [note.partition(" is set")[0] for note in backend.notes] == ["`chunk_size`"]
    backend.min_clients, backend.patience = 3, 5.0

    def reach(work: Work) -> AbstractContextManager[Transport]:
        works.append(work)
        return nullcontext(Echo())

    backend.reach = reach
    asked = {0: Request("train", 0, False, {})}
    with backend.at_work(Path("run")):
        assert backend.transport.send(asked, 1) == {0: Answer({}, {})}
    assert works == [Work(tmp_path / "run", identity(tmp_path / "run"), 4, 3, 5.0, NO_INPUTS)]
    with pytest.raises(RuntimeError, match="within `at_work`"):
        backend.transport.send(asked, 1)


@pytest.mark.parametrize("missing", ["flwr", "ray"])
def test_without_flower_it_says_what_to_install(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = ready("sequential", "fedavg", 2, name="share", clients=4)
    begin(tmp_path / "run", built)
    monkeypatch.setattr(environment, "find_spec", lambda name: None if name == missing else object())
    advice = rf"^the back end `flower` needs the package `{missing}`, .*`pip install 'fedmate\[flower\]'`.$"
    if missing == "ray":
        # A server without virtual clients does without.
        backend = flower(built)
        with pytest.raises(UserError, match=advice), backend.at_work(tmp_path / "run"):
            pass
    else:
        with pytest.raises(UserError, match=advice):
            flower(built)


def test_nothing_calls_home_even_where_flower_was_loaded_before(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore import telemetry

    monkeypatch.setattr(telemetry, "FLWR_TELEMETRY_ENABLED", "1")
    for name in environment.QUIET:
        monkeypatch.delenv(name, raising=False)
    environment.silence()
    assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
    assert {name: os.environ[name] for name in environment.QUIET} == environment.QUIET


def test_every_module_may_be_the_first_to_be_imported() -> None:
    """A worker begins with one that nobody else begins with."""
    flower = ("backend", "client", "simulation", "node")
    names = [f"fedmate.flower.{name}" for name in flower]
    # A fresh start for each, but for what other packages have loaded.
    script = """
import importlib, sys
import torch, sklearn.datasets
for name in sys.argv[1:]:
    for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == "fedmate"]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(name, error)
"""
    found = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == []


def test_what_carries_the_mark_is_found_and_ended() -> None:
    with marked() as mark:
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        process = subprocess.Popen(command)
        named = subprocess.Popen([WORKER.decode(), *command[1:]], executable=sys.executable)
    stranger = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 10
        while len(list(with_mark(mark))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert {int(folder.name) for folder in with_mark(mark)} == {process.pid, named.pid}
        end_workers(mark)
        assert named.wait(10) == -signal.SIGKILL
        assert process.poll() is None
        end_all(mark, patience=0.2)
        assert process.wait(10) == -signal.SIGKILL
        assert list(with_mark(mark)) == []
        assert stranger.poll() is None
    finally:
        for one in (process, named, stranger):
            one.kill()
            one.wait()
