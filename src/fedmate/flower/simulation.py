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
from typing import TYPE_CHECKING, Any, final

from fedmate.backends.sequential import available_cores
from fedmate.core import make_key
from fedmate.errors import UserError
from fedmate.experiment.build import Signature, make_method
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import stored_experiment
from fedmate.experiment.inputs import UserInputs, make_federation, split_samples
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

LOCAL = "127.0.0.1"

GRACE, END = 5.0, 20.0
"""Seconds for a simulation to end by itself after the last round, and after its workers were ended."""

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
    with _surroundings():
        simulation = _Simulation(run)
        try:
            grid = simulation.grid()
            handler = signal.getsignal(signal.SIGTERM)
            if handler is not None and threading.current_thread() is threading.main_thread():
                # Ray's core took it when it started, and would abort with a trace of its own.
                signal.signal(signal.SIGTERM, handler)
            yield GridTransport(grid, run.experiment, patience=run.patience, alive=simulation.thread.is_alive)
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
        self.thread = threading.Thread(target=self._run, args=[run], name="flower", daemon=True)
        self.thread.start()

    def grid(self) -> Grid:
        """Return the grid as soon as there is one."""
        while self.thread.is_alive():
            with suppress(queue.Empty):
                return self._grids.get(timeout=0.2)
        raise LostError("the simulation did not start")

    def end(self, *, at_once: bool = False) -> None:
        """End it; `at_once` does not wait for clients."""
        import ray

        self._done.set()
        self.thread.join(0.0 if at_once else GRACE)
        # Flower waits for what a worker is at; without the worker it does not.
        self._lifeline.close()
        self.thread.join(END)
        ray.shutdown()

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
def _surroundings() -> Iterator[None]:
    """Keep Flower and Ray from writing to the terminal, and let workers find the modules that this process finds."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("flwr", "ray"))}
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for logger in levels:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


# -------------------- in a worker


_RUNS: dict[tuple[Path, str], Callable[[int], Client]] = {}
"""The runs that a worker has rebuilt, by folder and token; they last from message to message."""


def _open_client(folder: Path, inputs: ObjectRef, port: int, context: Context, token: str) -> Client:
    import ray

    if (folder, token) not in _RUNS:
        threading.Thread(target=_end_with, args=[socket.create_connection((LOCAL, port))], daemon=True).start()
        _RUNS[folder, token] = rebuild(folder, ray.get(inputs), token)
    return _RUNS[folder, token](int(context.node_config["partition-id"]))


def _end_with(connection: socket.socket) -> None:
    """End this worker as soon as the process that started it closes its socket, or is gone."""
    with suppress(OSError):
        connection.recv(1)
    os._exit(1)


def rebuild(folder: Path, inputs: UserInputs, token: str) -> Callable[[int], Client]:
    """Load a run's data, partition it as the run does, and start from the parameters that the run started from."""
    experiment = stored_experiment(folder)
    initial, note = Checkpoint(folder).initial()
    method = make_method(experiment, Signature.from_dict(note), inputs, initial)
    federation, general = make_federation(experiment, split_samples(experiment, inputs)), experiment.general
    clients, key = federation.clients, make_key(general.seed, general.device)

    def make(number: int) -> Client:
        state = ClientState(folder / VIRTUAL, token, number)
        return Client(number, len(clients), method, clients[number], federation.test, key, state, general.precision)

    return make
