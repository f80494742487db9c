"""Measuring in a process of its own: it reads a request from standard input and prints the answer, both as JSON.

Memory is counted by process, and a case that crashes or takes too long ends nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeAlias

import torch

from benchmarks.baselines import BASELINES
from benchmarks.case import Case
from benchmarks.roofline import Roofline, measure_roofline
from benchmarks.runner import BackendRunner, Timing, time_rounds
from fedmate.errors import UserError

Json: TypeAlias = dict[str, Any]


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


def measure_case(case: Case, repeat: int, limit: float, roofline: Roofline | None) -> Json:
    """Return the row of a case: `case`, `timing` and `derived`, or an `error` in a few words."""
    answer = ask({"case": asdict(case), "repeat": repeat}, limit)
    row: Json = {"case": asdict(case), "timing": answer.get("timing"), "error": answer.get("error")}
    if row["timing"]:
        milliseconds = Timing(**row["timing"]).milliseconds
        floor = roofline.floor_ms(case) if roofline else None
        row["derived"] = {
            "ms_per_round": milliseconds,
            "samples_per_s": 1e3 * case.training_samples / milliseconds,
            "floor_ms": floor,
            "share_of_roofline": floor and floor / milliseconds,
        }
    return row


def find_roofline(device: str, limit: float) -> Roofline | None:
    """Measure the peaks of a device; `None` if that fails."""
    answer = ask({"roofline": device}, limit)
    return None if "error" in answer else Roofline(**answer)


def respond(request: Json) -> Json:
    """Measure a case, or the peaks of a device."""
    if "roofline" in request:
        return measure_roofline(torch.device(request["roofline"]))._asdict()
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


def main(lines: Iterable[str]) -> None:
    """Print the answer to a request on the last line."""
    print("\n" + json.dumps(respond(json.loads("".join(lines)))), flush=True)


if __name__ == "__main__":
    main(sys.stdin)
