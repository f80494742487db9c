"""Finished runs of studies: a JSON line each, with everything that is needed to repeat the run and to draw it.

A run is recognised by the options that its figures depend on, not by where or how it was run. The same experiment has
the same name on every machine, so that a finished run is never run again and files of several machines can be merged.

records/*.jsonl    all files are read together; runs of study NAME are added to NAME.jsonl
runs/RUN/          the run itself, an ordinary record of `fedmate run`
locks/             how processes that share the folder divide the runs
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import re
import shlex
import time
import tomllib
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, final

from fedmate import storage
from fedmate.errors import UserError
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.experiment.record import Record
from fedmate.experiment.sections import NAMED_SECTIONS, Experiment, flat
from fedmate.methods import METHODS

FORMAT = 1
PARTS = (
    *("accuracy", "headline", "loss", "bytes_up", "bytes_down", "bytes_up_items", "bytes_down_items", "seconds"),
    *("partition_sha256", "left_out", "discarded_aggregates", "diverged_in_round"),
)
"""The entries of a run's summary that are kept."""

WITHOUT_EFFECT = ("checkpoint_every", "min_clients", "patience")
"""Options that change no figure."""

EXECUTION = (*WITHOUT_EFFECT, "backend", "device", "chunk_size")
"""These, and options that say only where and how a run was run."""

TIMEOUT, PAUSE = 60.0, 0.05
"""Seconds to wait for another process that adds a record, and between two attempts."""


@final
class RunSummary:
    """A finished run; `content` are the entries that `summarise` returns."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.config: dict[str, Any] = content["config"]
        self.summary: dict[str, Any] = content["summary"]
        self.name = name_of(self.config)
        self.diverged_in: int | None = self.summary.get("diverged_in_round")

    @property
    def views(self) -> list[str]:
        """The views that the method has."""
        return [view for view, figures in self.summary["accuracy"].items() if figures is not None]

    def accuracy(self, view: str, test: str) -> float | None:
        """Return the mean over clients at the end, in percent; `None` if it diverged or the method lacks the view."""
        figures = None if self.diverged_in is not None else self.summary["accuracy"].get(view)
        return None if figures is None or test not in figures else figures[test]["mean"]

    def outcome(self) -> list[Any]:
        """Return everything that two runs of one experiment must agree on."""
        rounds = [[point["round"], point["accuracy"]] for point in self.content["curve"]]
        return [self.summary["accuracy"], self.summary["partition_sha256"], self.content["holdings"], rounds]


class Merged(NamedTuple):
    """The names of runs that were new, that were there already, and that are there with other figures."""

    new: list[str]
    same: list[str]
    different: list[str]


@final
class Records:
    """The finished runs in a folder, and the claims on those that are being run.

    Args:
        folder: it need not exist before something is added.
        study: the name of the file that new records are added to.
    """

    def __init__(self, folder: Path, study: str) -> None:
        self.folder, self.path = folder, folder / "records" / f"{study}.jsonl"

    def all(self) -> Mapping[str, RunSummary]:
        """Return all finished runs by name."""
        return _read_all(self.path.parent.glob("*.jsonl"))

    def find(self, name: str) -> RunSummary | None:
        """Return a finished run, if there is one of this name."""
        return self.all().get(name)

    def add(self, found: Sequence[RunSummary]) -> Merged:
        """Add finished runs; one that is there stays as it is."""
        merged, lines = Merged([], [], []), list[str]()
        storage.make_folder(self.path.parent)
        with self._wait_for_turn():
            known = self.all()
            for one in found:
                ours = known.get(one.name)
                if ours is None:
                    lines.append(f"{json.dumps(one.content)}\n")
                    merged.new.append(one.name)
                else:
                    (merged.same if ours.outcome() == one.outcome() else merged.different).append(one.name)
            if lines:
                before = self.path.read_bytes() if self.path.exists() else b""
                storage.replace(self.path, before + "".join(lines).encode())
        return merged

    def merge(self, other: Path) -> Merged:
        """Add the finished runs of another folder of studies, of a folder of `.jsonl` files, or of one such file."""
        place = other / "records" if (other / "records").is_dir() else other
        paths = [place] if place.is_file() else [*place.glob("*.jsonl")]
        if not paths:
            raise UserError(f"`--merge` got `{other}`, which holds no records; name a folder of `fedmate compare`.")
        return self.add([*_read_all(paths).values()])

    def run_folder(self, name: str) -> Path:
        """Return the folder in which a run is run."""
        return self.folder / "runs" / name

    def claim(self, name: str) -> AbstractContextManager[object]:
        """Take a run for this process, or raise `BusyError`; the claim ends with the process."""
        path = self.folder / "locks" / name
        try:
            storage.make_folder(path.parent)
            return storage.lock(path)
        except OSError as error:
            reason = f"cannot be locked ({error.strerror})"
            raise UserError(f"`{path}` {reason}; use a folder that can be written.") from None

    def _wait_for_turn(self) -> AbstractContextManager[object]:
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                return self.claim("records")
            except storage.BusyError:
                if time.monotonic() > end:
                    raise
                time.sleep(PAUSE)


def _read_all(paths: Iterable[Path]) -> Mapping[str, RunSummary]:
    return ChainMap(*(_read(path, path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(paths)))


@functools.lru_cache(maxsize=64)
def _read(path: Path, *_: int) -> dict[str, RunSummary]:
    """Return the runs of a file by name, or raise `UserError`; a file of another time or size is read again."""
    found: dict[str, RunSummary] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"`{path}` cannot be read ({error}); remove it, or restore it from a copy.") from None
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            if content["format"] != FORMAT:
                raise UserError(f"`{path}` has format {content['format']!r}, not {FORMAT}; use the fedmate it is from.")
            one = RunSummary(content)
            one.outcome()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"`{path}` has no record of a run in line {number} ({type(error).__name__}: {error}); remove the line, "
                "or restore the file from a copy."
            ) from None
        found.setdefault(one.name, one)
    return found


SHOWN = ("method.", "objective.", "server.")
"""The sections whose options the name of a run spells out."""


def run_name(experiment: Experiment) -> str:
    """Return the name of a run: the words that a reader looks for, and a digest of its options."""
    return name_of(tomllib.loads(experiment.to_toml()))


def name_of(config: Mapping[str, Any]) -> str:
    """Return the same for the content of an experiment's file."""
    partition, method = config["partition"], config["method"]
    kind = f"s{partition['share']:g}" if partition["name"] == "share" else partition["name"]
    names = {section: config[section]["name"] for section in NAMED_SECTIONS}
    usual = _usual(**names)
    # Options at their defaults are left out, so that an option that comes later changes no name.
    given = {
        # A file may say 0 for 0.0.
        key: float(value) if type(value) is int else value
        for key, value in flat(config).items()
        if key not in EXECUTION and usual.get(key) != value
    }
    digest = hashlib.sha256(json.dumps([names, given], sort_keys=True).encode()).hexdigest()[:12]
    own = [f"{key.partition('.')[2]}_{_word(value)}" for key, value in sorted(given.items()) if key.startswith(SHOWN)]
    words = "-".join([method["name"], *own, config["dataset"]["name"], kind, f"seed{config['seed']}"])
    # Names are names of folders, too.
    return re.sub(r"[^A-Za-z0-9._-]", "_", words)[:120] + f"-{digest}"


