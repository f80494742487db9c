"""What is kept of a finished run: one small JSON, with all that is needed to run it again and to draw it.

Its name says what was run and ends with a digest of every option that the figures depend on: the same experiment has
the same name wherever and whenever it is run, so that files of several machines are merged by copying.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, final

from fedmate.core.options import options_of
from fedmate.errors import UserError
from fedmate.experiment.config import Experiment, flat
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.record import Record
from fedmate.methods import METHODS

FORMAT = 1
PARTS = (
    *("accuracy", "headline", "loss", "bytes_up", "bytes_down", "bytes_up_items", "bytes_down_items", "seconds"),
    *("partition_sha256", "left_out", "discarded_aggregates", "diverged_in_round"),
)
UNSAID = ("checkpoint_every",)
"""Options that change nothing in the figures."""
ELSEWHERE = (*UNSAID, "backend", "device", "chunk_size")
"""Those that only say where and how it was run."""
LATER = {
    "min_clients": 1,
    "patience": 600.0,
    "method.calibration": 0.0,
    "method.absent_share": 0.0,
    "method.own_prior": False,
    "method.server_momentum": 0.0,
    "method.integration_on": "global",
    "method.normalised_centres": False,
    "method.fusion_until": 1.0,
}
"""Options that records do not spell out where they have these values."""


@final
class Kept:
    """A run as it is kept.

    Args:
        name: of its file, without the suffix.
        content: what `condense` returned, as JSON has it.
    """

    def __init__(self, name: str, content: dict[str, Any]) -> None:
        """Hold it."""
        self.name, self.content = name, content
        self.config = _completed(content["config"])
        self.summary: dict[str, Any] = content["summary"]

    @classmethod
    def read(cls, path: Path) -> Kept:
        """Read a file, or raise `UserError` if it is none of ours, or not what its name says."""
        try:
            if path.exists() and not path.is_file():
                # Whoever opens a pipe waits for what never comes.
                raise ValueError("not a regular file")
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise UserError(f"`{path}` has format {content['format']!r}, not {FORMAT}; use the fedmate it is from.")
            if not isinstance(content["config"], dict):
                raise ValueError("its `config` is something else")
            kept = cls(path.stem, content)
            _check(kept)
        except PermissionError:
            raise UserError(f"`{path}` may not be read; give yourself the right to, or use another folder.") from None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            why = str(error) if type(error) is ValueError else type(error).__name__
            raise UserError(
                f"`{path}` cannot be read as what is kept of a run ({why}); remove it, or put it back from a copy."
            ) from None
        if path.stem.rpartition("-")[2] != digest_of(kept.config):
            raise UserError(
                f"`{path}` holds another experiment than its name says; give it the name it had, or remove it."
            )
        return kept

    @property
    def command(self) -> str:
        """The command that runs it today: options that came since are given where they would do something else."""
        written = str(self.content["command"])
        is_dealt = written.startswith("fedmate partition ")
        return (
            command_of(self.config, "partition" if is_dealt else "run")
            if self.config != self.content["config"]
            else written
        )

    @property
    def diverged_in(self) -> int | None:
        """The round in which everybody diverged, if it came to that."""
        round_number: int | None = self.summary.get("diverged_in_round")
        return round_number

    @property
    def measures(self) -> list[str]:
        """What was taken from the run besides its figures."""
        return list(self.content.get("measures", []))

    @property
    def views(self) -> list[str]:
        """The views that the method has, the three of every method first."""
        return [view for view, figures in self.summary["accuracy"].items() if figures is not None]

    @property
    def is_outdated(self) -> bool | None:
        """Whether its method's file was another one when it was run; `None` if that was not recorded."""
        digest = self.content.get("method_sha256")
        return None if digest is None else digest != source_digest(self.config["method"]["name"])

    def accuracy(self, view: str, test: str) -> float | None:
        """Return the mean over clients at the end, in percent, if the method has the view."""
        if self.diverged_in is not None:
            return None
        figures = self.summary["accuracy"].get(view)
        mean: float | None = figures and figures[test]["mean"]
        return mean


