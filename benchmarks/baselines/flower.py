"""FedAvg in Flower's simulation: virtual clients on Ray's workers, one single-thread worker for each core.

Clients train with `plain_loop`, and keep network and data between rounds; the server is a loop over `send_and_receive`,
without evaluation. The simulation is started from Python (`run_simulation`), without the services that `flwr run`
starts around the same engine. Starting it is part of the first round only.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.baselines.plain_loop import PlainFedAvg, copy_into
from benchmarks.case import Case
from benchmarks.measure import Timing
from fedmate.backends.sequential import available_cores
from fedmate.errors import UserError
from fedmate.flower import QUIET

WARM_UP = 2
"""Rounds before those that count: in the first every worker loads torch."""

TIMEOUT = 300.0
"""Seconds to wait for a round."""

MARK = "FEDMATE_FLOWER"
"""The variable of the environment that marks the processes of a simulation, so that their use is counted."""


class Usage(NamedTuple):
    """The CPU seconds and the peak memory of all processes of a simulation."""

    seconds: float
    peak_bytes: int


class Clock:
    """Records how long rounds took, and the usage after each."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.used = [usage()]
        self._begin = time.perf_counter()

    def tick(self) -> None:
        """End a round, and begin the next."""
        self.walls.append(time.perf_counter() - self._begin)
        self.used.append(usage())
        self._begin = time.perf_counter()


@cache
def _loop(case: Case) -> PlainFedAvg:
    """Return the loop that a worker keeps between rounds."""
    torch.set_num_threads(1)
    return PlainFedAvg(case)


def train(case: Case, client: int, params: list[Tensor]) -> tuple[list[Tensor], int]:
    """Train one client from the server's parameters; return its own, and how many samples it holds."""
    loop = _loop(case)
    own = loop.network.parameters()
    copy_into(own, params)
    loop.train(loop.clients[client], loop.network, own)
    return [parameter.detach().clone() for parameter in own], len(loop.clients[client].y)


def average(replies: list[tuple[list[Tensor], int]]) -> list[Tensor]:
    """Return the mean of clients' parameters, weighted by their samples."""
    total = sum(size for _, size in replies)
    stacks = zip(*([leaf * (size / total) for leaf in leaves] for leaves, size in replies), strict=True)
    return [torch.stack(leaves).sum(0) for leaves in stacks]


def make_client_app(case: Case) -> Any:
    """Return the app that every virtual client runs."""
    from flwr.app import Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator, unused-ignore]
    def answer(message: Message, context: Context) -> Message:
        params = [torch.from_numpy(array.numpy()) for array in message.content["model"].values()]
        trained, size = train(case, int(context.node_config["partition-id"]), params)
        content = {"model": _record(trained), "size": MetricRecord({"samples": size})}
        return Message(RecordDict(content), reply_to=message)

    return app


def make_server_app(case: Case, rounds: int, clock: Clock) -> Any:
    """Return the app that runs rounds and times them."""
    from flwr.app import Context, Message, MessageType, RecordDict
    from flwr.serverapp import Grid, ServerApp

    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < case.clients:
            time.sleep(0.1)
        params = PlainFedAvg(case).server
        for number in range(rounds):
            content = RecordDict({"model": _record(params)})
            messages = [
                Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(number))
                for node in nodes
            ]
            replies = list(grid.send_and_receive(messages, timeout=TIMEOUT))
            # Flower itself goes on without clients that fail, and ends with status 0.
            if len(good := [reply for reply in replies if not reply.has_error()]) < case.clients:
                raise RuntimeError(f"{case.clients - len(good)} of {case.clients} clients failed")
            params = average([_read(reply) for reply in good])
            clock.tick()

    return app


def _read(reply: Any) -> tuple[list[Tensor], int]:
    arrays = [torch.from_numpy(array.numpy()) for array in reply.content["model"].values()]
    return arrays, int(reply.content["size"]["samples"])


def _record(params: list[Tensor]) -> Any:
    """Return parameters as a message carries them; the order of the names is theirs."""
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({f"{i:04d}": Array(leaf.numpy()) for i, leaf in enumerate(params)})


def measure(case: Case, repeat: int) -> Timing:
    """Run a simulation and time its rounds."""
    if not Path("/proc/self/environ").exists():
        raise UserError("Flower is measured on Linux only, where its processes can be found.")
    os.environ.update(QUIET)
    import ray
    from flwr.simulation import run_simulation

    settings = {
        "init_args": {"num_cpus": available_cores(), "include_dashboard": False, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    with marked():
        clock = Clock()
        try:
            server = make_server_app(case, WARM_UP + repeat, clock)
            run_simulation(server, make_client_app(case), case.clients, backend_config=settings)
        finally:
            ray.shutdown()
    if len(clock.walls) != WARM_UP + repeat:
        raise RuntimeError("the simulation ended early")
    cpu = [after.seconds - before.seconds for before, after in itertools.pairwise(clock.used)]
    walls_ms, cpu_ms = (tuple(1e3 * seconds for seconds in taken[WARM_UP:]) for taken in (clock.walls, cpu))
    return Timing("flower", clock.walls[0], walls_ms, cpu_ms, clock.used[-1].peak_bytes)


def usage() -> Usage:
    """Return the usage of this process and of those that the simulation has started, until now."""
    seconds, peak = 0.0, 0
    for process in (Path("/proc/self"), *with_mark()):
        with suppress(OSError, StopIteration):
            # Fields 14 and 15, counted behind the name, which may hold anything.
            fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            lines = (process / "status").read_text(errors="replace").splitlines()
            peak += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return Usage(seconds, peak)


@contextmanager
def marked() -> Iterator[None]:
    """Mark the processes that start from now on."""
    os.environ[MARK] = secrets.token_hex(8)
    try:
        yield
    finally:
        del os.environ[MARK]


def with_mark() -> Iterator[Path]:
    """Yield the folders below `/proc` of the other marked processes; there are none without `/proc`."""
    entry = f"{MARK}={os.environ[MARK]}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(folder.name) != os.getpid() and entry in (folder / "environ").read_bytes().split(b"\0"):
                yield folder
