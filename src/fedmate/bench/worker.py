"""A process of its own for cases: it reads tasks as lines of JSON, and answers with lines of JSON.

On a CPU each case has a fresh one, because memory is counted by process; a GPU's cases share one, because starting
takes long there. A case that crashes or takes too long takes its worker with it, and nothing else.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import asdict
from typing import Any, final

import torch

from fedmate.bench.case import Case
from fedmate.bench.measure import BackendRunner, measure
from fedmate.bench.rivals import RIVALS
from fedmate.bench.roofline import count_work, measure_roofline
from fedmate.errors import UserError

MARK = "fedmate-bench "
"""What lines of answers begin with: libraries print, too."""

Answer = dict[str, Any]


@final
class Worker:
    """The other end of a worker."""

    def __init__(self) -> None:
        """Start a process."""
        # A session of its own: what it may start can be ended with it, and Ctrl-C is ours to handle.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedmate.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, task: Answer, limit: float) -> Answer:
        """Return the answer to a task; one with an `error` if there is none within `limit` seconds."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            self.close()
            return {"error": f"took longer than {limit:g} s"}
        if line is not None:
            answer: Answer = json.loads(line)
            return answer
        return {"error": f"its process ended, {_describe(self._process.wait())}"}

    def close(self) -> None:
        """End it, with everything it has started."""
        if sys.platform == "win32":
            self._process.kill()
        else:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # Not for ever: what it started elsewhere may hold on to its output.
        self._listener.join(timeout=5)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._answers.put(line.removeprefix(MARK))
        self._answers.put(None)


def _describe(status: int) -> str:
    """Say how a process ended."""
    try:
        return f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def answer(task: Answer) -> Answer:
    """Do a task: measure a case, or the roofline."""
    try:
        if task["kind"] == "roofline":
            return {"roofline": measure_roofline(torch.device(task["device"]))._asdict()}
        case = Case(**task["case"])
        rival = RIVALS.get(case.runner)
        reason = rival.refusal(case) if rival else None
        if reason is not None:
            return {"error": reason}
        timing = rival.measure(case, task["repeat"]) if rival else measure(case, BackendRunner, task["repeat"])
        return {"timing": asdict(timing), "work": count_work(case)._asdict()}
    except Exception as error:
        # Whatever it is, the other cases go on.
        return {"error": explain(error), "detail": traceback.format_exc()}


def explain(error: Exception) -> str:
    """Say in a few words why a case failed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return "out of memory"
    first = str(error).strip().partition("\n")[0]
    return first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"


def main() -> None:
    """Answer tasks until there are no more."""
    for line in sys.stdin:
        # On a line of its own, whatever was printed before.
        sys.stdout.write(f"\n{MARK}{json.dumps(answer(json.loads(line)))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