def _check(kept: Kept) -> None:
    """Raise `ValueError` unless everything is there that others rely on, and is what they take it for."""
    content, config, summary = kept.content, kept.config, kept.summary
    sections = [config["dataset"], config["partition"], config["method"]]
    # What only some runs have comes after what all have.
    right = {
        "config": all(isinstance(section["name"], str) for section in sections),
        "config.rounds": _is_count(config["rounds"]),
        "config.seed": _is_count(config["seed"]),
        "summary.accuracy": _is_mapping(summary["accuracy"], lambda one: one is None or _are_means(one)),
        "summary.partition_sha256": isinstance(summary["partition_sha256"], str),
        "environment": isinstance(content["environment"], dict),
        "holdings": _is_table(content["holdings"]),
        "curve": _is_list(content["curve"], _is_point),
        "summary.diverged_in_round": kept.diverged_in is None or _is_count(kept.diverged_in),
        "summary.bytes_up_items": _is_mapping(summary.get("bytes_up_items", {}), _is_count),
        "summary.bytes_down_items": _is_mapping(summary.get("bytes_down_items", {}), _is_count),
        "classes": _is_mapping(content.get("classes", {}), lambda one: _is_list(one, _is_figure)),
        "losses": _is_mapping(content.get("losses", {}), lambda one: _is_list(one, _is_figure)),
        "measures": _is_list(content.get("measures", []), lambda one: isinstance(one, str)),
        "flops_per_round": _is_count(content.get("flops_per_round", 0)),
        "class_names": _is_list(content.get("class_names", []), lambda one: isinstance(one, str)),
        "data_sha256": isinstance(content.get("data_sha256", ""), str),
    }
    for part, is_right in right.items():
        if not is_right:
            raise ValueError(f"its `{part}` is something else")


def _is_mapping(value: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(is_right, value.values()))


def _is_list(value: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_right, value))


def _is_count(value: Any) -> bool:
    return type(value) is int


def _is_figure(value: Any) -> bool:
    """Tell whether it is a number, or `None` where there is none."""
    return value is None or (type(value) in (int, float) and math.isfinite(value))


def _is_table(value: Any) -> bool:
    """Tell whether it has a row for each client and a column for each class, at least one of them."""
    is_right = _is_list(value, lambda row: _is_list(row, _is_count))
    return is_right and len({len(row) for row in value}) == 1 and bool(value[0])


def _are_means(figures: Any) -> bool:
    return _is_mapping(figures, lambda one: isinstance(one, dict)) and all(
        _is_figure(figures[test]["mean"]) for test in ("balanced", "own")
    )


def _is_point(point: Any) -> bool:
    """Tell whether it is an evaluated round, as `_point` makes them."""
    return (
        isinstance(point, dict)
        and _is_count(point["round"])
        and _is_figure(point["seconds"])
        and point["seconds"] is not None
        and _is_mapping(point["accuracy"], lambda tests: _is_mapping(tests, _is_figure))
    )


def name_of(experiment: Experiment) -> str:
    """Return what a run's file is called: what a reader looks for, and a digest of all there is to say."""
    config = tomllib.loads(experiment.to_toml())
    partition, method = config["partition"], config["method"]
    kind = f"s{partition['share']:g}" if partition["name"] == "share" else partition["name"]
    usual = _usual(method["name"], None) | _options_since(config)
    own = [f"{key}_{_word(value)}" for key, value in method.items() if usual.get(f"method.{key}") != value]
    words = [method["name"], *own, config["dataset"]["name"], kind, f"seed{config['seed']}", digest_of(config)]
    # Names are files: what a user's own words may hold beyond letters and digits is left to the digest.
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(words[:-1]))[:120] + f"-{words[-1]}"


