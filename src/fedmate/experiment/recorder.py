"""Writes records; `record` says what is in one and reads it."""

from __future__ import annotations

import csv
import errno
import io
import json
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from safetensors.torch import save
from torch import Tensor

from fedmate import __version__, storage
from fedmate.errors import UserError
from fedmate.experiment.record import Record

GROWING = ("rounds.csv", "metrics.jsonl")
"""The files that grow from round to round."""


@final
class Recorder:
    """A run folder being written.

    Args:
        folder: of a run that `begin` began.
    """

    def __init__(self, folder: Path) -> None:
        """Go on writing into a folder."""
        self.folder = folder

    @staticmethod
    def begin(folder: Path, config: str) -> None:
        """Say what is about to run."""
        folder.mkdir(exist_ok=True)
        storage.write(folder / "config.toml", config.encode())
        storage.write(folder / "environment.json", _to_json(environment()))

    def add_round(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append the participants of a round to `rounds.csv`."""
        path = self.folder / "rounds.csv"
        storage.append(path, _to_csv(rows, header=not self._size("rounds.csv")))

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Append an evaluated round to `metrics.jsonl`."""
        storage.append(self.folder / "metrics.jsonl", json.dumps(row, allow_nan=False).encode() + b"\n")

    def add_diagnostics(self, round_number: int, tensors: Mapping[str, Tensor]) -> None:
        """Store what a method recorded in an evaluated round, if anything."""
        if tensors:
            folder = self.folder / "diagnostics"
            folder.mkdir(exist_ok=True)
            stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            storage.write(folder / f"round_{round_number:06d}.safetensors", save(stored))

    def finish(self, summary: Mapping[str, Any], clients: Iterable[Mapping[str, Any]]) -> None:
        """Write what is known at the end; the summary comes last."""
        storage.replace(self.folder / "clients.csv", _to_csv(clients, header=True))
        storage.replace(self.folder / "summary.json", _to_json(summary))

    def flush(self) -> None:
        """Bring the growing files to the disk."""
        for name in GROWING:
            if self._size(name):
                storage.flush(self.folder / name)
        diagnostics = self.folder / "diagnostics"
        for folder in (self.folder, diagnostics) if diagnostics.exists() else (self.folder,):
            storage.sync_folder(folder)

    def sizes(self) -> dict[str, int]:
        """Return how long the growing files are, in bytes."""
        return {name: self._size(name) for name in GROWING}

    def rewind(self, round_number: int, sizes: Mapping[str, int]) -> None:
        """Go back to where the growing files had these sizes: drop torn lines and what came after a round."""
        found = {name: self._size(name) for name in GROWING}
        for name in GROWING:
            if found[name] < sizes.get(name, 0):
                raise UserError(
                    f"`{self.folder / name}` is damaged: {found[name]} bytes, but {sizes[name]} had been written when "
                    "the checkpoint was made; put it back from a copy, or start a new run with `--out`."
                )
        for name in GROWING:
            if found[name] > sizes.get(name, 0):
                storage.truncate(self.folder / name, sizes.get(name, 0))
        for path in (self.folder / "diagnostics").glob("*"):
            number = re.fullmatch(r"round_(\d+)\.safetensors", path.name)
            if number and int(number[1]) > round_number:
                storage.remove(path)

    def note_environment(self, round_number: int) -> list[str]:
        """Add what has changed in the environment since the run began, if anything, and return the names."""
        written, now = Record(self.folder).environment, environment()
        last = dict(written)
        for entry in written.get("resumed", []):
            last |= entry
        changed = {key: value for key, value in now.items() if last.get(key) != value}
        if changed:
            entry = {"round": round_number, **changed}
            written["resumed"] = [*written.get("resumed", []), entry]
            storage.replace(self.folder / "environment.json", _to_json(written))
        return sorted(changed)

    def _size(self, name: str) -> int:
        try:
            return (self.folder / name).stat().st_size
        except FileNotFoundError:
            return 0


def check_free(folder: Path) -> None:
    """Raise `UserError` if something is at `folder` already."""
    try:
        taken = folder.exists() or folder.is_symlink()
        nearest = next(parent for parent in folder.absolute().parents if parent.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is not a directory")
    except OSError as error:
        raise unusable(folder, error) from None
    if taken:
        raise UserError(f"`--out` is `{folder}`, which exists already; name a folder that does not.")


def unusable(folder: Path, error: OSError) -> UserError:
    """Return what to say when a folder cannot be made."""
    return UserError(f"`--out` is `{folder}`, which cannot be created ({error.strerror}); name another folder.")


def environment() -> dict[str, Any]:
    """Return what the result may depend on besides the experiment."""
    import numpy
    import sklearn
    import torch

    return {
        "fedmate": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scikit-learn": sklearn.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "machine": platform.machine(),
        "system": platform.system(),
    }


def _commit() -> str | None:
    """Return the commit this package was run from, or `None` if it does not lie in a checkout of its own."""
    here = Path(__file__).resolve()
    try:
        # An installed copy may lie inside somebody else's repository, which does not track this file.
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", here.name], cwd=here.parent, check=True, capture_output=True
        )
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here.parent,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip()


def _to_json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, indent=2, allow_nan=False).encode() + b"\n"


def _to_csv(rows: Iterable[Mapping[str, Any]], *, header: bool) -> bytes:
    rows = list(rows)
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()
