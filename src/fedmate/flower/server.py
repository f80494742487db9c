"""The server of a Flower app: it runs one experiment with the usual round loop, over Flower's grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedmate.data.sources import expand
from fedmate.errors import DivergedError, FedmateError, UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.prepare import PreparedRun, new_runs, resumed_runs
from fedmate.experiment.record import Record
from fedmate.experiment.run import run
from fedmate.flower.backend import Connect, Federated, Flower
from fedmate.flower.run_config import request_of
from fedmate.flower.transport import PAUSE, GridTransport, Transport, reached
from fedmate.progress import RunProgress
from fedmate.report.tables import comparison, show

if TYPE_CHECKING:
    from flwr.serverapp import Grid

WIDTH = 140
"""Of lines: Flower carries them elsewhere."""

START = 30.0
"""Seconds in which a simulation has all of its nodes."""

LATECOMERS = 70.0
"""Seconds to wait for more nodes once a resumed run has enough: Flower lets a killed node in after a minute."""


def serve(grid: Grid, run_config: Mapping[str, Any], folder: Path) -> None:
    """Run the experiment in the app's folder that a run config names, over Flower's grid."""
    console = Console(width=WIDTH, force_terminal=False)
    conduct(run_config, folder, over(grid, console), console)


def conduct(run_config: Mapping[str, Any], folder: Path, connect: Connect, console: Console) -> None:
    """Do what `serve` does, wherever clients are; an error is printed as a sentence, and Flower's run fails."""
    try:
        request, out = request_of(run_config, folder), run_config["out"]
        place = expand(out).absolute() if out else None
        with resumed_runs(request, place) if place is not None and place.exists() else new_runs(request, place) as jobs:
            (job,) = jobs
            _run(job._replace(folder=job.folder.absolute()), connect, console)
    except (FedmateError, OSError) as error:
        console.out(f"Error: {error}", highlight=False)
        raise


def over(grid: Grid, console: Console) -> Connect:
    """Return the function that reaches the nodes of a grid; it waits for them, in a simulation for all."""
    # The only sign of a simulation, in which Flower loses messages once a worker has died.
    virtual = type(grid).__name__ == "InMemoryGrid"

    @contextmanager
    def connect(run: Federated) -> Iterator[Transport]:
        # A resumed run may have lost a site for good.
        enough = run.min_clients if run.done and not virtual else run.clients
        found = _wait(grid, run.clients, enough, START if virtual else run.patience, console)
        if virtual and found != run.clients:
            raise UserError(
                f"the simulation has {found} nodes, but the experiment has {run.clients} clients; set the number of "
                f"nodes to that: `flwr run . local --federation-config num-supernodes={run.clients}`."
            )
        alive = (lambda: True) if virtual else None
        yield GridTransport(grid, run.experiment, patience=run.patience, alive=alive)

    return connect


def _wait(grid: Grid, wanted: int, enough: int, patience: float, console: Console) -> int:
    """Wait up to `patience` seconds for nodes, or `LATECOMERS` once there are `enough`; return how many there are."""
    deadline, shown = time.monotonic() + patience, -1
    while True:
        with reached():
            found = len(list(grid.get_node_ids()))
        if found >= wanted or time.monotonic() > deadline:
            return found
        if found >= enough:
            deadline = min(deadline, time.monotonic() + LATECOMERS)
        if found != shown:
            left = max(0.0, deadline - time.monotonic())
            console.out(f"{found} of {wanted} nodes are connected; waiting up to {left:.0f} s.", highlight=False)
            shown = found
        time.sleep(PAUSE)


def _run(job: PreparedRun, connect: Connect, console: Console) -> None:
    console.out(f"Record: {job.folder}", highlight=False)
    for note in job.warnings:
        console.out(f"Note: {note}", highlight=False)
    if job.built is None:
        console.out("It is finished already: nothing to do.", highlight=False)
        return
    backend = job.built.backend
    assert isinstance(backend, Flower)
    backend.connect = connect
    try:
        run(job.built, job.folder, RunProgress(console))
    except (DivergedError, UserError):
        raise
    except (FedmateError, OSError):
        done, rounds = Checkpoint(job.folder).state.round, job.built.experiment.general.rounds
        console.out(
            f"{job.folder} is saved after round {done} of {rounds}; a run with it as `out` goes on from there.",
            highlight=False,
        )
        raise
    show(comparison([Record(job.folder).summary]), console)
