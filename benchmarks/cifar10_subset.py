"""Make the CIFAR-10 that "the same accuracy" in docs/performance.md was run on: 13,600 training and 6,000 test images.

    fedmate data cifar10
    python benchmarks/cifar10_subset.py small
    fedmate run --data-dir small --dataset cifar10 --method fedavg --set rounds=200

`cifar10_images.json` says which images were taken, a bit for each in the official order.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmate import storage
from fedmate.data import DATASETS
from fedmate.data.sources import data_folder
from fedmate.errors import UserError

CHOSEN = Path(__file__).with_name("cifar10_images.json")


def main(folder: Path, source: Path | None = None) -> None:
    """Write the chosen images of the data set in `source` into a new file in `folder`."""
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8"))
    arrays, small = DATASETS["cifar10"]().load(data_folder(source)), dict[str, NDArray[Any]]()
    for part, samples in (("train", arrays.train), ("test", arrays.test)):
        assert samples is not None
        bits = np.unpackbits(np.frombuffer(base64.b64decode(chosen[part]), np.uint8))
        taken = np.flatnonzero(bits[: len(samples.y)])
        small |= {f"{part}_x": samples.x[taken].transpose(0, 2, 3, 1), f"{part}_y": samples.y[taken]}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **small)
    storage.make_folder(folder)
    storage.write_new(folder / "cifar10.npz", content.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the part of CIFAR-10 that docs/performance.md was run on.")
    parser.add_argument("folder", type=Path, help="for the new file `cifar10.npz`")
    parser.add_argument("source", type=Path, nargs="?", help="folder of CIFAR-10, if not your cache")
    asked = parser.parse_args()
    try:
        main(asked.folder, asked.source)
    except (UserError, FileExistsError) as error:
        sys.exit(str(error))
