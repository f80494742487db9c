"""How long data take: from an archive to a federation, and partitions of a large data set.

Claims: CIFAR-10 from the official archive to a federation of 20 x 600 images takes under 10 s the first time, under 1 s
from the cache, and never more than 1 GB of memory, Python and torch included. Every partition splits 1,000,000 samples
among 10,000 clients in under two seconds of CPU time. Hardware: 2 CPU cores (x86-64), Python 3.11, torch 2.13.0; n = 3.

    python -m benchmarks.data_speed ready FOLDER    `cifar-10-binary.tar.gz` in it, or one of random bytes
    python -m benchmarks.data_speed partitions
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedmate.data.partitions import PARTITIONS, PartitionInput
from fedmate.errors import UserError
from fedmate.experiment.inputs import UserInputs, make_federation, split_samples
from fedmate.experiment.prepare import Request, compose

REPEATS, ARCHIVE = 3, "cifar-10-binary.tar.gz"
SAMPLES, CLIENTS = 1_000_000, 10_000

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("iid", {}),
    ("share", {"examples": 50}),
    ("share", {"examples": 50, "groups": "random"}),
    ("share", {}),
    ("dirichlet", {}),
    ("dirichlet", {"alpha": 0.0001}),
    ("pathological", {}),
    ("natural", {}),
)
"""Partitions and options; of `share` without `examples` there are too few samples of some classes."""


def write_archive(path: Path) -> None:
    """Write random images in the official form: a byte for the label and 3,072 for the image."""
    draw = np.random.default_rng(0)
    with tarfile.open(path, "w:gz") as archive:
        for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
            rows = draw.integers(0, 256, (10_000, 3073), dtype=np.uint8)
            rows[:, 0] = np.arange(10_000) % 10
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = rows.size
            archive.addfile(member, io.BytesIO(rows.tobytes()))


def load(folder: Path) -> None:
    """Print the seconds and the peak memory of making a federation."""
    request = Request(dataset="cifar10", inputs=UserInputs(folder=folder))
    experiment = compose(request)[0].with_general(device="cpu")
    start = time.perf_counter()
    federation = make_federation(experiment, split_samples(experiment, request.inputs))
    seconds = time.perf_counter() - start
    assert sum(len(data.y) for data in federation.clients) == 12_000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


def ready(folder: Path) -> None:
    """Print a line for each load, each in a process of its own; imports are not counted."""
    if not (folder / ARCHIVE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_archive(folder / ARCHIVE)
    for kind in ["first"] * REPEATS + ["cached"] * REPEATS:
        for path in folder.glob("cached/*") if kind == "first" else ():
            path.unlink()
        command = [sys.executable, "-m", "benchmarks.data_speed", "load", str(folder)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{kind:7} {found['seconds']:6.2f} s   peak {found['peak_mb']:6.0f} MB", flush=True)


def split(name: str, options: dict[str, Any], classes: int) -> tuple[float, str]:
    """Return the CPU seconds that a partition takes, and what comes of it."""
    draw = np.random.default_rng(0)
    labels, owners = draw.integers(0, classes, SAMPLES), draw.integers(0, CLIENTS, SAMPLES)
    partition = PARTITIONS[name](clients=CLIENTS, **options)
    started = time.process_time()
    try:
        client_rows = partition.split(PartitionInput(labels, classes, np.random.default_rng(0), (), owners))
    except UserError as error:
        outcome = str(error).rpartition("; ")[2].rstrip(".")
    else:
        sizes = [len(rows) for rows in client_rows]
        outcome = f"{min(sizes)} to {max(sizes)} samples"
    return time.process_time() - started, outcome


def partitions() -> None:
    """Print a row for each partition and number of classes."""
    print("| partition | options | classes | CPU s | clients get |\n|---|---|---|---|---|")
    for name, options in CASES:
        for classes in (10, 100):
            taken, outcome = min(split(name, options, classes) for _ in range(REPEATS))
            words = ", ".join(f"{key} = {value}" for key, value in options.items())
            print(f"| {name} | {words} | {classes} | {taken:.2f} | {outcome} |")


def main() -> None:
    """Measure what the command asks for."""
    parser = argparse.ArgumentParser(description="Measure how long loading and partitioning data take.")
    parser.add_argument("what", choices=("ready", "load", "partitions"), help="`load` is one of the loads of `ready`")
    parser.add_argument("folder", type=Path, nargs="?", help="of the archive")
    asked = parser.parse_args()
    if asked.what == "partitions":
        partitions()
    elif asked.folder is None:
        parser.error(f"`{asked.what}` needs a folder")
    else:
        (load if asked.what == "load" else ready)(asked.folder)


if __name__ == "__main__":
    main()
