"""What was measured, as one file: everything that a table or a picture is made of."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, final

import torch

from fedmate.backends.sequential import available_cores
from fedmate.bench.case import Case
from fedmate.bench.measure import Timing
from fedmate.bench.roofline import Roofline, Work
from fedmate.errors import UserError
from fedmate.experiment.recorder import environment

FORMAT = 1

OTHERS = ("triton", "jax", "flwr", "ray", "pfl")
"""Packages whose version is told where they are installed."""


@final
@dataclass(frozen=True)
class Row:
    """A case and what came of it.

    Attributes:
        case: what was measured.
        timing: what it took, unless it failed.
        work: what it had to do at least, unless it failed.
        error: why it failed, in a few words.
        detail: the same for those who have to mend it.
    """

    case: Case
    timing: Timing | None = None
    work: Work | None = None
    error: str | None = None
    detail: str | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Training samples a second."""
        return 1e3 * self.case.training_samples / self.timing.milliseconds if self.timing else None


@final
@dataclass
class Results:
    """Everything that one command measured.

    Attributes:
        about: where and when: versions, machine, commit, date, `load`, `repeat` (n) and `device`.
        roofline: what the device can do at best; `None` if that failed.
        rows: the cases so far.
    """

    about: dict[str, Any]
    roofline: Roofline | None = None
    rows: list[Row] = field(default_factory=list)

    def floor_ms(self, row: Row) -> float | None:
        """Return the least milliseconds that the round of a row can take here."""
        return self.roofline.floor_ms(row.case, row.work) if self.roofline and row.work else None

    def share(self, row: Row) -> float | None:
        """Return how near a row comes to the roofline: 1 is there."""
        floor = self.floor_ms(row)
        return floor / row.timing.milliseconds if row.timing and floor is not None else None

    def to_json(self) -> bytes:
        """Return the file."""
        values = {
            "format": FORMAT,
            "about": self.about,
            "roofline": self.roofline._asdict() if self.roofline else None,
            "rows": [self._row_to_dict(row) for row in self.rows],
        }
        return json.dumps(values, indent=1, allow_nan=False).encode() + b"\n"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that `to_json` gave, or raise `UserError`."""
        try:
            values = json.loads(path.read_bytes())
            if values["format"] != FORMAT:
                raise ValueError(f"it is of format {values['format']}")
            roofline = Roofline(**values["roofline"]) if values["roofline"] else None
            return cls(dict(values["about"]), roofline, [_row_from_dict(row) for row in values["rows"]])
        except OSError as error:
            reason = error.strerror
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError) as error:
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(".")
        raise UserError(f"`{path}` cannot be read ({reason}); give a file that `fedmate bench --out` wrote.")

    def _row_to_dict(self, row: Row) -> dict[str, Any]:
        values = asdict(row) | {"work": row.work._asdict() if row.work else None}
        if row.timing:
            values["derived"] = {
                "ms_per_round": row.timing.milliseconds,
                "samples_per_s": row.samples_per_s,
                "floor_ms": self.floor_ms(row),
                "share_of_roofline": self.share(row),
            }
        return values


def _row_from_dict(values: dict[str, Any]) -> Row:
    timing = Timing.from_dict(values["timing"]) if values["timing"] else None
    work = Work(**values["work"]) if values["work"] else None
    return Row(Case(**values["case"]), timing, work, values["error"], values["detail"])


def combine(found: Sequence[Results]) -> Results:
    """Return what several files hold as one, if they are of one machine; raise `UserError` if they are not."""
    first = found[0]
    for other in found[1:]:
        if other.about.get("hardware") != first.about.get("hardware"):
            raise UserError("`--show` got files of different machines, which cannot be compared; show them one by one.")
        if _versions(other) != _versions(first):
            raise UserError("`--show` got files of different versions, which cannot be compared; show them one by one.")
    # A file that is given twice says nothing new.
    return Results(first.about, first.roofline, list(dict.fromkeys(row for each in found for row in each.rows)))


def _versions(results: Results) -> dict[str, Any]:
    """Return the versions of all that has to do with speed; a commit says less than that it is another."""
    return {name: version for name, version in dict(results.about["versions"]).items() if name != "commit"}


def describe(device: str, repeat: int) -> dict[str, Any]:
    """Return where and when something is measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "repeat": repeat,
        "load": _load(),
        "hardware": describe_hardware(device),
        "versions": {**environment(), **{name: _version(name) for name in OTHERS}},
    }


def describe_hardware(device: str) -> dict[str, Any]:
    """Return what the machine is."""
    values: dict[str, Any] = {"cpu": _cpu(), "cores": available_cores(), "gpu": None}
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        values |= {"gpu": properties.name, "gpu_bytes": properties.total_memory}
    return values


def _cpu() -> str:
    """Return what the processor is called."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _load() -> float | None:
    """Return how many processes wanted to run in the last minute, where the system tells."""
    return os.getloadavg()[0] if sys.platform != "win32" else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
