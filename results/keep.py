"""Keep what finished runs found as small files: one JSON for each, with all that is needed to run it again.

    python results/keep.py results/cifar10 RUN... [--note "what a reader must know"]

A file holds the figures of the last evaluation, every option, versions, hardware, commit, date and the command. Its
name ends with a digest of the options, so that the same experiment has the same name wherever it is run; a file that
exists is left alone. `python results/page.py` makes docs/results.md of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedmate import storage
from fedmate.errors import UserError
from fedmate.experiment.compose import Request, compose
from fedmate.experiment.record import Record, runs_of

PARTS = ("accuracy", "headline", "loss", "bytes_up", "bytes_down", "seconds", "partition_sha256")
UNSAID = ("checkpoint_every",)
"""Options that change nothing in the figures."""
ELSEWHERE = (*UNSAID, "backend", "device", "chunk_size")
"""Those that only say where and how it was run."""


def condense(record: Record, note: str) -> dict[str, Any]:
    """Return what is kept of a finished run."""
    summary, config = record.summary, record.config
    ended = datetime.fromtimestamp((record.folder / "summary.json").stat().st_mtime, UTC)
    return {
        "date": f"{ended:%Y-%m-%d}",
        "command": command_of(config),
        "note": note,
        "environment": record.environment,
        "config": config,
        "summary": {part: summary[part] for part in PARTS},
    }


def command_of(config: dict[str, Any]) -> str:
    """Return the command that runs an experiment: its data set, its method, and what differs from their defaults."""
    dataset, method = config["dataset"]["name"], config["method"]["name"]
    usual = tomllib.loads(compose(Request(methods=[method], dataset=dataset))[0].to_toml())
    words = ["fedmate", "run", "--dataset", dataset, "--method", method]
    for key, value in _flat(config).items():
        if key not in UNSAID and _flat(usual).get(key) != value:
            words += ["--set", f"{key}={_word(value)}"]
    return shlex.join(words)


def name_of(config: dict[str, Any]) -> str:
    """Return what a run's file is called: what a reader looks for, and a digest of all there is to say."""
    partition = config["partition"]
    kind = f"s{partition['share']:g}" if partition["name"] == "share" else partition["name"]
    usual = _flat(tomllib.loads(compose(Request(methods=[config["method"]["name"]]))[0].to_toml()))
    own = [f"{key}_{_word(value)}" for key, value in config["method"].items() if usual[f"method.{key}"] != value]
    said = json.dumps({key: value for key, value in _flat(config).items() if key not in ELSEWHERE}, sort_keys=True)
    digest = hashlib.sha256(said.encode()).hexdigest()[:8]
    return "-".join([config["method"]["name"], *own, kind, f"seed{config['seed']}", digest])


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def main() -> None:
    """Keep the runs that the command names."""
    parser = argparse.ArgumentParser(description="Keep what finished runs found as small files.")
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs or comparisons")
    parser.add_argument("--note", default="", help="what a reader must know")
    words = parser.parse_args()
    try:
        records = [Record(run) for folder in words.runs for run in runs_of(folder)]
        contents = {name_of(record.config): condense(record, words.note) for record in records}
    except UserError as error:
        sys.exit(f"Error: {error}")
    storage.make_folder(words.folder)
    for name, content in contents.items():
        path = words.folder / f"{name}.json"
        if path.exists():
            print(f"{path} exists: left alone")
            continue
        storage.write_new(path, (json.dumps(content, indent=1) + "\n").encode())
        print(path)


if __name__ == "__main__":
    main()