def digest_of(config: Mapping[str, Any]) -> str:
    """Return what tells an experiment from others: a digest of every option that its figures depend on."""
    usual = _options_since(config)
    # An option that came later is not said where it is set to what runs did before it.
    said = {
        key: value
        # The published names are of runs whose files had `compile`, an option that is gone.
        for key, value in flat({"compile": False, **config}).items()
        if key not in ELSEWHERE and not (key in usual and usual[key] == value)
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def _options_since(config: Mapping[str, Any]) -> dict[str, Any]:
    name = config["method"]["name"]
    known = options_of(METHODS[name]) if name in METHODS else {}
    later = {key: value for key, value in LATER.items() if not key.startswith("method.") or key[7:] in known}
    if name == "fedmate_plus":
        del later["method.calibration"]
    return later


def _completed(config: dict[str, Any]) -> dict[str, Any]:
    later = _options_since(config)
    filled = {**config, "method": dict(config["method"])}
    for key, value in later.items():
        place, _, name = key.rpartition(".")
        (filled["method"] if place else filled).setdefault(name, value)
    return filled


def condense(record: Record) -> dict[str, Any]:
    """Return what is kept of a finished run."""
    summary, config = record.summary, record.config
    ended = datetime.fromtimestamp((record.folder / "summary.json").stat().st_mtime, UTC)
    dealt = json.loads((record.folder / "partition.json").read_bytes())
    return {
        "format": FORMAT,
        "date": f"{ended:%Y-%m-%d}",
        "command": command_of(config),
        "environment": record.environment,
        "config": config,
        "summary": {part: rounded(summary.get(part)) for part in PARTS},
        "classes": {view: rounded(figures) for view, figures in _per_class(record).items()},
        "holdings": _holdings(record),
        "class_names": dealt["classes"],
        "data_sha256": dealt["data_sha256"],
        "method_sha256": source_digest(config["method"]["name"]),
        "curve": [_point(row) for row in record.metrics],
        "losses": _losses(record),
    }


def source_digest(method: str) -> str | None:
    """Return what tells the file that a method is written in from others, if it can be read."""
    return _source_digest(METHODS[method])


@functools.cache
def _source_digest(method: type) -> str | None:
    try:
        source = inspect.getsource(inspect.getmodule(method))  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    return hashlib.sha256(source.encode()).hexdigest()


def command_of(config: Mapping[str, Any], verb: Literal["run", "partition"] = "run") -> str:
    """Return the command for an experiment: its data set, its method, and what differs from their defaults."""
    dataset, method = config["dataset"]["name"], config["method"]["name"]
    usual = _usual(method, dataset)
    words = ["fedmate", verb, "--dataset", dataset, "--method", method]
    for key, value in flat(config).items():
        if key not in UNSAID and usual.get(key) != value:
            words += ["--set", f"{key}={_word(value)}"]
    return shlex.join(words)


@functools.cache
def _usual(method: str, dataset: str | None) -> dict[str, Any]:
    """Return the experiment that names nothing but a method and a data set."""
    return flat(tomllib.loads(compose(Request(methods=[method], dataset=dataset))[0].to_toml()))


def rounded(value: Any) -> Any:
    """Return figures with the digits that mean something, so that files stay small."""
    match value:
        case float():
            return float(f"{value:.6g}") if math.isfinite(value) else None
        case Mapping():
            return {key: rounded(inner) for key, inner in value.items()}
        case list():
            return [rounded(inner) for inner in value]
    return value


def _per_class(record: Record) -> dict[str, list[float | None]]:
    """Return the accuracy on each class at the end, mean over clients, by view."""
    metrics = record.metrics
    views = metrics[-1]["accuracy"] if metrics else {}
    return {view: figures["balanced"]["per_class"] for view, figures in views.items() if figures is not None}


def _holdings(record: Record) -> list[list[int]]:
    """Return how many samples of each class every client holds."""
    rows = [{k: v for k, v in row.items() if re.fullmatch(r"samples_\d+", k)} for row in record.clients]
    return [list(row.values()) for row in rows]


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluated round: both accuracies of every view, and the seconds until then."""
    views = {view: figures for view, figures in row["accuracy"].items() if figures is not None}
    accuracy = {view: {test: rounded(f[test]["mean"]) for test in ("balanced", "own")} for view, f in views.items()}
    return {"round": row["round"], "seconds": rounded(row["seconds"]), "accuracy": accuracy}


def _losses(record: Record) -> dict[str, list[float | None]]:
    """Return the loss before and after local training in each round, mean over the participants that count."""
    by_round: dict[int, list[Mapping[str, Any]]] = {}
    for row in record.rounds:
        by_round.setdefault(row["round"], []).extend([row] if row["valid"] else [])
    return {name: [_mean(rows, f"loss_{name}") for rows in by_round.values()] for name in ("before", "after")}


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [float(row[key]) for row in rows if row[key] is not None]
    mean: float | None = rounded(sum(values) / len(values)) if values else None
    return mean


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
