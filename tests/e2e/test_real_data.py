"""A round of FedMate on real data sets, where they are at hand: `FEDMATE_DATA`, or `.data` beside the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fedmate

FOLDER = Path(os.environ.get("FEDMATE_DATA") or Path(__file__).parents[2] / ".data")
CASES = {"cifar10": (), "cifar100": (), "emnist": ("dataset.split=balanced",), "fashion_mnist": ()}


@pytest.mark.data
@pytest.mark.parametrize("name", CASES)
def test_a_round_of_fedmate(name: str, tmp_path: Path) -> None:
    if not (FOLDER / f"{name}.npz").exists():
        pytest.skip(f"{name}.npz is not in FEDMATE_DATA")
    # Two clients of two classes' worth: this is about the way from files to figures, not about accuracy.
    settings: dict[str, object] = {"rounds": 1, "partition.clients": 2, "partition.examples": 100, "training.epochs": 1}
    settings |= dict(assignment.split("=") for assignment in CASES[name])
    record = fedmate.run(method="fedmate", dataset=name, set=settings, data_dir=FOLDER, out=tmp_path / "run")
    summary = record.summary
    assert summary["left_out"] == 0
    assert all(0 <= summary["accuracy"][view]["balanced"]["mean"] <= 100 for view in ("pre", "post", "global"))
    # One epoch each of classifier and extractor brings the loss on a client's own samples down.
    assert summary["loss"]["after"] < summary["loss"]["before"]
