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
from fedmate.flower.backend import Connect, Flower
from fedmate.flower.node import request_of
from fedmate.flower.transport import PAUSE, GridTransport, Transport, reached
from fedmate.progress import RunProgress
from fedmate.report.tables import comparison, show

if TYPE_CHECKING:
    from flwr.serverapp import Grid

START, LATECOMERS = 30.0, 70.0
"""Seconds to wait for nodes in a simulation, and in a resumed run: Flower lets a killed node in after a minute."""


def serve(grid: Grid, run_config: Mapping[str, Any], folder: Path) -> None:
    """Run the experiment in the app's folder that a run config names, over Flower's grid."""
    # Flower carries the lines elsewhere.
    console = Console(width=140, force_terminal=False)
    conduct(run_config, folder, over(grid, console), console)


def conduct(run_config: Mapping[str, Any], folder: Path, connect: Connect, console: Console) -> None:
    """Do what `serve` does, wherever clients are; an error is printed as a sentence, and Flower's run fails."""
    try:
        request, out = request_of(run_config, folder), run_config["out"]
        place = expand(out).absolute() if out else None
        with resumed_runs(request, place) if place is not None and place.exists() else new_runs(request, place) as jobs:
            _run(jobs[0]._replace(folder=jobs[0].folder.absolute()), connect, console)
    except (FedmateError, OSError) as error:
        console.out(f"Error: {error}", highlight=False)
        raise


def _run(job: PreparedRun, connect: Connect, console: Console) -> None:
    for line in (f"Record: {job.folder}", *(f"Note: {note}" for note in job.warnings)):
        console.out(line, highlight=False)
    if job.built is None:
        console.out("It is finished already: nothing to do.", highlight=False)
        return
    assert isinstance(job.built.backend, Flower)
    job.built.backend.connect = connect
    try:
        run(job.built, job.folder, [*job.callbacks, RunProgress(console)])
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


def over(grid: Grid, console: Console) -> Connect:
    """Return the function that reaches the nodes of a grid; it waits for them, in a simulation for all."""
    # The only sign of a simulation, in which Flower loses messages once a worker has died.
    virtual = type(grid).__name__ == "InMemoryGrid"

    @contextmanager
    def connect(backend: Flower, folder: Path, token: str) -> Iterator[Transport]:
        clients, most, shown = len(backend.federation.clients), START if virtual else backend.patience, -1
        if Checkpoint(folder).state.round:
            # It may have lost a site for good.
            most = min(most, LATECOMERS)
        deadline = time.monotonic() + most
        while True:
            with reached():
                found = len(list(grid.get_node_ids()))
            left = deadline - time.monotonic()
            if found >= clients or left < 0:
                break
            if found != shown:
                console.out(f"{found} of {clients} nodes are connected; waiting up to {left:.0f} s.", highlight=False)
            shown = found
            time.sleep(PAUSE)
        if virtual and found != clients:
            raise UserError(
                f"the simulation has {found} nodes, but the experiment has {clients} clients; set the number of "
                f"nodes to that: `flwr run . local --federation-config num-supernodes={clients}`."
            )
        yield GridTransport(grid, token, patience=backend.patience, alive=(lambda: True) if virtual else None)

    return connect
