"""Virtual clients: Flower's simulation in the background of this process, and its grid for the round loop.

    this process       the round loop, which asks through Flower's grid
      a thread         Flower's simulation, which gives messages to
    Ray's workers      a process for each core; clients are rebuilt there from the run's folder

What is started here ends here, however the run ends.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fedmate.backends.sequential import available_cores
from fedmate.errors import UserError
from fedmate.flower.client import Site
from fedmate.flower.client_app import client_app
from fedmate.flower.environment import need_flower, silence
from fedmate.flower.messages import Transport
from fedmate.flower.processes import end_all, end_workers, marked
from fedmate.flower.transport import GridTransport, LostError
from fedmate.flower.wire import sentence

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid
    from ray import ObjectRef

    from fedmate.flower.backend import Work
    from fedmate.flower.virtual import Home

GRACE = 5.0
"""Seconds for a simulation to end by itself after the last round."""

END = 20.0
"""Seconds for it to end after its workers were ended, and for what Ray leaves behind."""

_PUT: list[ObjectRef] = []
"""What simulations of this process have put aside; never forgotten, for Ray gives the first object of each the same
name: to forget that of an earlier simulation would free that of the one which runs."""


@contextmanager
def simulated(work: Work) -> Iterator[Transport]:
    """Start a simulation, and end it with everything that belongs to it."""
    need_flower(simulation=True)
    silence()
    import flwr.simulation  # noqa: F401 its loggers exist from here on
    import ray

    if ray.is_initialized():
        raise UserError("Ray runs in this process already, and `backend` is `flower`; call `ray.shutdown()` first.")
    with marked() as mark, _hushed():
        simulation = _Simulation(work, mark)
        try:
            grid = simulation.grid()
            _hear_again()
            yield GridTransport(
                grid,
                work.experiment,
                patience=work.patience,
                alive=simulation.is_alive,
            )
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

    def __init__(self, work: Work, mark: str) -> None:
        """Start it."""
        self.error: BaseException | None = None
        self._mark, self._done = mark, threading.Event()
        self._grids = queue.SimpleQueue[Any]()
        self._thread = threading.Thread(target=self._run, args=[work], name="flower", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Tell whether it still runs."""
        return self._thread.is_alive()

    def grid(self) -> Grid:
        """Return the grid as soon as there is one."""
        while self.is_alive():
            try:
                return self._grids.get(timeout=0.2)
            except queue.Empty:
                continue
        raise LostError("the simulation did not start")

    def end(self, at_once: bool = False) -> None:
        """End it; `at_once`: clients are not waited for."""
        import ray

        self._done.set()
        if not at_once:
            self._thread.join(GRACE)
        deadline = time.monotonic() + END
        while self.is_alive() and time.monotonic() < deadline:
            # Flower waits for what a worker is at; without the worker it does not.
            end_workers(self._mark)
            self._thread.join(0.5)
        ray.shutdown()
        end_all(self._mark, END)

    def _run(self, work: Work) -> None:
        import ray
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        server = ServerApp()
        server.main()(self._serve)
        try:
            # On this machine alone, whatever else there is; Flower takes what it finds running.
            ray.init(
                address="local",
                num_cpus=min(available_cores(), work.clients),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
            )
            # The app travels with every message, so what may be large is put aside once.
            _PUT.append(ray.put(work.given))
            client = client_app(partial(_open_site, work.folder, _PUT[-1]), is_virtual=True)
            settings = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
            run_simulation(server, client, work.clients, backend_config=settings)
        except BaseException as error:
            self.error = error

    def _serve(self, grid: Grid, context: Context) -> None:
        """Hand out the grid; Flower's simulation ends with this function."""
        self._grids.put(grid)
        self._done.wait()


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep Flower and Ray from writing to the terminal; what matters is said by the round loop."""
    loggers = [logging.getLogger(name) for name in ("flwr", "ray")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _hear_again() -> None:
    """Give SIGTERM back to whom it was: Ray's core took it when it started, and would abort with a trace of its own."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


# -------------------- in a worker


_HOMES: dict[tuple[Path, str], Home] = {}
"""What a worker has rebuilt, by the run's folder and its token: it stays there from message to message."""


def _open_site(folder: Path, given: ObjectRef, context: Context, token: str) -> Site:
    import ray

    # Here, since building an experiment imports its back end.
    from fedmate.flower.virtual import rebuild

    if (folder, token) not in _HOMES:
        _HOMES[folder, token] = rebuild(folder, ray.get(given))
    return _HOMES[folder, token].site(int(context.node_config["partition-id"]), token)
