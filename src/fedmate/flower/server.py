"""The server of a Flower app: it runs one experiment, with the same round loop as everywhere, over Flower's grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedmate.data.paths import expand
from fedmate.errors import DivergedError, FedmateError, UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.prepare import PreparedRun, Request, new_runs, resumed_runs
from fedmate.experiment.record import Record
from fedmate.experiment.run import run
from fedmate.flower.backend import Flower, Reach, Work
from fedmate.flower.messages import Transport
from fedmate.flower.run_config import request_of
from fedmate.flower.transport import PAUSE, GridTransport, reached
from fedmate.progress import Lines
from fedmate.report.tables import comparison

if TYPE_CHECKING:
    from flwr.serverapp import Grid

WIDTH = 140
"""Of lines: Flower carries them elsewhere."""

START = 30.0
"""Seconds in which a simulation has all of its nodes."""

LATECOMERS = 70.0
"""Seconds to wait for more nodes once a run that goes on has enough: one that was killed is let in after a minute."""


def serve(grid: Grid, run_config: Mapping[str, Any], folder: Path) -> None:
    """Run the experiment that a run config names; an error is said in a sentence, and ends Flower's run as failed.

    Args:
        grid: Flower's.
        run_config: Flower's, with the keys that the app declares.
        folder: the app's, where experiments lie.
    """
    console = Console(width=WIDTH, force_terminal=False)
    conduct(run_config, folder, over(grid, console), console)


def conduct(run_config: Mapping[str, Any], folder: Path, reach: Reach, console: Console) -> None:
    """Do what `serve` does, wherever clients are."""
    try:
        with _opened(request_of(run_config, folder), run_config["out"]) as job:
            _run(job, reach, console)
    except (FedmateError, OSError) as error:
        text = _in_other_words(str(error))
        console.out(f"Error: {text}", highlight=False)
        raise type(error)(text) from None


def over(grid: Grid, console: Console) -> Reach:
    """Return what makes the nodes of a grid reachable; they are waited for at the start, those of a simulation all."""
    # The only sign of a simulation; there Flower loses messages once a worker has died.
    virtual = type(grid).__name__ == "InMemoryGrid"

    @contextmanager
    def reach(work: Work) -> Iterator[Transport]:
        # A run that goes on may have lost a site for good.
        enough = work.min_clients if work.done and not virtual else work.clients
        found = _wait(grid, work.clients, enough, START if virtual else work.patience, console)
        if virtual and found != work.clients:
            raise UserError(
                f"the simulation has {found} nodes, but the experiment has {work.clients} clients; set the number of "
                f"nodes to that: `flwr run . local --federation-config num-supernodes={work.clients}`."
            )
        alive: Callable[[], bool] | None = (lambda: True) if virtual else None
        yield GridTransport(grid, work.experiment, patience=work.patience, alive=alive)

    return reach


def _wait(grid: Grid, wanted: int, enough: int, patience: float, console: Console) -> int:
    """Wait until there are as many nodes as wanted, or patience has ended; return how many there are.

    Once there are `enough`, the others get `LATECOMERS` seconds at most.
    """
    deadline, told = time.monotonic() + patience, -1
    while True:
        with reached():
            found = len(list(grid.get_node_ids()))
        if found >= wanted or time.monotonic() > deadline:
            return found
        if found >= enough:
            deadline = min(deadline, time.monotonic() + LATECOMERS)
        if found != told:
            left = max(0.0, deadline - time.monotonic())
            console.out(f"{found} of {wanted} nodes are connected; waiting up to {left:.0f} s.", highlight=False)
            told = found
        time.sleep(PAUSE)


@contextmanager
def _opened(request: Request, out: str) -> Iterator[PreparedRun]:
    """Begin a record, or go on with the one in `out`."""
    folder = expand("out", out).absolute() if out else None
    opened: AbstractContextManager[list[PreparedRun]]
    opened = new_runs(request, folder) if folder is None or not folder.exists() else resumed_runs(request, folder)
    with opened as jobs:
        (job,) = jobs
        yield job._replace(folder=job.folder.absolute())


def _run(job: PreparedRun, reach: Reach, console: Console) -> None:
    console.out(f"Record: {job.folder}", highlight=False)
    for note in job.warnings:
        console.out(f"Note: {note}", highlight=False)
    if job.built is None:
        console.out("It is finished already: nothing to do.", highlight=False)
        return
    backend = job.built.backend
    assert isinstance(backend, Flower)
    backend.reach = reach
    try:
        run(job.built, job.folder, Lines(console))
    except (DivergedError, UserError):
        raise
    except (FedmateError, OSError):
        done, rounds = Checkpoint(job.folder).state.round, job.built.experiment.general.rounds
        console.out(
            f"{job.folder} is saved after round {done} of {rounds}; a run with it as `out` goes on from there.",
            highlight=False,
        )
        raise
    table = comparison([Record(job.folder).summary])
    console.print(table, highlight=False, width=max(console.width, console.measure(table).minimum), crop=False)


def _in_other_words(sentence: str) -> str:
    """Speak of the run config, where the command line has options."""
    advice = "`--resume` needs no other words, and a new run needs `--out`"
    sentence = sentence.replace(advice, "a new run needs another `out`")
    return sentence.replace("`--out`", "`out`").replace("`--resume`", "the same `out`")
