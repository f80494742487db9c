"""A client in a process of its own: it answers requests, and keeps its state to itself, in files on its own disk.

EXPERIMENT/CLIENT/state.safetensors   the private states before and after the last round that it took part in
EXPERIMENT/CLIENT/model.safetensors   its own model as last evaluated, for `fedmate predict`
EXPERIMENT/CLIENT/audit.csv           the bytes that left the site: time, round, part, bytes
EXPERIMENT/CLIENT/lock                held by the process that trains

The two states are one file, which is replaced in one instant. A message that arrives twice, or again after the server
was killed, starts from the state before its round and gives the same answer. A server that went back further than one
round is refused.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from fedmate import storage
from fedmate.backends.base import Backend, one_thread
from fedmate.backends.client import train_client, view_client
from fedmate.backends.precision import arithmetic
from fedmate.core import ClientData, EvaluationData, Tree, flatten, fold, num_bytes, unmapped
from fedmate.core.tree import DamagedError, fit_to, pack, unpack
from fedmate.errors import UserError
from fedmate.flower.messages import Answer, Metrics, PublicError, Request, to_numbers
from fedmate.tasks.metrics import METRICS, site_figure

STATE, MODEL, AUDIT = "state.safetensors", "model.safetensors", "audit.csv"

COLUMNS = ("when", "round", "part", "bytes")
"""Of the audit log."""


def utc(seconds: float) -> str:
    """Write a time in UTC, as the audit log has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def make_private(state: Path) -> None:
    """Make a site's folder for its owner alone; an existing one stays as it is."""
    try:
        storage.make_folder(state, 0o700)
    except OSError as error:
        raise UserError(
            f"`state` is `{state}`, which cannot be made ({error.strerror}); name a folder that may be written to."
        ) from None


@final
class ClientState:
    """The folder of one client in one experiment, which has a token, inside a site's for all its states."""

    def __init__(self, folder: Path, experiment: str, client: int) -> None:
        if not {*experiment} <= {*"0123456789abcdef"} or len(experiment) < 8:
            raise ValueError(f"{experiment!r} is no token")
        self.folder = folder / experiment[:16] / str(client)
        self._identity = {"experiment": experiment, "partition": client}
        make_private(self.folder)

    def begin(self, round_number: int, initial: Tree) -> Tree:
        """Return the state that a round starts from: `initial`, or one of its form."""
        path = self.folder / STATE
        if not path.exists():
            return initial
        try:
            tensors, note = unpack(path.read_bytes())
            states = fit_to(tensors, {"before": initial, "after": initial})
            if {key: note.get(key) for key in self._identity} != self._identity:
                raise DamagedError("it is that of another client")
            last = int(note["round"])
        except (DamagedError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"`{path}` cannot be used ({error}); put it back from a copy.") from None
        if last > round_number:
            raise PublicError(
                f"client {self._identity['partition']} is asked for round {round_number + 1}, but has done round "
                f"{last + 1}: the server went back further than a site can"
            )
        state: Tree = states["before" if last == round_number else "after"]
        return state

    def save(self, round_number: int, before: Tree, after: Tree) -> None:
        """Save the states around a round; they are on the disk when this returns."""
        note = {**self._identity, "round": round_number}
        storage.replace(self.folder / STATE, pack({"before": before, "after": after}, note))

    def log(self, round_number: int, parts: Mapping[str, int]) -> None:
        """Write the bytes of each part that leaves the site to the audit log."""
        path, text = self.folder / AUDIT, io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        if not path.exists():
            rows.writerow(COLUMNS)
        elif not path.read_bytes().endswith(b"\n"):
            # A line that a kill has torn ends here.
            text.write("\n")
        rows.writerows([utc(time.time()), round_number + 1, part, size] for part, size in parts.items())
        storage.append(path, text.getvalue().encode())
        storage.flush(path)


@final
@dataclass(frozen=True)
class Client:
    """One client, ready to answer."""

    number: int
    backend: Backend  # of the experiment, as the server has it; the data of clients may be stand-ins there
    state: ClientState
    data: ClientData
    tests: EvaluationData  # what its models are tested on
    describe: Callable[[Tree, int], bytes] | None = None  # makes the file of its own model after so many rounds

    def answer(self, request: Request) -> Answer:
        """Do what is asked; a second process that tries the same meanwhile gets `BusyError`."""
        exact = arithmetic(self.backend.precision, self.backend.key.device)
        with storage.lock(self.state.folder / "lock"), torch.no_grad(), one_thread(), exact, unmapped():
            upload, metrics = self._view(request) if request.kind == "view" else self._train(request)
            parts = {part: num_bytes({part: content}) for part, content in upload.items()}
            # A number of the metrics has eight bytes.
            self.state.log(request.round, {**parts, "metrics": 8 * sum(map(len, metrics.values()))})
            return Answer(flatten(upload), metrics)

    def _train(self, request: Request) -> tuple[Tree, Metrics]:
        state, download, key = self._start(request, request.round)
        tests = self.tests if request.evaluate else None
        trained = train_client(self.backend.method, request.round, state, download, self.data, key, tests)
        # On the disk before anything leaves: a client never forgets what it has sent.
        self.state.save(request.round, state, trained.client)
        metrics: Metrics = {"losses": trained.loss.tolist(), "valid": [float(trained.valid)]}
        return trained.upload, metrics | self._report(trained.views)

    def _view(self, request: Request) -> tuple[Tree, Metrics]:
        """Evaluate the model that the client would have after the next broadcast; its state stays as it is."""
        state, download, key = self._start(request, request.round + 1)
        personal, views = view_client(self.backend.method, state, download, self.data, key, self.tests)
        if self.describe is not None:
            storage.replace(self.state.folder / MODEL, self.describe(personal, request.round + 1))
        return {}, self._report(views)

    def _report(self, views: Tree) -> Metrics:
        """Return what views are judged by, as the server of a simulation needs it; of a site its own figures alone."""
        task, reported = self.backend.method.setup.model.task, views
        if self.backend.federation.at_sites:
            reported = {
                name: {"local": {metric: site_figure(METRICS[metric], tests["local"]) for metric in task.metrics}}
                for name, tests in views.items()
            }
        return {name: to_numbers(tests) for name, tests in reported.items()}

    def _start(self, request: Request, round_number: int) -> tuple[Tree, Tree, Tensor]:
        """Return the client's state, the download and the randomness of a request, or raise `PublicError`."""
        method, key, clients = self.backend.method, self.backend.key, len(self.backend.federation.clients)
        params = method.setup.model.init_params()
        state = self.state.begin(round_number, method.init_client(params, fold(key, "client", self.number)))
        server = method.init_server(params, clients, fold(key, "server"))
        like = self.backend.download(server, round_number, torch.tensor(self.number, device=key.device))
        try:
            download = fit_to(dict(request.download), like)
        except DamagedError as error:
            number = request.round + 1
            raise PublicError(f"the download of round {number} is none of this experiment: {error}") from None
        return state, download, fold(key, "round", request.round, self.number)
