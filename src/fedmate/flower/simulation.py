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
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedmate.backends.sequential import available_cores
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import stored_experiment
from fedmate.experiment.inputs import NO_INPUTS
from fedmate.flower import need_flower, silence
from fedmate.flower.client import Client, ClientState
from fedmate.flower.messages import sentence
from fedmate.flower.node import client_app
from fedmate.flower.transport import GridTransport, LostError, Transport

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid
    from ray import ObjectRef

    from fedmate.flower.backend import Flower

VIRTUAL = "sites"
"""The folder inside a run's where virtual clients keep their states."""

GRACE, END = 5.0, 20.0
"""Seconds for a simulation to end by itself after the last round, and after its workers were ended."""

_KEPT: list[ObjectRef] = []
"""Objects of this process's simulations. Ray gives the first object of each the same name, so forgetting that of an
earlier simulation would free that of the running one."""


@contextmanager
def simulated(backend: Flower, folder: Path, token: str) -> Iterator[Transport]:
    """Start a simulation, which waits for messages in a thread of its own; end it with all that belongs to it."""
    need_flower(simulation=True)
    silence()
    import flwr.simulation  # noqa: F401 its loggers exist from here on
    import ray

    if ray.is_initialized():
        raise UserError("Ray runs in this process already, and `backend` is `flower`; call `ray.shutdown()` first.")
    done, grids, errors = threading.Event(), queue.SimpleQueue["Grid"](), list[BaseException]()
    # Workers end when this socket is closed: see `_end_with`.
    lifeline = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def serve(grid: Grid, context: Context) -> None:
        # Flower's simulation ends with this function.
        grids.put(grid)
        done.wait()

    def simulate() -> None:
        try:
            _simulate(serve, backend, folder, lifeline.getsockname()[1])
        except BaseException as error:
            errors.append(error)

    thread, grace = threading.Thread(target=simulate, name="flower", daemon=True), 0.0
    with _surroundings():
        thread.start()
        try:
            while grids.empty():
                if not thread.is_alive():
                    raise LostError("the simulation did not start")
                thread.join(0.1)
            handler = signal.getsignal(signal.SIGTERM)
            if handler is not None and threading.current_thread() is threading.main_thread():
                # Ray's core took it when it started, and would abort with a trace of its own.
                signal.signal(signal.SIGTERM, handler)
            yield GridTransport(grids.get(), token, patience=backend.patience, alive=thread.is_alive)
            grace = GRACE
        except LostError as error:
            if not errors:
                raise
            raise LostError(f"{error} ({type(errors[0]).__name__}: {sentence(str(errors[0]))})") from errors[0]
        finally:
            done.set()
            thread.join(grace)
            # Flower waits for what a worker is at; without the worker it does not.
            lifeline.close()
            thread.join(END)
            ray.shutdown()


def _simulate(serve: Callable[[Grid, Context], None], backend: Flower, folder: Path, port: int) -> None:
    import ray
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server, clients = ServerApp(), len(backend.federation.clients)
    server.main()(serve)
    # A Ray of its own: Flower uses the one that it finds.
    ray.init(
        address="local",
        num_cpus=min(available_cores(), clients),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
    )
    # The app travels with every message, so what may be large is put aside once.
    _KEPT.append(ray.put(backend.inputs or NO_INPUTS))
    client = client_app(partial(_open_client, folder, _KEPT[-1], port), is_virtual=True)
    settings = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, clients, backend_config=settings)


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


def _open_client(folder: Path, inputs: ObjectRef, port: int, context: Context, token: str) -> Client:
    return _rebuilt(folder, inputs, port, token)(int(context.node_config["partition-id"]))


@cache
def _rebuilt(folder: Path, inputs: ObjectRef, port: int, token: str) -> Callable[[int], Client]:
    """Load a run's data, partition it as the run does, and start from the parameters that the run started from."""
    import ray

    threading.Thread(target=_end_with, args=[socket.create_connection(("127.0.0.1", port))], daemon=True).start()
    built = build(stored_experiment(folder), ray.get(inputs), Checkpoint(folder).initial()[0])
    federation = built.federation

    def make(number: int) -> Client:
        state = ClientState(folder / VIRTUAL, token, number)
        return Client(number, built.backend, state, federation.clients[number], federation.tests(number))

    return make


def _end_with(connection: socket.socket) -> None:
    """End this worker as soon as the process that started it closes its socket, or is gone."""
    with suppress(OSError):
        connection.recv(1)
    os._exit(1)
