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
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, final

import torch

from fedmate.experiment.callback import Callback, RoundSummary
from fedmate.experiment.config import ConfigSource
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.prepare import Request, new_runs, resumed_runs
from fedmate.experiment.prepare import run_all as run_prepared
from fedmate.experiment.record import Record
from fedmate.storage import BusyError
from fedmate.studies.records import Records, source_digest, summarise
from fedmate.studies.study import StudyRun

PAUSE = 1.0
"""Seconds between two looks at runs of other processes."""


class Watcher(Callback, ABC):
    """Follows a study; as a callback, it follows the run that this process is at."""

    @abstractmethod
    def begun(self, run: str) -> None:
        """Called when a run is taken, by this process or one that it started."""

    @abstractmethod
    def ended(self, run: str, problem: str) -> None:
        """Called when a run is on record, or could not be finished because of a problem."""


class Work(NamedTuple):
    """The runs that are wanted, where finished ones go, and where data sets are."""

    runs: Sequence[StudyRun]
    records: Records
    inputs: UserInputs

    def left(self) -> list[StudyRun]:
        """Return the runs that are not finished, each once: two methods of a study may be the same run."""
        # The first of two counts.
        once, finished = {run.name: run for run in reversed(self.runs)}, self.records.all()
        return [run for run in self.runs if once[run.name] is run and run.name not in finished]

    def outdated(self) -> list[str]:
        """Return the methods whose file has changed since their runs were finished."""
        finished = self.records.all()
        found = [finished[run.name] for run in self.runs if run.name in finished]
        digests = {(one.config["method"]["name"], one.content.get("method_sha256")) for one in found}
        return sorted({name for name, digest in digests if digest not in (None, source_digest(name))})


def run_all(work: Work, watcher: Watcher, jobs: int = 1) -> None:
    """Run everything in some processes, and then what processes elsewhere have taken and do not finish."""
    tried = set[str]()
    if jobs > 1 and len(work.left()) > 1:
        _run_in_processes(work, watcher, min(jobs, len(work.left())), tried)
    while _run_free(work, watcher, tried):
        watcher.warned("waiting for runs of other processes")
        time.sleep(PAUSE)


def _run_free(work: Work, watcher: Watcher, tried: set[str]) -> bool:
    """Run what is neither tried nor taken by other processes; tell whether these have taken any."""
    is_taken = False
    for run in work.left():
        if run.label not in tried:
            try:
                _run(work, run, watcher)
                tried.add(run.label)
            except BusyError:
                is_taken = True
    return is_taken


def _run(work: Work, run: StudyRun, watcher: Watcher) -> None:
    """Run what no process has taken, and tell how it ended."""
    problem = ""
    try:
        with work.records.claim(run.name):
            # Another process may have finished it in the meantime.
            if work.records.find(run.name) is not None:
                return
            watcher.begun(run.label)
            _train(work, run, watcher)
    except BusyError:
        raise
    except Exception as error:  # A mistake in one method must not cost the other runs.
        problem = str(error) or type(error).__name__
    watcher.ended(run.label, problem)
    if torch.cuda.is_available():
        # A captured round holds memory of the GPU until it is collected.
        gc.collect()
        torch.cuda.empty_cache()


def _train(work: Work, run: StudyRun, watcher: Watcher) -> None:
    """Begin a run, or continue it, and put it on record."""
    folder, request = work.records.run_folder(run.name), Request(inputs=work.inputs)
    new = request._replace(base=ConfigSource(run.key, tomllib.loads(run.experiment.to_toml())))
    with resumed_runs(request, folder) if folder.exists() else new_runs(new, folder) as jobs:
        for note in jobs[0].warnings:
            watcher.warned(note)
        # A run that diverges is finished, too: its record tells.
        run_prepared(jobs, watcher)
    work.records.add([summarise(Record(folder))])


# -------------------- several processes


def _run_in_processes(work: Work, watcher: Watcher, jobs: int, tried: set[str]) -> None:
    """Run what is free in processes that report to this one; add what they tried."""
    context, processes, ends = multiprocessing.get_context("spawn"), [], list[Connection]()
    # Processes ignore Ctrl-C, which a terminal sends to all: this process ends them.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _ in range(jobs):
        receiver, sender = context.Pipe(duplex=False)
        processes.append(context.Process(target=_work, args=(work, sender)))
        ends.append(receiver)
        processes[-1].start()
        # The process alone holds the other end now: when it ends, so does the connection.
        sender.close()
    signal.signal(signal.SIGINT, before)
    try:
        while ends:
            for end in wait(ends):
                assert isinstance(end, Connection)
                try:
                    event, *words = json.loads(end.recv_bytes())
                except (EOFError, OSError):
                    ends.remove(end)
                    continue
                getattr(watcher, event)(*words)
                tried |= {words[0]} if event == "ended" else set()
    except KeyboardInterrupt:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join()


def _work(work: Work, end: Connection) -> None:
    """Be one of the processes; a request to end saves the current run, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run_free(work, _Sender(end), set())
    except KeyboardInterrupt:
        return


@final
class _Sender(Watcher):
    """Sends events to the process that shows them, and ends the run if that was killed."""

    def __init__(self, end: Connection) -> None:
        self._end = end

    def begun(self, run: str) -> None:
        self._send("begun", run)

    def ended(self, run: str, problem: str) -> None:
        self._send("ended", run, problem)

    def warned(self, message: str) -> None:
        self._send("warned", message)

    def round_ended(self, summary: RoundSummary) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise KeyboardInterrupt

    def _send(self, *event: str) -> None:
        try:
            self._end.send_bytes(json.dumps(event).encode())
        except OSError:
            raise KeyboardInterrupt from None
