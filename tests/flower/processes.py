"""Find the processes that a test has started, at first or second hand, by a mark in their environment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = "FEDMATE_TEST"


def with_mark(mark: str, command: str = "") -> list[int]:
    """Return the numbers of the other processes with a mark, and with a word in their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at; those of others cannot be read.
        with suppress(OSError):
            ours = f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0")
            if ours and int(place.name) != os.getpid() and command.encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


def wait_for(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.1) -> None:
    """Wait until something holds, or raise `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}, not in {seconds:g} s")
        time.sleep(pause)
