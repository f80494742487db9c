"""From files to a ready federation: seconds and memory, the first time and from the cache.

Claim: CIFAR-10 from the official archive to a federation of 20 x 600 images takes under 10 s the first time and under
1 s from the cache, and never more than 1 GB of memory, Python and torch included.

The archive is written by this script in the official form (six pickled batches in `cifar-10-python.tar.gz`) from a
prepared `cifar10.npz`, or from random bytes if none is given, which do not compress and so take longer to read. Each
measurement is a process of its own; imports are told apart, for they cost the same whatever is loaded.

Hardware: 2 CPU cores (x86-64), Python 3.11, torch 2.13.0; n = 3. First 4.2 to 4.5 s with a peak of 796 MB, from the
cache 0.10 to 0.13 s with 517 MB.

    python benchmarks/data_ready.py .data/cifar10.npz
"""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

REPEATS = 3

PROGRAM = """
import json, resource, sys, time
from pathlib import Path
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.partitioning import split_samples, make_federation
from fedmate.experiment.user_inputs import UserInputs
import sklearn.datasets, torch
request = Request(dataset="cifar10", inputs=UserInputs(folder=Path(sys.argv[1])))
experiment = compose(request)[0].with_general(device="cpu")
start = time.perf_counter()
federation = make_federation(experiment, split_samples(experiment, request.inputs))
seconds = time.perf_counter() - start
assert sum(len(data.y) for data in federation.clients) == 12000
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "peak_mb": peak}))
"""


def write_archive(folder: Path, prepared: Path | None) -> None:
    """Write CIFAR-10 as it is published."""
    arrays = np.load(prepared) if prepared else _random()
    images = {part: np.moveaxis(arrays[f"{part}_x"], -1, 1).reshape(-1, 3072) for part in ("train", "test")}
    batches = {"test_batch": (images["test"], arrays["test_y"])}
    for i in range(5):
        rows = slice(10000 * i, 10000 * (i + 1))
        batches[f"data_batch_{i + 1}"] = (images["train"][rows], arrays["train_y"][rows])
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name, (x, y) in sorted(batches.items()):
            data = pickle.dumps({b"data": np.ascontiguousarray(x), b"labels": [int(label) for label in y]}, protocol=2)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _random() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    sizes = {"train": 50000, "test": 10000}
    images = {f"{part}_x": rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for part, n in sizes.items()}
    return images | {f"{part}_y": np.arange(n) % 10 for part, n in sizes.items()}


def measure(folder: Path) -> dict[str, float]:
    """Load once, in a process of its own."""
    answer = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def main() -> None:
    """Print a line per measurement."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        write_archive(folder, Path(sys.argv[1]) if len(sys.argv) > 1 else None)
        for kind in ("first", "cached"):
            for _ in range(REPEATS):
                if kind == "first":
                    for path in folder.glob("cached/*"):
                        path.unlink()
                found = measure(folder)
                print(f"{kind:7} {found['seconds']:6.2f} s   peak {found['peak_mb']:6.0f} MB", flush=True)


if __name__ == "__main__":
    main()
