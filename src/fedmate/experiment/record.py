"""The record of a run: a folder that is written once and never overwritten.

config.toml       the experiment, every option spelled out; `fedmate run config.toml` repeats the run
environment.json  versions, machine and commit
callbacks.toml    the callbacks that the experiment names, if any
rounds.csv        a row per round and participant: losses around local training, bytes by item
metrics.jsonl     a row per evaluated round
diagnostics/      what the method recorded in an evaluated round, as safetensors; absent if it records nothing
checkpoint/       the states of server and clients: what a run continues from, and where models are exported from
clients.csv       a row per client: its samples and its figures in the last round
summary.json      the figures of the last round and the totals; it is written last, so it marks a finished run
comparison.json   instead of all these, in the folder of a comparison: the names of its runs, a folder each
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shlex
import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, final

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedmate import storage
from fedmate.errors import UserError

Content = TypeVar("Content")

TESTS = ("balanced", "own", "local")
"""`balanced` averages the accuracies over classes, `own` weighs them by the client's label distribution; both are of
the common test split. `local` is the accuracy on samples of the client's own, if it has some for testing."""

VIEWS = ("pre", "post", "global")

GROWING = ("rounds.csv", "metrics.jsonl")
"""The files that grow from round to round."""


@final
class Record:
    """A run's record, read from its folder whenever it is asked; the run may be finished, stopped or going on.

    Example:
        >>> import fedmate, tempfile
        >>> folder = tempfile.mkdtemp() + "/run"
        >>> _ = fedmate.run(method="local", set={"rounds": 1, "partition.clients": 2}, out=folder)
        >>> record = fedmate.load(folder)
        >>> record.finished, record.config["method"]["name"], len(record.clients)
        (True, 'local', 2)
        >>> record.accuracy("post", "own") == record.metrics[-1]["accuracy"]["post"]["own"]["mean"]
        True
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not (self.folder / "config.toml").is_file():
            hint = "it is not a run's folder" if self.folder.exists() else "it does not exist"
            if (self.folder / "comparison.json").is_file():
                hint = f"it is a comparison of {', '.join(f'`{run.name}`' for run in runs_of(self.folder))}"
            raise UserError(f"`{self.folder}` holds no record: {hint}; give the folder of a run.")

    @property
    def config(self) -> dict[str, Any]:
        """The experiment, section by section."""
        return self._read("config.toml", tomllib.loads)

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, machine and commit."""
        return self._read("environment.json", json.loads)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.folder / "summary.json").exists()

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the last round and the totals."""
        if not self.finished:
            raise UserError(
                f"`{self.folder}` is not finished, so it has no summary; continue it with `fedmate run --resume "
                f"{shlex.quote(str(self.folder))}`, or in Python with `fedmate.run(resume=...)`."
            )
        return self._read("summary.json", _parse_summary)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The evaluated rounds; a last line that was torn by a kill is left out."""
        return self._read("metrics.jsonl", lambda text: [json.loads(line) for line in whole_lines(text)], default="")

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The participants of every round."""
        return self._read("rounds.csv", _parse_csv, default="")

    @property
    def clients(self) -> list[dict[str, Any]]:
        """The clients, once the run is finished."""
        return self._read("clients.csv", _parse_csv, default="")

    def diagnostics(self, round_number: int) -> dict[str, Tensor]:
        """Return what the method recorded in an evaluated round."""
        path = self.folder / "diagnostics" / f"round_{round_number:06d}.safetensors"
        try:
            tensors: dict[str, Tensor] = load_file(path)
        except (OSError, SafetensorError):
            known = sorted(int(p.stem.removeprefix("round_")) for p in path.parent.glob("round_*.safetensors"))
            has = f"it has {', '.join(map(str, known))}" if known else "its method records none"
            raise UserError(f"`{self.folder}` has no diagnostics of round {round_number}; {has}.") from None
        return tensors

    def accuracy(self, view: str | None = None, test: str | None = None) -> float | None:
        """Return the mean over clients in the last round, in percent; by default of the primary view and test.

        Args:
            view: the method's own, if left out.
            test: `balanced`, `own`, or `local` where clients have test samples of their own.
        """
        return self.metric("accuracy", view, test)

    def metric(self, name: str, view: str | None = None, test: str | None = None) -> float | None:
        """Return the mean of a metric of `[evaluation]` over clients in the last round, as `accuracy` does.

        It is `None` for a view that the method lacks, and on a test on which the metric is not known.
        """
        summary = self.summary
        test, view = test or summary["headline"]["test"], view or summary["headline"]["view"]
        views = summary.get(name)
        if not isinstance(views, dict) or "pre" not in views:
            raise UserError(f"`{name}` was not computed in this run; add it to `evaluation.metrics`, and run again.")
        if view not in views:
            raise UserError(f"`view` is `{view}`; this run has {', '.join(f'`{name}`' for name in views)}.")
        tests: dict[str, Any] = next((found for found in views.values() if found), {})
        if test not in (tests or TESTS):
            raise UserError(f"`test` is `{test}`; this run has {', '.join(f'`{name}`' for name in tests)}.")
        figures = views[view] and views[view].get(test)
        return figures["mean"] if figures else None

    def __repr__(self) -> str:
        config = self.config
        what = f"{config['method']['name']} on {config['dataset']['name']}, {config['rounds']} rounds"
        if not self.finished:
            return f"Record({str(self.folder)!r}: {what}, not finished)"
        primary, diverged = self.summary["headline"], self.summary.get("diverged_in_round")
        figure = "diverged" if primary["mean"] is None else f"{primary['view']} {primary['mean']:.2f} %"
        if primary["mean"] is not None and diverged is not None:
            figure += f", diverged in round {diverged}"
        return f"Record({str(self.folder)!r}: {what}, {figure})"

    def _read(self, name: str, parse: Callable[[str], Content], default: str | None = None) -> Content:
        path = self.folder / name
        try:
            # Not `read_text`, which would take a carriage return of the content for an end of line.
            text = path.read_bytes().decode() if default is None or path.exists() else default
            return parse(text)
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(path, error) from None


def runs_of(folder: Path) -> list[Path]:
    """Return the folders of the runs below a comparison's, or the folder itself."""
    listing = folder / "comparison.json"
    if not listing.is_file():
        return [folder]
    try:
        names = json.loads(listing.read_bytes())["runs"]
        if not names or len(names) != len({*names}):
            raise ValueError("it names no run, or one twice")
        return [folder / Path(name).name for name in names]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(listing, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    reason = "it is not text" if isinstance(error, UnicodeDecodeError) else reason
    return UserError(f"`{path}` cannot be read ({reason}); put it back from a copy.")


def _parse_summary(text: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(text)
    try:
        # What readers take for granted.
        _ = summary["headline"]["view"], summary["headline"]["mean"]
        _ = [found["mean"] for tests in summary["accuracy"].values() if tests is not None for found in tests.values()]
    except (KeyError, TypeError, AttributeError):
        raise ValueError("it is not a summary") from None
    return summary


def whole_lines(text: str) -> list[str]:
    """Return the lines that have an end."""
    return text.split("\n")[:-1]


def _parse_csv(text: str) -> list[dict[str, Any]]:
    names, *rows = [row for row in csv.reader(whole_lines(text)) if row] or [[]]
    odd = next((i for i, row in enumerate(rows, 2) if len(row) != len(names)), None)
    if odd is not None:
        raise ValueError(f"row {odd} has another length than the first")
    return [dict(zip(names, map(_parse_cell, row), strict=True)) for row in rows]


def _parse_cell(cell: str) -> int | float | str | None:
    for read in (int, float):
        with suppress(ValueError):
            return read(cell)
    return cell or None


@final
class Recorder:
    """A run's folder being written: one that `begin` began; `rewind` says from where to go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sizes = dict.fromkeys(GROWING, 0)
        self._digests = {name: hashlib.sha256() for name in GROWING}

    @staticmethod
    def begin(folder: Path, config: str, partition: str, environment: Mapping[str, Any]) -> None:
        """Write what is about to run, on which samples and where."""
        folder.mkdir(exist_ok=True)
        storage.write(folder / "config.toml", config.encode())
        storage.write(folder / "partition.json", partition.encode())
        storage.write(folder / "environment.json", _to_json(environment))

    def add_round(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append the participants of a round to `rounds.csv`."""
        self._append("rounds.csv", _to_csv(rows, header=not self._sizes["rounds.csv"]))

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
        """Write the end of the record; the summary comes last."""
        path, content = self.folder / "clients.csv", _to_csv(clients, header=True)
        # After a kill between the two it is there already, and the same; another one is not this run's.
        if path.exists() and (not path.is_file() or path.read_bytes() != content):
            raise UserError(f"`{path}` is in the way, and is not this run's; move it, then resume the run.")
        storage.replace(path, content)
        storage.replace(self.folder / "summary.json", _to_json(summary))

    def flush(self) -> None:
        """Bring the growing files to the disk."""
        for name in GROWING:
            if self._sizes[name]:
                storage.flush(self.folder / name)
        for folder in filter(Path.exists, (self.folder, self.folder / "diagnostics")):
            storage.flush(folder)

    def files(self) -> dict[str, dict[str, Any]]:
        """Return how long the growing files are, in bytes, and a digest of what was written into each."""
        return {name: {"bytes": self._sizes[name], "sha256": self._digests[name].hexdigest()} for name in GROWING}

    def rewind(self, round_number: int, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Go back to where the growing files were like this: drop torn lines and what came after a round."""
        empty, found = Recorder(self.folder).files(), dict[str, bytes]()
        for name in GROWING:
            path = self.folder / name
            try:
                content = found[name] = path.read_bytes() if path.exists() else b""
            except OSError as error:
                raise _unreadable(path, error) from None
            size, digest = files.get(name, empty[name]).values()
            self._sizes[name], self._digests[name] = size, hashlib.sha256(content[:size])
            if self._digests[name].hexdigest() != digest:
                raise UserError(
                    f"`{path}` is damaged: it does not begin with the {size} bytes that it had when the "
                    "checkpoint was made; put it back from a copy, or start a new run."
                )
        for name, content in found.items():
            if len(content) > self._sizes[name]:
                storage.truncate(self.folder / name, self._sizes[name])
        for path in (self.folder / "diagnostics").glob("*"):
            number = re.fullmatch(r"round_(\d{6,})\.safetensors", path.name)
            if number and int(number[1]) > round_number:
                storage.remove(path)

    def note_environment(self, round_number: int, now: Mapping[str, Any]) -> list[str]:
        """Add what has changed in the environment since the run began, if anything, and return the names."""
        written = Record(self.folder).environment
        resumed = written.get("resumed", [])
        last = ChainMap(*reversed(resumed), written)
        changed = {key: value for key, value in now.items() if last.get(key) != value}
        if changed:
            written["resumed"] = [*resumed, {"round": round_number, **changed}]
            storage.replace(self.folder / "environment.json", _to_json(written))
        return sorted(changed)

    def _append(self, name: str, data: bytes) -> None:
        storage.append(self.folder / name, data)
        self._digests[name].update(data)
        self._sizes[name] += len(data)


def _to_json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, indent=2, allow_nan=False).encode() + b"\n"


def _to_csv(rows: Iterable[Mapping[str, Any]], *, header: bool) -> bytes:
    rows, text = list(rows), io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()
