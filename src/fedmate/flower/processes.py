"""The processes that a simulation starts: they carry a mark in their environment, so that none is left behind."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "FEDMATE_FLOWER"
"""The variable of the environment that marks them."""

WORKER = b"ray::ClientAppActor"
"""How the command line of a process begins in which clients run. If Ray loses others, it ends this process, too."""


@contextmanager
def marked() -> Iterator[str]:
    """Mark what is started from now on; it finds the modules that this process finds."""
    changed = {MARK: secrets.token_hex(8), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield changed[MARK]
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def with_mark(mark: str) -> Iterator[Path]:
    """Yield the folders below `/proc` of the other processes with a mark; nothing where there is no `/proc`."""
    entry = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(folder.name) != os.getpid() and entry in (folder / "environ").read_bytes().split(b"\0"):
                yield folder


def end_workers(mark: str) -> None:
    """End the processes in which clients run, whatever they are doing."""
    for folder in with_mark(mark):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(WORKER):
                os.kill(int(folder.name), signal.SIGKILL)


def end_all(mark: str, patience: float) -> None:
    """Wait until no process with a mark is left, and end those that stay."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(with_mark(mark)):
        time.sleep(0.1)
    for folder in with_mark(mark):
        with suppress(ProcessLookupError):
            os.kill(int(folder.name), signal.SIGKILL)
