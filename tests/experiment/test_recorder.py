"""A record is written once, and goes back to an earlier round."""

from __future__ import annotations

import hashlib
import math
import platform
import re
from pathlib import Path

import pytest
import torch

import fedmate
from fedmate import storage
from fedmate.errors import UserError
from fedmate.experiment.prepare import environment
from fedmate.experiment.record import Record, Recorder


def begun(folder: Path) -> Recorder:
    with storage.staged(folder) as stage:
        Recorder.begin(stage, "", "{}", {"torch": "2"})
    return Recorder(folder)


def test_the_environment_names_versions_machine_and_commit() -> None:
    found = environment()
    assert found["fedmate"] == fedmate.__version__
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert {"numpy", "scikit-learn", "cuda", "gpu", "machine", "system"} <= set(found)
    checkout = (Path(fedmate.__file__).parents[2] / ".git").exists()
    assert found["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found["commit"])
    assert checkout == (found["commit"] is not None)


def test_what_json_cannot_hold_is_never_written(tmp_path: Path) -> None:
    record = begun(tmp_path / "run")
    record.add_metrics({"round": 1})
    with pytest.raises(ValueError, match="JSON"):
        record.add_metrics({"round": 2, "loss": math.nan})
    assert Record(tmp_path / "run").metrics == [{"round": 1}]


def test_the_end_may_come_twice_but_not_over_somebodys_file(tmp_path: Path) -> None:
    record = begun(tmp_path / "run")
    for _ in range(2):
        record.finish({"rounds": 2}, [{"client": 0}])
    (tmp_path / "run" / "clients.csv").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"clients\.csv` is in the way, and is not this run's; move it"):
        record.finish({"rounds": 2}, [{"client": 0}])
    assert (tmp_path / "run" / "clients.csv").read_text(encoding="utf-8") == "mine"


# -------------------- going back


def grown(folder: Path) -> Recorder:
    """Return the record of two rounds, of which the second is evaluated."""
    record = begun(folder)
    record.add_round([{"round": 1, "client": 0}])
    record.add_round([{"round": 2, "client": 0}])
    record.add_metrics({"round": 2})
    record.add_diagnostics(2, {"mask": torch.ones(2)})
    return record


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_going_back_drops_what_came_after(tmp_path: Path) -> None:
    record = grown(tmp_path / "run")
    files, before = record.files(), contents(tmp_path / "run")
    texts = {"rounds.csv": b"round,client\n1,0\n2,0\n", "metrics.jsonl": b'{"round": 2}\n'}
    assert files == {
        name: {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()} for name, text in texts.items()
    }
    mine = tmp_path / "run" / "diagnostics" / "round_7.safetensors"
    mine.write_bytes(b"mine")
    before["diagnostics/round_7.safetensors"] = b"mine"
    record.add_round([{"round": 3, "client": 0}])
    record.add_metrics({"round": 3})
    for number in (3, 4, 1_000_000):
        record.add_diagnostics(number, {"mask": torch.ones(2)})
    storage.append(tmp_path / "run" / "rounds.csv", b"4,")
    record.rewind(2, files)
    assert contents(tmp_path / "run") == before
    Recorder(tmp_path / "run").rewind(2, files)
    assert contents(tmp_path / "run") == before
    assert record.files() == files
    # What follows continues it: a header is there already.
    record.add_round([{"round": 3, "client": 1}])
    assert [row["client"] for row in Record(tmp_path / "run").rounds] == [0, 0, 1]


def test_a_changed_byte_is_noticed_before_anything_is_cut(tmp_path: Path) -> None:
    record = grown(tmp_path / "run")
    files, path = record.files(), tmp_path / "run" / "metrics.jsonl"
    record.add_round([{"round": 3, "client": 0}])
    path.write_bytes(path.read_bytes().replace(b"2", b"9", 1))
    before = contents(tmp_path / "run")
    with pytest.raises(UserError, match="is damaged: it does not begin with"):
        Recorder(tmp_path / "run").rewind(1, files)
    assert contents(tmp_path / "run") == before
