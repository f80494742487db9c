"""The record of a run: a folder that is written once and never overwritten.

config.toml       the experiment, every option spelled out; `fedmate run config.toml` repeats the run
environment.json  versions, machine and commit
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
import json
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, final

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedmate.errors import UserError

Content = TypeVar("Content")
Number = int | float

TOTALS = ("rounds", "clients", "bytes_up", "bytes_down", "seconds")
"""The numbers of a summary that tables show beside accuracies."""


@final
class Record:
    """A run's record, read from its folder whenever it is asked; the run may be finished, stopped or going on.

    Args:
        folder: the run's folder.

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
        """Look at a folder, or raise `UserError` if it holds no record."""
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
        return self._read("environment.json", _parse_environment)

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
        """Return the mean over clients in the last round, in percent; by default of the primary view.

        Args:
            view: the method's own, if left out.
            test: `balanced` or `own`; if left out `balanced`, but `own` where data lies with sites.
        """
        summary = self.summary
        test = test or summary["headline"].get("test", "balanced")
        views, view = summary["accuracy"], view or summary["headline"]["view"]
        if view not in views:
            raise UserError(f"`view` is `{view}`; this run has {', '.join(f'`{name}`' for name in views)}.")
        if test not in ("balanced", "own"):
            raise UserError(f"`test` is `{test}`; use `balanced` or `own`.")
        figure: float | None = views[view] and views[view][test]["mean"]
        return figure

    def __repr__(self) -> str:
        """Say what it is and how it ended."""
        config = self.config
        what = f"{config['method']['name']} on {config['dataset']['name']}, {config['rounds']} rounds"
        if not self.finished:
            return f"Record({str(self.folder)!r}: {what}, not finished)"
        headline, diverged = self.summary["headline"], self.summary.get("diverged_in_round")
        figure = "diverged" if headline["mean"] is None else f"{headline['view']} {headline['mean']:.2f} %"
        if headline["mean"] is not None and diverged is not None:
            figure += f", diverged in round {diverged}"
        return f"Record({str(self.folder)!r}: {what}, {figure})"

    def _read(self, name: str, parse: Callable[[str], Content], default: str | None = None) -> Content:
        path = self.folder / name
        try:
            # Not `read_text`, which would take a carriage return of the content for an end of line.
            text = path.read_bytes().decode() if default is None or path.exists() else default
            return parse(text)
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"`{path}` cannot be read ({_reason(error)}); put it back from a copy.") from None


def runs_of(folder: Path) -> list[Path]:
    """Return the folders of the runs below a comparison's, or the folder itself."""
    listing = folder / "comparison.json"
    if not listing.is_file():
        return [folder]
    try:
        names = json.loads(listing.read_bytes())["runs"]
        if not isinstance(names, list) or not names or len(names) != len({*names}):
            raise ValueError("it names no run, or one twice")
        return [folder / Path(name).name for name in names]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = _reason(error) if isinstance(error, OSError | ValueError) else "it names no runs"
        raise UserError(f"`{listing}` cannot be read ({reason}); put it back from a copy.") from None


def _reason(error: Exception) -> str:
    """Return the reason that a file cannot be read, without its name."""
    match error:
        case OSError():
            return error.strerror or type(error).__name__
        case UnicodeDecodeError():
            return "it is not text"
        case RecursionError():
            return "it is nested too deeply"
    return str(error)


def _parse_environment(text: str) -> dict[str, Any]:
    values = json.loads(text)
    entries = values.get("resumed", []) if isinstance(values, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("it describes no environment")
    environment: dict[str, Any] = values
    return environment


def _parse_summary(text: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(text)
    try:
        views = [*summary["accuracy"].values(), *summary.get("newcomers", {"accuracy": {}})["accuracy"].values()]
        figures = [tests[test]["mean"] for tests in views if tests is not None for test in ("balanced", "own")]
        figures += [summary["headline"]["mean"], *(summary.get(key) for key in TOTALS)]
        if summary["headline"]["view"] in summary["accuracy"] and all(isinstance(f, Number | None) for f in figures):
            return summary
    except (KeyError, TypeError, AttributeError):
        pass
    raise ValueError("it is not a summary")


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
    if not cell:
        return None
    for read in (int, float):
        try:
            return read(cell)
        except ValueError:
            pass
    return cell
