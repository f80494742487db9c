"""The record of a run: a folder that is written once and never overwritten.

config.toml       the experiment, every option spelled out; `fedmate run config.toml` repeats the run
environment.json  versions, machine and commit
rounds.csv        a row per round and participant: losses around local training, bytes by item
metrics.jsonl     a row per evaluated round
diagnostics/      what the method recorded in an evaluated round, as safetensors; absent if it records nothing
clients.csv       a row per client: its samples and its figures in the last round
summary.json      the figures of the last round and the totals
"""

from __future__ import annotations

import csv
import errno
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from safetensors.torch import load_file, save_file
from torch import Tensor

from fedmate import __version__
from fedmate.errors import UserError


@final
class Record:
    """A run folder being written.

    Args:
        folder: where; it must not exist.
        config: the experiment in TOML.
    """

    def __init__(self, folder: Path, config: str) -> None:
        """Create the folder and say what is about to run."""
        check_free(folder)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise _unusable(folder, error) from None
        self.folder = folder
        (folder / "config.toml").write_text(config, encoding="utf-8")
        (folder / "environment.json").write_text(_to_json(environment()), encoding="utf-8")

    def add_round(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append the participants of a round to `rounds.csv`."""
        _write_csv(self.folder / "rounds.csv", rows)

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Append an evaluated round to `metrics.jsonl`."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def add_diagnostics(self, round_number: int, tensors: Mapping[str, Tensor]) -> None:
        """Store what a method recorded in an evaluated round, if anything."""
        if tensors:
            folder = self.folder / "diagnostics"
            folder.mkdir(exist_ok=True)
            stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(stored, folder / f"round_{round_number:06d}.safetensors")

    def finish(self, summary: Mapping[str, Any], clients: Iterable[Mapping[str, Any]]) -> None:
        """Write what is known at the end."""
        _write_csv(self.folder / "clients.csv", clients)
        (self.folder / "summary.json").write_text(_to_json(summary), encoding="utf-8")


def check_free(folder: Path) -> None:
    """Raise `UserError` if something is at `folder` already."""
    try:
        taken = folder.exists() or folder.is_symlink()
        nearest = next(parent for parent in folder.absolute().parents if parent.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is not a directory")
    except OSError as error:
        raise _unusable(folder, error) from None
    if taken:
        raise UserError(f"`--out` is `{folder}`, which exists already; name a folder that does not.")


def _unusable(folder: Path, error: OSError) -> UserError:
    return UserError(f"`--out` is `{folder}`, which cannot be created ({error.strerror}); name another folder.")


def read_summary(folder: Path) -> dict[str, Any]:
    """Read the summary of a finished run."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the evaluated rounds of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def read_diagnostics(folder: Path, round_number: int) -> dict[str, Tensor]:
    """Read what a method recorded in an evaluated round."""
    tensors: dict[str, Tensor] = load_file(folder / "diagnostics" / f"round_{round_number:06d}.safetensors")
    return tensors


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


def _to_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows, after a header if the file is new."""
    rows = list(rows)
    if not rows:
        return
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
