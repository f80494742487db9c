"""What a checkpoint costs.

Claim: a checkpoint after every round takes under 5 % of the time of a CIFAR-sized round of 20 clients on 2 CPU cores;
with 10,000 clients of 430 kB each, a round that touches 100 of them writes those 100 and no other.
Hardware, versions and n are printed with the figures.

    python benchmarks/checkpoint_cost.py round           20 clients x 600 samples, FedMate, 3 rounds
    python benchmarks/checkpoint_cost.py many FOLDER     10,000 clients; needs 4.4 GB in FOLDER, which must not exist
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedmate
from fedmate.backends.sequential import available_cores
from fedmate.core import Tree
from fedmate.experiment.checkpoint import Checkpoint, RunState

CLIENTS, TOUCHED, STATE_BYTES = 10_000, 100, 430_000


def measure_round() -> dict[str, Any]:
    """Time rounds and the checkpoints after them; the samples are noise of CIFAR's size."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((12_500, 3, 32, 32), dtype=np.float32), rng.integers(0, 10, 12_500)
    saves: list[float] = []
    save = Checkpoint.save

    def timed(self: Checkpoint, state: RunState, server: Tree, clients: Mapping[int, tuple[int, Tree]]) -> None:
        start = time.perf_counter()
        save(self, state, server, clients)
        saves.append(time.perf_counter() - start)

    Checkpoint.save = timed  # type: ignore[method-assign]
    settings = {
        "rounds": 3,
        "eval_every": 3,
        "checkpoint_every": 1,
        "model.name": "cifar_cnn",
        "partition.name": "iid",
        "partition.examples": 600,
    }
    with tempfile.TemporaryDirectory(dir=".") as folder:
        data = fedmate.Pool(x, y)
        start = time.perf_counter()
        record = fedmate.run(method="fedmate", data=data, set=settings, out=Path(folder) / "run", progress=True)
        total = time.perf_counter() - start
        size = sum(path.stat().st_size for path in (record.folder / "checkpoint").rglob("*") if path.is_file())
    # Of 500 test samples only, which is little beside the training.
    seconds = (total - sum(saves)) / 3
    return {
        "what": "FedMate, 20 clients x 600 samples, cifar_cnn, 3 rounds",
        "seconds_per_round": seconds,
        "seconds_per_checkpoint": statistics.mean(saves),
        "checkpoint_bytes": size,
        "share_of_a_round": statistics.mean(saves) / seconds,
    }


def measure_many(folder: Path) -> dict[str, Any]:
    """Save all clients once, then a round that touches a hundred of them."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("", encoding="utf-8")
    Checkpoint.create(folder, "", CLIENTS, {}, {})
    checkpoint, server = Checkpoint(folder), {"weight": torch.zeros(STATE_BYTES // 4)}
    figures: dict[str, Any] = {"what": f"{CLIENTS} clients x {STATE_BYTES} bytes"}
    before: set[int] = set()
    for done, touched in ((1, range(CLIENTS)), (2, range(0, CLIENTS, CLIENTS // TOUCHED))):
        # Numbers that are one number many times take no memory.
        weights = {i: torch.tensor(float(i)).expand(STATE_BYTES // 4) for i in touched}
        states = {i: (done, {"classifier": {"weight": weight}}) for i, weight in weights.items()}
        start = time.perf_counter()
        checkpoint.save(RunState(done), server, states)
        seconds = time.perf_counter() - start
        files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_ino not in before]
        before |= {path.stat().st_ino for path in files}
        figures[f"round_{done}"] = {
            "client_files_written": sum(path.parent.name == "clients" for path in files),
            "bytes_written": sum(path.stat().st_size for path in files),
            "seconds": seconds,
        }
    return figures


def main() -> None:
    """Measure what the command asks for and print JSON."""
    parser = argparse.ArgumentParser(description="Measure what a checkpoint costs.")
    parser.add_argument("what", choices=("round", "many"), help="a round of 20 clients, or 10,000 clients in 4.4 GB")
    parser.add_argument("folder", type=Path, nargs="?", help="a new folder, for `many`")
    asked = parser.parse_args()
    if (asked.what == "many") is (asked.folder is None):
        parser.error("`many` needs a folder, `round` has none")
    torch.set_num_threads(1)
    figures = measure_round() if asked.folder is None else measure_many(asked.folder)
    machine = {"cores": available_cores(), "torch": torch.__version__, "python": platform.python_version()}
    print(json.dumps({**figures, **machine}, indent=2))


if __name__ == "__main__":
    main()
