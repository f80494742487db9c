"""How long partitions take to split a large data set among many clients.

Claim: every partition splits 1,000,000 samples of 10 or 100 classes among 10,000 clients in under two seconds, and
says as quickly what would fit if there are too few samples of a class.
Hardware: 2 CPU cores (one is used), Python 3.11, numpy 2.4.6. CPU seconds, not wall time; n = 3, best of them.

    python -m benchmarks.partition_speed
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedmate.data.partitions import PARTITIONS, PartitionInput
from fedmate.errors import UserError

SAMPLES, CLIENTS, REPEATS = 1_000_000, 10_000, 3

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


def measure(name: str, options: dict[str, Any], classes: int) -> tuple[float, str]:
    """Return the CPU seconds it takes, and what comes of it."""
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


def main() -> None:
    """Print a row per partition and number of classes."""
    print("| partition | options | classes | CPU s | clients get |")
    print("|---|---|---|---|---|")
    for name, options in CASES:
        for classes in (10, 100):
            taken, outcome = min(measure(name, options, classes) for _ in range(REPEATS))
            words = ", ".join(f"{key} = {value}" for key, value in options.items())
            print(f"| {name} | {words} | {classes} | {taken:.2f} | {outcome} |")


if __name__ == "__main__":
    main()
