"""Writes records; `record` says what is in one and reads it."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import platform
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors.torch import save
from torch import Tensor

from fedmate import __version__, storage
from fedmate.errors import UserError
from fedmate.experiment.record import Record, runs_of

GROWING = ("rounds.csv", "metrics.jsonl")
"""The files that grow from round to round."""

NOTHING = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}
"""What a growing file holds before the first round."""


class _Written(NamedTuple):
    """What a growing file holds: how many bytes, and a digest that goes on with it."""

    size: int
    digest: hashlib._Hash


@final
class Recorder:
    """A run folder being written.

    Args:
        folder: of a run that `begin` began.
    """

    def __init__(self, folder: Path) -> None:
        """Go on writing into a folder; `rewind` says from where."""
        self.folder = folder
        self._written = {name: _Written(0, hashlib.sha256()) for name in GROWING}

    @staticmethod
    def begin(folder: Path, config: str, partition: str) -> None:
        """Say what is about to run, and on which samples."""
        folder.mkdir(exist_ok=True)
        storage.write(folder / "config.toml", config.encode())
        storage.write(folder / "partition.json", partition.encode())
        storage.write(folder / "environment.json", _to_json(environment()))

    def add_round(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append the participants of a round to `rounds.csv`."""
        self._append("rounds.csv", _to_csv(rows, header=not self._written["rounds.csv"].size))

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Append an evaluated round to `metrics.jsonl`."""
        self._append("metrics.jsonl", json.dumps(row, allow_nan=False).encode() + b"\n")

    def add_diagnostics(self, round_number: int, tensors: Mapping[str, Tensor]) -> None:
        """Store what a method recorded in an evaluated round, if anything."""
        if tensors:
            folder = self.folder / "diagnostics"
            folder.mkdir(exist_ok=True)
            stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            storage.write(folder / f"round_{round_number:06d}.safetensors", save(stored))

    def finish(self, summary: Mapping[str, Any], clients: Iterable[Mapping[str, Any]]) -> None:
        """Write what is known at the end; the summary comes last."""
        path, content = self.folder / "clients.csv", _to_csv(clients, header=True)
        # After a kill between the two it is there already, and the same; another one is somebody else's.
        if path.exists() and (not path.is_file() or path.read_bytes() != content):
            raise UserError(f"`{path}` is in the way, and is not this run's; move it, then resume the run.")
        storage.replace(path, content)
        storage.replace(self.folder / "summary.json", _to_json(summary))

    def flush(self) -> None:
        """Bring the growing files to the disk."""
        for name in GROWING:
            if self._written[name].size:
                storage.flush(self.folder / name)
        diagnostics = self.folder / "diagnostics"
        for folder in (self.folder, diagnostics) if diagnostics.exists() else (self.folder,):
            storage.sync_folder(folder)

    def files(self) -> dict[str, dict[str, Any]]:
        """Return how long the growing files are, in bytes, and a digest of what was written into each."""
        return {name: {"bytes": w.size, "sha256": w.digest.hexdigest()} for name, w in self._written.items()}

    def rewind(self, round_number: int, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Go back to where the growing files were like this: drop torn lines and what came after a round."""
        diagnostics = self.folder / "diagnostics"
        if diagnostics.exists() and not diagnostics.is_dir():
            raise UserError(f"`{diagnostics}` is in the way, it has to be a folder; move it, then continue.")
        self._written = {name: self._check(name, files.get(name, NOTHING)) for name in GROWING}
        for name, written in self._written.items():
            if self._size(name) > written.size:
                storage.truncate(self.folder / name, written.size)
        for path in diagnostics.glob("*"):
            number = re.fullmatch(r"round_(\d{6,})\.safetensors", path.name)
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

    def _append(self, name: str, data: bytes) -> None:
        storage.append(self.folder / name, data)
        before = self._written[name]
        before.digest.update(data)
        self._written[name] = _Written(before.size + len(data), before.digest)

    def _check(self, name: str, written: Mapping[str, Any]) -> _Written:
        """Return what a growing file begins with, or raise `UserError` unless it is what was written."""
        path, size = self.folder / name, written["bytes"]
        try:
            content = path.read_bytes()[:size] if path.exists() else b""
        except OSError as error:
            raise UserError(f"`{path}` cannot be read ({error.strerror}); put it back from a copy.") from None
        digest = hashlib.sha256(content)
        if digest.hexdigest() != written["sha256"]:
            raise UserError(
                f"`{path}` is damaged: it does not begin with the {size} bytes that it had when the checkpoint was "
                "made; put it back from a copy, or start a new run."
            )
        return _Written(len(content), digest)

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
        raise UserError(
            f"`{{option}}` is `{folder}`, which exists already; {_continuing(folder)}name a new folder.",
            "out",
        )


def _continuing(folder: Path) -> str:
    """Return what else one may have wanted: to go on with what is there, as after a crash."""
    try:
        is_open = any((run / "config.toml").is_file() and not Record(run).finished for run in runs_of(folder))
    except (OSError, UserError):
        return ""
    return f"go on with it by `fedmate run --resume {shlex.quote(str(folder))}`, or " * is_open


def unusable(folder: Path, error: OSError) -> UserError:
    """Return what to say when a folder cannot be made."""
    return UserError(f"`{{option}}` is `{folder}`, which cannot be created ({error.strerror}); name another.", "out")


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
