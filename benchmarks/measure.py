"""Timing rounds: some to warm up, then some that count.

Each case is measured in a process of its own, which reads a request from standard input and prints the answer, both as
JSON: memory is counted by process, and a case that crashes or takes too long ends nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import torch

from benchmarks.baselines import BASELINES
from benchmarks.case import AUTO, Case, make_federation, make_method, make_randomness
from fedmate.backends import BACKENDS
from fedmate.backends.base import Round
from fedmate.errors import UserError
from fedmate.experiment.build import decide_backend

Json: TypeAlias = dict[str, Any]

WARM_UP = 3
"""Rounds before those that count: the first compiles, the second is captured, the third replayed."""

ENOUGH = 60.0
"""Seconds after which a CPU, which captures nothing, stops warming up."""

FEWEST, LONGEST = 3, 30.0
"""At least this many of the rounds asked for are timed; no more once they have taken this many seconds."""


class Runner(ABC):
    """Runs the rounds of a case, one after the other.

    Attributes:
        name: the back end or the baseline.
        notes: what a reader of the timing should know.
    """

    name: str
    notes: tuple[str, ...] = ()

    def __init__(self, case: Case) -> None:
        self.case, self.device = case, torch.device(case.device)

    @abstractmethod
    def run_round(self, number: int) -> None:
        """Run a round; the device may still be at work when this returns."""

    def wait(self) -> None:
        """Wait for the device."""
        wait_for(self.device)

    def peak_bytes(self) -> int | None:
        """Return the peak memory: of tensors on a GPU, of the process on a CPU; `None` if unknown."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else peak_resident()


@final
@dataclass(frozen=True)
class Timing:
    """How long a case took.

    Attributes:
        ran_by: the back end or the baseline.
        cold_s: seconds to set up and run the first round, with everything that is compiled or captured then.
        rounds_ms: milliseconds of each round that counts.
        cpu_ms: CPU milliseconds of each, over all threads.
        peak_bytes: peak memory: of tensors on a GPU, of the process on a CPU.
        notes: what a reader of the timing should know.
    """

    ran_by: str
    cold_s: float
    rounds_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    peak_bytes: int | None
    notes: tuple[str, ...] = ()

    @property
    def milliseconds(self) -> float:
        """The median."""
        return statistics.median(self.rounds_ms)


@final
class BackendRunner(Runner):
    """A back end of fedmate with all clients in each round, not evaluated."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        method, federation, key = make_method(case), make_federation(case), make_randomness(case)
        self.name = decide_backend(method, federation) if case.runner == AUTO else case.runner
        backend = BACKENDS[self.name]
        reason = backend.refusal(method, federation, case.precision)
        if reason is not None:
            raise UserError(f"`{self.name}` cannot run `{case.network}`: {reason}.")
        self._backend = backend(method, federation, key, precision=case.precision)
        self._server = method.init_server(method.setup.model.init_params(), case.clients, key)

    def run_round(self, number: int) -> None:
        """Run a round."""
        task = Round(number, tuple(range(self.case.clients)), evaluate=False)
        self._server = self._backend.run_round(self._server, task).server
        self.notes = tuple(self._backend.warnings)


def time_rounds(case: Case, make: Callable[[Case], Runner], repeat: int) -> Timing:
    """Warm up, then time `repeat` rounds, fewer if they take long."""
    start = time.perf_counter()
    runner = make(case)
    runner.run_round(0)
    runner.wait()
    cold, number = time.perf_counter() - start, 1
    while number < WARM_UP and (case.device != "cpu" or time.perf_counter() - start < ENOUGH):
        runner.run_round(number)
        number += 1
    runner.wait()
    walls: list[float] = []
    cpus: list[float] = []
    while len(walls) < repeat and (len(walls) < FEWEST or sum(walls) < 1e3 * LONGEST):
        wall, cpu = time.perf_counter(), time.process_time()
        runner.run_round(number + len(walls))
        runner.wait()
        walls.append(1e3 * (time.perf_counter() - wall))
        cpus.append(1e3 * (time.process_time() - cpu))
    return Timing(runner.name, cold, tuple(walls), tuple(cpus), runner.peak_bytes(), runner.notes)


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_resident() -> int | None:
    """Return the peak memory of this process in bytes, or `None` where the system does not report it."""
    if sys.platform == "linux":
        # The `ru_maxrss` of a child process includes memory of its parent.
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def ask(request: Json, limit: float) -> Json:
    """Answer a request in a process of its own; the answer has an `error` if that fails or takes `limit` seconds."""
    command, pipe = [sys.executable, "-m", "benchmarks.measure"], subprocess.PIPE
    # A session of its own, so that the processes it starts can be ended with it.
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        try:
            printed, _ = process.communicate(json.dumps(request), timeout=limit)
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {limit:g} s"}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        return {"error": f"its process ended with status {process.returncode}"}
    # Libraries print, too; the answer is the last line.
    answer: Json = json.loads(printed.splitlines()[-1])
    return answer


def measure_case(case: Case, repeat: int, limit: float) -> Json:
    """Return the row of a case: `case`, `timing` and `derived`, or an `error` in a few words."""
    answer = ask({"case": asdict(case), "repeat": repeat}, limit)
    row: Json = {"case": asdict(case), "timing": answer.get("timing"), "error": answer.get("error")}
    if row["timing"]:
        milliseconds = Timing(**row["timing"]).milliseconds
        row["derived"] = {
            "ms_per_round": milliseconds,
            "samples_per_s": 1e3 * case.training_samples / milliseconds,
        }
    return row


def respond(request: Json) -> Json:
    """Measure a case."""
    try:
        case, repeat = Case(**request["case"]), request["repeat"]
        if case.runner not in BASELINES:
            return {"timing": asdict(time_rounds(case, BackendRunner, repeat))}
        return {"timing": asdict(BASELINES[case.runner].measure(case, repeat))}
    except Exception as error:
        return {"error": explain(error)}


def explain(error: Exception) -> str:
    """Return in a few words why a case failed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return "out of memory"
    first = str(error).strip().partition("\n")[0].rstrip(".")
    return first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"


if __name__ == "__main__":
    argparse.ArgumentParser(description="Time the case that standard input describes as JSON.").parse_args()
    # On a line of its own, the last.
    print("\n" + json.dumps(respond(json.load(sys.stdin))), flush=True)
