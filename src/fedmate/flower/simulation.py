"""Virtual clients: Flower's simulation in the background of this process, and its grid for the round loop.

    this process       the round loop, which asks through Flower's grid
      a thread         Flower's simulation, which gives messages to
    Ray's workers      a process for each core; clients are rebuilt there from the run's folder

All processes that start here end here, however the run ends.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

from fedmate.backends.sequential import available_cores
from fedmate.core import make_key
from fedmate.errors import UserError
from fedmate.experiment.build import make_method
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.partitioning import make_federation, split_samples
from fedmate.experiment.prepare import stored_experiment
from fedmate.experiment.signature import Signature
from fedmate.experiment.user_inputs import UserInputs
from fedmate.flower.client import Client
from fedmate.flower.client_state import VIRTUAL, ClientState
from fedmate.flower.environment import need_flower, silence
from fedmate.flower.messages import sentence
from fedmate.flower.node import client_app
from fedmate.flower.transport import GridTransport, LostError, Transport

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid
    from ray import ObjectRef

    from fedmate.flower.backend import Federated

MakeClient: TypeAlias = Callable[[int], Client]
"""Returns one of a run's clients, by its number."""

LOCAL = "127.0.0.1"

GRACE = 5.0
"""Seconds for a simulation to end by itself after the last round."""

END = 20.0
"""Seconds for it to end after its workers were ended."""

_KEPT: list[ObjectRef] = []
"""Objects of this process's simulations. Ray gives the first object of each the same name, so forgetting that of an
earlier simulation would free that of the running one."""


@contextmanager
def simulated(run: Federated) -> Iterator[Transport]:
    """Start a simulation, and end it with everything that belongs to it."""
    need_flower(simulation=True)
    silence()
    import flwr.simulation  # noqa: F401 its loggers exist from here on
    import ray

    if ray.is_initialized():
        raise UserError("Ray runs in this process already, and `backend` is `flower`; call `ray.shutdown()` first.")
    with _hushed(), _module_path():
        simulation = _Simulation(run)
        try:
            grid = simulation.grid()
            _restore_sigterm()
            yield GridTransport(grid, run.experiment, patience=run.patience, alive=simulation.is_alive)
        except BaseException as error:
            # Read now: ending it may raise errors of its own.
            cause = simulation.error
            simulation.end(at_once=True)
            if isinstance(error, LostError) and cause is not None:
                raise LostError(f"{error} ({type(cause).__name__}: {sentence(str(cause))})") from cause
            raise
        simulation.end()


@final
class _Simulation:
    """One simulation in a thread of its own, which waits for messages until it is ended."""

    def __init__(self, run: Federated) -> None:
        self.error: BaseException | None = None
        self._done, self._grids = threading.Event(), queue.SimpleQueue[Any]()
        # Workers end when this socket is closed: see `_end_with`.
        self._lifeline = socket.create_server((LOCAL, 0), backlog=1024)
        self._thread = threading.Thread(target=self._run, args=[run], name="flower", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return self._thread.is_alive()

    def grid(self) -> Grid:
        """Return the grid as soon as there is one."""
        while self.is_alive():
            with suppress(queue.Empty):
                return self._grids.get(timeout=0.2)
        raise LostError("the simulation did not start")

    def end(self, at_once: bool = False) -> None:
        """End it; `at_once`: clients are not waited for."""
        import ray

        self._done.set()
        if not at_once:
            self._thread.join(GRACE)
        if self.is_alive():
            # Flower waits for what a worker is at; without the worker it does not.
            self._lifeline.close()
            self._thread.join(END)
        ray.shutdown()
        self._lifeline.close()

    def _run(self, run: Federated) -> None:
        import ray
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        server = ServerApp()
        server.main()(self._serve)
        try:
            # A Ray of its own: Flower uses the one that it finds.
            ray.init(
                address="local",
                num_cpus=min(available_cores(), run.clients),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
            # The app travels with every message, so what may be large is put aside once.
            _KEPT.append(ray.put(run.inputs))
            port = self._lifeline.getsockname()[1]
            client = client_app(partial(_open_client, run.folder, _KEPT[-1], port), is_virtual=True)
            settings = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
            run_simulation(server, client, run.clients, backend_config=settings)
        except BaseException as error:
            self.error = error

    def _serve(self, grid: Grid, context: Context) -> None:
        """Pass the grid on; Flower's simulation ends with this function."""
        self._grids.put(grid)
        self._done.wait()


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep Flower and Ray from writing to the terminal; the round loop reports what matters."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _module_path() -> Iterator[None]:
    """Let workers find the modules that this process finds."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _restore_sigterm() -> None:
    """Take SIGTERM back: Ray's core took it when it started, and would abort with a trace of its own."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


# -------------------- in a worker


_RUNS: dict[tuple[Path, str], MakeClient] = {}
"""The runs that a worker has rebuilt, by folder and token; they last from message to message."""


def _open_client(folder: Path, inputs: ObjectRef, port: int, context: Context, token: str) -> Client:
    import ray

    if (folder, token) not in _RUNS:
        _end_with(port)
        _RUNS[folder, token] = rebuild(folder, ray.get(inputs), token)
    return _RUNS[folder, token](int(context.node_config["partition-id"]))


def _end_with(port: int) -> None:
    """End this worker as soon as the process that started it closes its socket, or is gone."""
    connection = socket.create_connection((LOCAL, port))

    def watch() -> None:
        with suppress(OSError):
            connection.recv(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def rebuild(folder: Path, inputs: UserInputs, token: str) -> MakeClient:
    """Load a run's data, partition it as the run does, and start from the parameters that the run started from."""
    experiment = stored_experiment(folder)
    initial, note = Checkpoint(folder).initial()
    method = make_method(experiment, Signature.from_dict(note), inputs, initial)
    federation, general = make_federation(experiment, split_samples(experiment, inputs)), experiment.general

    def make(number: int) -> Client:
        return Client(
            number,
            len(federation.clients),
            method,
            federation.clients[number],
            federation.test,
            make_key(general.seed, general.device),
            ClientState(folder / VIRTUAL, token, number),
            general.precision,
        )

    return make