@functools.cache
def _usual(**names: str) -> dict[str, Any]:
    """Return the defaults of an experiment with these names; nothing if it needs more than names, or is not known."""
    try:
        experiment = resolve([ConfigSource("defaults", {section: {"name": name} for section, name in names.items()})])
    except UserError:
        return {}
    return flat(tomllib.loads(experiment.to_toml()))


def command_of(config: Mapping[str, Any]) -> str:
    """Return the command of a run: its data set, its method, and the options that differ from their defaults."""
    dataset, method = config["dataset"]["name"], config["method"]["name"]
    usual = _usual(dataset=dataset, method=method)
    words = ["fedmate", "run", "--dataset", dataset, "--method", method]
    for key, value in flat(config).items():
        if key not in WITHOUT_EFFECT and usual.get(key) != value:
            words += ["--set", f"{key}={_word(value)}"]
    return shlex.join(words)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@functools.cache
def source_digest(method: str) -> str | None:
    """Return the digest of the file that a method is written in, if it can be read."""
    try:
        source = inspect.getsource(inspect.getmodule(METHODS[method]))  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    return hashlib.sha256(source.encode()).hexdigest()


def summarise(record: Record) -> RunSummary:
    """Return the record of a finished run in a folder."""
    summary, config, metrics = record.summary, record.config, record.metrics
    ended = datetime.fromtimestamp((record.folder / "summary.json").stat().st_mtime, UTC)
    partition = json.loads((record.folder / "partition.json").read_bytes())
    last = metrics[-1]["accuracy"] if metrics else {}
    content = {
        "format": FORMAT,
        "date": f"{ended:%Y-%m-%d}",
        "command": command_of(config),
        "environment": record.environment,
        "config": config,
        "summary": {part: rounded(summary.get(part)) for part in PARTS},
        "classes": {view: rounded(f["balanced"]["per_class"]) for view, f in last.items() if f is not None},
        "holdings": [[n for key, n in row.items() if re.fullmatch(r"samples_\d+", key)] for row in record.clients],
        "class_names": partition["classes"],
        "data_sha256": partition["data_sha256"],
        "method_sha256": source_digest(config["method"]["name"]),
        "curve": [
            {"round": row["round"], "seconds": rounded(row["seconds"]), "accuracy": _means(row["accuracy"])}
            for row in metrics
        ],
        "losses": {way: _losses(record.rounds, f"loss_{way}") for way in ("before", "after")},
    }
    return RunSummary(content)


def rounded(value: Any) -> Any:
    """Return numbers with six digits, so that files stay small."""
    match value:
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case Mapping():
            return {key: rounded(inner) for key, inner in value.items()}
        case list():
            return [rounded(inner) for inner in value]
    return value


def _means(accuracy: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    return {
        view: {test: rounded(found["mean"]) for test, found in figures.items()}
        for view, figures in accuracy.items()
        if figures is not None
    }


def _losses(rows: Sequence[Mapping[str, Any]], key: str) -> list[float | None]:
    """Return the loss of each round, mean over the participants that count."""
    by_round: dict[int, list[float]] = {}
    for row in rows:
        values = by_round.setdefault(row["round"], [])
        values += [float(row[key])] if row["valid"] and row[key] is not None else []
    return [rounded(sum(values) / len(values)) if values else None for values in by_round.values()]
