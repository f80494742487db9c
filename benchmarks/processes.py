"""The processes that a simulation starts: a mark in their environment identifies them, so that their use is counted."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "FEDMATE_FLOWER"
"""The variable of the environment that marks them."""


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
