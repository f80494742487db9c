"""Runs what a study has not finished yet, together with other processes that share its folder.

Each process takes a run that is neither finished nor claimed. An interrupted run continues from its checkpoint, and one
that fails is reported and does not stop the others.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import signal
import time
import tomllib
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

import torch

from fedmate.errors import UserError
from fedmate.experiment.build import Built
from fedmate.experiment.config import ConfigSource
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.prepare import Request, new_runs, resumed_runs
from fedmate.experiment.prepare import run_all as run_prepared
from fedmate.experiment.record import Record
from fedmate.experiment.run import Observer
from fedmate.storage import BusyError
from fedmate.studies.records import Records, summarise
from fedmate.studies.study import StudyRun

PAUSE = 1.0
"""Seconds between two looks at runs of other processes."""


class Watcher:
    """Follows the runs of a study."""

    def started(self, run: str) -> Observer:
        """Called when a run is taken; returns what follows its rounds."""
        raise NotImplementedError

    def ended(self, run: str, seconds: float) -> None:
        """Called when it is finished and on record."""

    def failed(self, run: str, reason: str) -> None:
        """Called when it could not be finished."""

    def warned(self, sentence: str) -> None:
        """Called with a sentence the user should read."""


class Work(NamedTuple):
    """The runs that are wanted, where finished ones go, and where data sets are."""

    runs: Sequence[StudyRun]
    records: Records
    inputs: UserInputs

    def left(self) -> list[StudyRun]:
        """Return the runs that are not finished, each once: two methods of a study may be the same run."""
        once: dict[str, StudyRun] = {}
        for run in self.runs:
            once.setdefault(run.name, run)
        return [run for name, run in once.items() if not self.records.has(name)]

    def of_others(self) -> list[StudyRun]:
        """Return the runs that other processes are running."""
        return [run for run in self.left() if self.records.is_claimed(run.name)]

    def outdated(self) -> list[str]:
        """Return the methods whose file has changed since their runs were finished."""
        found = {run.name: (run, self.records.find(run.name)) for run in self.runs}.values()
        return sorted({run.experiment.method.name for run, one in found if one is not None and one.is_outdated})


def run_all(work: Work, watcher: Watcher) -> None:
    """Run what is neither finished nor claimed by others, and then what others left unfinished meanwhile."""
    tried = set[str]()
    while free := [run for run in work.left() if run.name not in tried and not work.records.is_claimed(run.name)]:
        for run in free:
            try:
                claim = work.records.claim(run.name)
            except BusyError:
                continue
            except UserError as error:
                tried.add(run.name)
                watcher.failed(run.label, str(error))
                continue
            tried.add(run.name)
            with claim:
                # Another process may have finished it in the meantime.
                if not work.records.has(run.name):
                    _run(work, run, watcher)
            if torch.cuda.is_available():
                # A captured round holds memory of the GPU until it is collected.
                gc.collect()
                torch.cuda.empty_cache()


def run_and_wait(work: Work, watcher: Watcher, jobs: int = 1) -> None:
    """Run everything in some processes, and wait for the runs that processes elsewhere have taken."""
    if jobs > 1 and len(work.left()) > 1:
        _run_in_processes(work, watcher, jobs)
    else:
        run_all(work, watcher)
    others = work.of_others()
    if others:
        watcher.warned(f"waiting for {len(others)} runs of other processes")
        while work.of_others():
            time.sleep(PAUSE)
        # A run that was stopped there is continued here.
        run_all(work._replace(runs=others), watcher)


def _run(work: Work, run: StudyRun, watcher: Watcher) -> None:
    observer, start = watcher.started(run.label), time.perf_counter()
    try:
        _train(work, run, observer)
    except Exception as error:  # A mistake in one method must not cost the other runs.
        watcher.failed(run.label, str(error) or type(error).__name__)
    else:
        watcher.ended(run.label, time.perf_counter() - start)


def _train(work: Work, run: StudyRun, observer: Observer) -> None:
    """Begin a run, or continue it, and put it on record."""
    folder, request = work.records.run_folder(run.name), Request(inputs=work.inputs)
    new = request._replace(base=ConfigSource(run.key, tomllib.loads(run.experiment.to_toml())))
    with resumed_runs(request, folder) if folder.exists() else new_runs(new, folder) as jobs:
        for note in jobs[0].warnings:
            observer.warned(note)
        # A run that diverges is finished, too: its record tells.
        run_prepared(jobs, observer)
    work.records.add([summarise(Record(folder))])


# -------------------- several processes


def _run_in_processes(work: Work, watcher: Watcher, jobs: int) -> None:
    context = multiprocessing.get_context("spawn")
    processes, ends = list[multiprocessing.process.BaseProcess](), list[Connection]()
    number = min(jobs, len(work.left()))
    # Processes ignore Ctrl-C, which a terminal sends to all: this process ends them.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _ in range(number):
        receiver, sender = context.Pipe(duplex=False)
        processes.append(context.Process(target=_work, args=(work, sender)))
        ends.append(receiver)
        processes[-1].start()
        # The process alone holds the other end now: when it ends, so does the connection.
        sender.close()
    signal.signal(signal.SIGINT, before)
    try:
        _pass_on(ends, watcher)
    except KeyboardInterrupt:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join()
    for process in processes:
        if process.exitcode:
            watcher.warned(f"a process ended with status {process.exitcode}; the same command continues its run.")


def _pass_on(ends: list[Connection], watcher: Watcher) -> None:
    """Report the events of other processes until all have ended."""
    while ends:
        for end in wait(ends):
            assert isinstance(end, Connection)
            try:
                event, *words = json.loads(end.recv_bytes())
            except (EOFError, OSError):
                ends.remove(end)
                continue
            getattr(watcher, event)(*words)


def _work(work: Work, end: Connection) -> None:
    """Be one of the processes; a request to end saves the current run, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run_all(work, _Sender(end))
    except KeyboardInterrupt:
        return


class _Sender(Watcher):
    """Sends events to the process that shows them."""

    def __init__(self, end: Connection) -> None:
        self._end = end

    def started(self, run: str) -> Observer:
        self._send("started", run)
        return _OrphanCheck(self)

    def ended(self, run: str, seconds: float) -> None:
        self._send("ended", run, seconds)

    def failed(self, run: str, reason: str) -> None:
        self._send("failed", run, reason)

    def warned(self, sentence: str) -> None:
        self._send("warned", sentence)

    def _send(self, *event: str | float) -> None:
        try:
            self._end.send_bytes(json.dumps(event).encode())
        except OSError:
            # The parent process is gone, and with it everyone who waits for this run.
            raise KeyboardInterrupt from None


class _OrphanCheck(Observer):
    """Ends a run whose parent process was killed."""

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
