"""What a site keeps between rounds, on its own disk: the private state of its client.

EXPERIMENT/PARTITION/state.safetensors   the states before and after the last round that this client took part in
EXPERIMENT/PARTITION/model.safetensors   its own model as it was last evaluated, for `fedmate predict`
EXPERIMENT/PARTITION/audit.csv           what left the site: when, in which round, which part, how many bytes
EXPERIMENT/PARTITION/lock                held by the process that trains

The two states are one file, replaced in one instant. A message that arrives twice, or again after the server was
killed, starts from the state before its round and gives the same answer; only a server that went back further than one
round is refused.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import final

from fedmate import storage
from fedmate.core import Tree
from fedmate.core.serialise import DamagedError, fit_to, pack, unpack
from fedmate.errors import UserError
from fedmate.flower.messages import PublicError

SITES = "sites"
"""The folder inside a run's where virtual clients keep their states."""

AUDIT = ("when", "round", "part", "bytes")
"""The columns of the audit log."""


PRIVATE = 0o700
"""The mode of a folder that nobody else may look into."""


def make_private(state: Path) -> None:
    """Make the folder in which a site keeps everything, for its owner alone; one that is there stays as it is."""
    try:
        storage.make_folder(state, PRIVATE)
    except OSError as error:
        raise UserError(f"`state` cannot be made ({error.strerror}); name a folder that may be written to.") from None


class AheadError(PublicError):
    """A site that has gone on further than the server that asks."""


@final
class ClientState:
    """The folder of one client in one experiment.

    Args:
        folder: where a site keeps everything.
        experiment: what tells the experiment from others.
        partition: the client's number.
    """

    def __init__(self, folder: Path, experiment: str, partition: int) -> None:
        """Make the folder if it is missing."""
        if not re.fullmatch(r"[0-9a-f]{8,64}", experiment):
            raise ValueError(f"{experiment!r} is no digest")
        self.folder = folder / experiment[:16] / str(partition)
        self._identity = {"experiment": experiment, "partition": partition}
        try:
            storage.make_folder(self.folder)
        except OSError as error:
            raise UserError(
                f"`{self.folder}` cannot be made ({error.strerror}); give the site a folder it may write to."
            ) from None

    def claim(self) -> storage.Lock:
        """Hold the client for this process, or raise `BusyError`."""
        return storage.Lock(self.folder / "lock")

    def begin(self, round_number: int, initial: Tree) -> Tree:
        """Return the state that a round starts from.

        Args:
            round_number: which one the server asks for.
            initial: the client's state before its first round, which is also the pattern of the others.

        Raises:
            AheadError: the client has taken part in a later round.
            UserError: what was kept is damaged or another experiment's.
        """
        path = self.folder / "state.safetensors"
        if not path.exists():
            return initial
        try:
            tensors, note = unpack(path.read_bytes())
            kept = fit_to(tensors, {"before": initial, "after": initial})
            if {key: note.get(key) for key in self._identity} != self._identity:
                raise DamagedError("it is that of another client")
            last = int(note["round"])
        except (DamagedError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"`{path}` cannot be used ({error}); put it back from a copy.") from None
        except OSError as error:
            raise UserError(f"`{path}` cannot be read ({error.strerror}); give the site the right to.") from None
        if last > round_number:
            raise AheadError(
                f"client {self._identity['partition']} is asked for round {round_number + 1}, but has done round "
                f"{last + 1}: the server went back further than a site can"
            )
        state: Tree = kept["before" if last == round_number else "after"]
        return state

    def keep(self, round_number: int, before: Tree, after: Tree) -> None:
        """Keep the states around a round; they are on the disk when this returns."""
        note = {**self._identity, "round": round_number}
        storage.replace(self.folder / "state.safetensors", pack({"before": before, "after": after}, note))

    def keep_model(self, content: bytes) -> None:
        """Keep the client's own model, in the place of an earlier one."""
        storage.replace(self.folder / "model.safetensors", content)

    def log(self, when: str, round_number: int, parts: Mapping[str, int]) -> None:
        """Write down what leaves the site: bytes by part."""
        path, text = self.folder / "audit.csv", io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        if not path.exists():
            rows.writerow(AUDIT)
        elif not path.read_bytes().endswith(b"\n"):
            # A line that a kill has torn ends here.
            text.write("\n")
        for part, size in parts.items():
            rows.writerow([when, round_number + 1, part, size])
        storage.append(path, text.getvalue().encode())
        storage.flush(path)
