"""From files to a ready federation: seconds and memory, the first time and from the cache.

Claim: CIFAR-10 from the official archive to a federation of 20 x 600 images takes under 10 s the first time and under
1 s from the cache, and never more than 1 GB of memory, Python and torch included. Each measurement is a process of its
own; imports are not counted. The archive is `cifar-10-binary.tar.gz` in the folder, or one of random bytes.

Hardware: 2 CPU cores (x86-64), Python 3.11, torch 2.13.0; n = 3.

    python -m benchmarks.data_ready FOLDER
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np

from fedmate.experiment.inputs import UserInputs, make_federation, split_samples
from fedmate.experiment.prepare import Request, compose

REPEATS, ARCHIVE = 3, "cifar-10-binary.tar.gz"


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


def main(folder: Path) -> None:
    """Print a line per measurement."""
    if not (folder / ARCHIVE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_archive(folder / ARCHIVE)
    for kind in ("first", "cached"):
        for _ in range(REPEATS):
            for path in folder.glob("cached/*") if kind == "first" else ():
                path.unlink()
            command = [sys.executable, "-m", "benchmarks.data_ready", str(folder), "load"]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"{kind:7} {found['seconds']:6.2f} s   peak {found['peak_mb']:6.0f} MB", flush=True)


if __name__ == "__main__":
    (load if sys.argv[2:] else main)(Path(sys.argv[1]))
