"""Runs the cells of a grid that are not finished, whoever else runs some of them at the same time.

Several processes, also of several machines that share a folder, divide the cells among themselves: each takes one that
is neither finished nor claimed. A cell that was interrupted goes on where its record stands, and one that fails is
named and left, which does not stop the others.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import signal
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

from fedmate.errors import UserError
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import ConfigSource
from fedmate.experiment.partitioning import split_samples
from fedmate.experiment.prepare import Request, new_runs, resumed_runs, run_all
from fedmate.experiment.record import Record
from fedmate.experiment.recorder import environment
from fedmate.experiment.run import Observer
from fedmate.experiment.user_inputs import UserInputs
from fedmate.storage import BusyError
from fedmate.studies.grid import Cell, no_view
from fedmate.studies.kept import FORMAT, command_of, condense
from fedmate.studies.measures import are_counted, arrays_of, check_measures, counted_of, have_arrays
from fedmate.studies.store import Store


class Watcher(ABC):
    """Hears what becomes of cells."""

    @abstractmethod
    def began(self, cell: str) -> Observer:
        """Called when a cell is taken; returns what hears its rounds."""

    @abstractmethod
    def ended(self, cell: str, seconds: float) -> None:
        """Called when it is finished and kept."""

    @abstractmethod
    def failed(self, cell: str, sentence: str) -> None:
        """Called when it could not be finished."""

    @abstractmethod
    def warned(self, sentence: str) -> None:
        """Called with a sentence the user should read."""


class Work(NamedTuple):
    """What is to be done.

    Attributes:
        cells: in this order, unless others have them.
        measures: the names in `measures.MEASURES` of what is taken from each run besides its figures.
        store: where finished ones go.
        given: where data sets lie.
    """

    cells: Sequence[Cell]
    measures: Sequence[str]
    store: Store
    given: UserInputs

    def names(self) -> set[str]:
        """Return what the runs are called; two cells may show one run."""
        return {cell.name for cell in self.cells}

    def left(self) -> list[Cell]:
        """Return the cells that are not finished, each run once."""
        once: dict[str, Cell] = {}
        for cell in self.cells:
            once.setdefault(cell.name, cell)
        return [cell for name, cell in once.items() if not self.is_finished(name)]

    def of_others(self) -> list[Cell]:
        """Return the cells that other processes are running."""
        return [cell for cell in self.left() if self.store.is_claimed(cell.name)]

    def outdated(self) -> list[str]:
        """Return the methods whose file was another one when their finished cells were run."""
        methods = set()
        for cell in self.cells:
            kept = self.store.find(cell.name)
            if kept is not None and kept.is_outdated:
                methods.add(cell.experiment.method.name)
        return sorted(methods)

    def is_finished(self, name: str) -> bool:
        """Tell whether a cell is kept with all that is asked of it."""
        return self.missing(name) == set()

    def missing(self, name: str) -> set[str] | None:
        """Return the measures that a cell is kept without; `None` if it is not kept."""
        kept = self.store.find(name)
        if kept is None:
            return None
        # A cell may have been copied without the arrays that it says were taken.
        lost = set() if self.store.has_arrays(name) else {one for one in self.measures if have_arrays([one])}
        return ({*self.measures} - {*kept.measures}) | lost

    def unknown_views(self, name: str) -> list[str]:
        """Say which rows ask for a view that their run, which is finished, does not have."""
        kept = self.store.find(name)
        if kept is None or kept.diverged_in is not None or not kept.views:
            return []
        rows = {cell.row.key: cell.row for cell in self.cells if cell.name == name}
        return [no_view(row, kept.views) for row in rows.values() if row.view not in kept.views]


def sweep(work: Work, watcher: Watcher) -> None:
    """Run what is not finished and not claimed by others, and then what these let go of meanwhile, unfinished."""
    passed = _sweep(work, work.left(), watcher)
    while free := [cell for cell in work._replace(cells=passed).left() if not work.store.is_claimed(cell.name)]:
        names = {cell.name for cell in free}
        passed = [cell for cell in passed if cell.name not in names] + _sweep(work, free, watcher)


def _sweep(work: Work, cells: Sequence[Cell], watcher: Watcher) -> list[Cell]:
    """Run these cells; return those that were passed by, for others had claimed them."""
    passed = []
    for cell in cells:
        try:
            claim = work.store.claim(cell.name)
        except BusyError:
            passed.append(cell)
            continue
        except UserError as error:
            watcher.failed(cell.label, str(error))
            continue
        with claim:
            # Somebody may have finished it in the meantime.
            if not work.is_finished(cell.name):
                _run(work, cell, watcher)
        if torch.cuda.is_available():
            # A captured round holds memory of the GPU until nobody can ask for it.
            gc.collect()
            torch.cuda.empty_cache()
    return passed


def sweep_in_processes(work: Work, watcher: Watcher, number: int) -> None:
    """Do the same in several processes, which divide the cells."""
    context = multiprocessing.get_context("spawn")
    processes, ends = list[multiprocessing.process.BaseProcess](), list[Connection]()
    for _ in range(min(number, len(work.cells))):
        receiver, sender = context.Pipe(duplex=False)
        processes.append(context.Process(target=_work, args=(work, sender)))
        ends.append(receiver)
        with _deaf():
            processes[-1].start()
        # What is left of it is the process's own: when that ends, so does the conversation.
        sender.close()
    try:
        _listen(ends, watcher)
    except KeyboardInterrupt:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join()
    for process in processes:
        if process.exitcode:
            watcher.warned(
                f"a process ended with status {process.exitcode}; the same command continues what it was at."
            )


@contextmanager
def _deaf() -> Iterator[None]:
    """Let what is started not hear Ctrl-C, which a terminal sends to everybody: it is told to end by us."""
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)


def _listen(ends: list[Connection], watcher: Watcher) -> None:
    """Pass on what processes say until all have ended."""
    while ends:
        for end in wait(ends):
            assert isinstance(end, Connection)
            try:
                _pass_on(end.recv_bytes(), watcher)
            except (EOFError, OSError):
                ends.remove(end)


def _run(work: Work, cell: Cell, watcher: Watcher) -> None:
    observer, start = watcher.began(cell.label), time.perf_counter()
    try:
        if not cell.trains:
            work.store.keep(cell.name, _dealt(cell, work.given))
        elif (missing := work.missing(cell.name)) is not None and are_counted(missing):
            work.store.keep(cell.name, _counted(work, cell))
        else:
            _train(work, cell, observer)
    except Exception as error:  # What is wrong with one cell is no reason to lose the night for the others.
        watcher.failed(cell.label, str(error) or type(error).__name__)
    else:
        watcher.ended(cell.label, time.perf_counter() - start)
        for sentence in work.unknown_views(cell.name):
            watcher.warned(sentence)


def _train(work: Work, cell: Cell, observer: Observer) -> None:
    """Run a cell, or go on with it, and keep what is asked of it."""
    # First, for what cannot be counted is better said before a night than after it.
    counted, folder = _counted(work, cell), work.store.run_folder(cell.name)
    begun = Request(inputs=work.given)
    anew = begun._replace(base=ConfigSource(cell.key, tomllib.loads(cell.experiment.to_toml())))
    with resumed_runs(begun, folder) if folder.exists() else new_runs(anew, folder) as jobs:
        if jobs[0].built is not None:
            check_measures(jobs[0].built, work.measures)
        for note in jobs[0].warnings:
            observer.warned(note)
        # A run that diverges is finished, too, and says so itself.
        run_all(jobs, lambda: observer)
    record = Record(folder)
    work.store.keep(cell.name, condense(record) | counted, arrays_of(record, work.measures))


def _counted(work: Work, cell: Cell) -> dict[str, Any]:
    """Return what is asked of a cell that its declaration tells, for a run that has all else."""
    counts = [name for name in work.measures if are_counted([name])]
    found: dict[str, Any] = {"measures": sorted(work.measures)}
    if not counts:
        return found
    # Nothing is computed there, so that any machine will do.
    built = build(cell.experiment.with_general(device="cpu", backend="sequential"), work.given)
    kept = work.store.find(cell.name)
    if kept is not None and kept.summary["partition_sha256"] != built.split.sha256:
        raise UserError(
            f"the cell `{cell.name}` was dealt from other samples than those at hand, so that {', '.join(counts)} of "
            "it cannot be counted here; use the data it was run with."
        )
    return found | counted_of(built, counts)


def _dealt(cell: Cell, given: UserInputs) -> Mapping[str, Any]:
    """Return what is kept of a cell that is not trained: who holds what."""
    config, dealt = tomllib.loads(cell.experiment.to_toml()), split_samples(cell.experiment, given)
    return {
        "format": FORMAT,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command_of(config, "partition"),
        "environment": environment(),
        "config": config,
        "summary": {"accuracy": {}, "partition_sha256": dealt.sha256},
        "holdings": dealt.class_counts().tolist(),
        "class_names": list(dealt.arrays.class_names),
        "data_sha256": dealt.data_sha256,
        "curve": [],
    }


class _Sender(Watcher):
    """Tells another process, as JSON."""

    def __init__(self, end: Connection) -> None:
        self._end = end

    def began(self, cell: str) -> Observer:
        self._send("began", cell)
        return _Orphan(self)

    def ended(self, cell: str, seconds: float) -> None:
        self._send("ended", cell, seconds)

    def failed(self, cell: str, sentence: str) -> None:
        self._send("failed", cell, sentence)

    def warned(self, sentence: str) -> None:
        self._send("said", sentence)

    def _send(self, *words: str | float) -> None:
        try:
            self._end.send_bytes(json.dumps(words).encode())
        except OSError:
            # Nobody is there any more to hear it, or to wait for what comes.
            raise KeyboardInterrupt from None


class _Orphan(Observer):
    """Ends a run whose parent was killed: nobody knows of it any more."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender

    def started(self, built: Built, done: int) -> None:
        pass

    def round_done(self, done: int, primary: float | None) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise KeyboardInterrupt

    def warned(self, sentence: str) -> None:
        self._sender.warned(sentence)


def _pass_on(event: bytes, watcher: Watcher) -> None:
    match json.loads(event):
        case ["began", cell]:
            watcher.began(cell)
        case ["ended", cell, seconds]:
            watcher.ended(cell, seconds)
        case ["failed", cell, sentence]:
            watcher.failed(cell, sentence)
        case ["said", sentence]:
            watcher.warned(sentence)


def _work(work: Work, end: Connection) -> None:
    """Be one of the processes: a request to end saves the cell at hand, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sweep(work, _Sender(end))
    except KeyboardInterrupt:
        return
