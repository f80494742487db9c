"""Timing rounds: some to warm up, then some that count."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import torch

from fedmate.backends import BACKENDS
from fedmate.backends.base import Round
from fedmate.bench.case import AUTO, Case, make_federation, make_method, make_randomness
from fedmate.core import Federation, Method
from fedmate.errors import UserError

WARM_UP = 3
"""Rounds before those that count: the first compiles, the second is captured, the third replayed."""

ENOUGH = 60.0
"""Seconds after which no further round is spent on warming up a CPU, which captures nothing."""

FEWEST, LONGEST = 3, 30.0
"""Of the rounds that were asked for, so many are run at least; no more once they have taken so many seconds."""


class Runner(ABC):
    """Runs the rounds of a case, one after the other.

    Attributes:
        name: who that is, where the case left it open.
    """

    name: str

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known about how it ran."""
        return ()

    @abstractmethod
    def run_round(self, number: int) -> None:
        """Run round `number`; it may still be under way on the device when this returns."""

    def wait(self) -> None:  # noqa: B027 - there is nothing to wait for unless a device works on its own
        """Return when everything that was asked for is done."""

    def peak_bytes(self) -> int | None:
        """Return the most memory that was held at once, or `None` where that is not known."""
        return peak_resident()


@final
@dataclass(frozen=True)
class Timing:
    """What was measured of a case.

    Attributes:
        ran_by: the back end or the rival.
        cold_s: seconds to make ready and to run the first round, with everything that is compiled or captured then.
        cold_cpu_s: seconds of processors' time that this took, over all threads.
        rounds_ms: milliseconds of each round that counts.
        cpu_ms: milliseconds of processors' time of each, over all threads.
        peak_bytes: the most memory that was held at once: on a GPU by tensors, on a CPU by the process.
        base_bytes: what of it the process held before the case.
        notes: what should be known about how it ran.
    """

    ran_by: str
    cold_s: float
    cold_cpu_s: float
    rounds_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    peak_bytes: int | None
    base_bytes: int | None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return what `asdict` made this of, also by way of JSON."""
        return cls(**values | {name: tuple(values[name]) for name in ("rounds_ms", "cpu_ms", "notes")})

    @property
    def milliseconds(self) -> float:
        """The median."""
        return statistics.median(self.rounds_ms)

    @property
    def cpu_milliseconds(self) -> float:
        """The median."""
        return statistics.median(self.cpu_ms)

    @property
    def spread(self) -> float:
        """How far the slowest round lies from the quickest, as a share of the median."""
        return (max(self.rounds_ms) - min(self.rounds_ms)) / self.milliseconds


@final
class BackendRunner(Runner):
    """Our own: a back end with all clients in each round, not evaluated."""

    def __init__(self, case: Case) -> None:
        """Make the federation, the method and the back end."""
        method, federation = make_method(case), make_federation(case)
        self.name = case.runner if case.runner != AUTO else _decide(method, federation)
        backend, key = BACKENDS[self.name], make_randomness(case)
        reason = backend.refusal(method, federation, case.precision)
        if reason is not None:
            raise UserError(f"`{self.name}` cannot run `{case.network}`: {reason}.")
        self._backend = backend(method, federation, key, precision=case.precision)
        self._server = method.init_server(method.setup.model.init_params(), case.clients, key)
        self._everyone = tuple(range(case.clients))
        self._device = torch.device(case.device)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the back end has to say."""
        return tuple(self._backend.notes)

    def run_round(self, number: int) -> None:
        """Run a round."""
        task = Round(number, self._everyone, evaluate=False)
        self._server = self._backend.run_round(self._server, task).server

    def wait(self) -> None:
        """Wait for the GPU."""
        wait_for(self._device)

    def peak_bytes(self) -> int | None:
        """Return what tensors took on a GPU, what the process took on a CPU."""
        return peak_of(self._device)


def _decide(method: Method, federation: Federation) -> str:
    """Choose a back end as an experiment does."""
    # Only here: it needs the whole package, which takes longer to load than a case to run.
    from fedmate.experiment.build import decide_backend

    return decide_backend(AUTO, method, federation)


def measure(case: Case, make: Callable[[Case], Runner], repeat: int) -> Timing:
    """Run a case: warm up, then time `repeat` rounds.

    Args:
        case: what to run.
        make: gives who runs it.
        repeat: how many rounds count; fewer if they take long.
    """
    device = torch.device(case.device)
    if device.type == "cuda":
        free(device)
    base, start, start_busy = peak_of(device), time.perf_counter(), time.process_time()
    runner = make(case)
    runner.run_round(0)
    runner.wait()
    cold, cold_busy = time.perf_counter() - start, time.process_time() - start_busy
    number = 1
    while number < WARM_UP and (device.type == "cuda" or time.perf_counter() - start < ENOUGH):
        runner.run_round(number)
        number += 1
    runner.wait()
    rounds: list[float] = []
    processors: list[float] = []
    while len(rounds) < repeat and (len(rounds) < FEWEST or sum(rounds) < 1e3 * LONGEST):
        started, busy = time.perf_counter(), time.process_time()
        runner.run_round(number + len(rounds))
        runner.wait()
        rounds.append(1e3 * (time.perf_counter() - started))
        processors.append(1e3 * (time.process_time() - busy))
    peak = runner.peak_bytes()
    return Timing(runner.name, cold, cold_busy, tuple(rounds), tuple(processors), peak, base, runner.notes)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done everything it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Give back what an earlier case left on a GPU, and count its memory from here."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def peak_of(device: torch.device) -> int | None:
    """Return the most memory that tensors took on a GPU, or the process on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_resident()


def peak_resident() -> int | None:
    """Return the most memory that this process held at once, in bytes, or `None` where the system does not tell."""
    if sys.platform == "linux":
        # What `getrusage` says here includes what the parent held when it started this process.
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
