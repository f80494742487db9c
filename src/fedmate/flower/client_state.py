"""Files that a client keeps between rounds, on its own disk.

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
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import final

from fedmate import storage
from fedmate.core import Tree
from fedmate.core.tree import DamagedError, fit_to, pack, unpack
from fedmate.errors import UserError
from fedmate.flower.messages import PublicError

VIRTUAL = "sites"
"""The folder inside a run's where virtual clients keep their states."""

STATE, MODEL, AUDIT = "state.safetensors", "model.safetensors", "audit.csv"

COLUMNS = ("when", "round", "part", "bytes")
"""Of the audit log."""


class AheadError(PublicError):
    """A client that is further than the server that asks it."""


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

    def lock(self) -> AbstractContextManager[object]:
        """Hold the client for this process, or raise `BusyError`."""
        return storage.lock(self.folder / "lock")

    def begin(self, round_number: int, initial: Tree) -> Tree:
        """Return the state that a round starts from: `initial`, or one of its form.

        Raises:
            AheadError: the client has taken part in a later round.
            UserError: the file is damaged or another client's.
        """
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
            raise AheadError(
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
