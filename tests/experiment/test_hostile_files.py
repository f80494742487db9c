"""Foreign files: an experiment, a record or a run's folder that somebody else wrote gets a sentence, and no more."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmate
from fedmate.data import sources
from fedmate.errors import UserError
from fedmate.experiment.config import ConfigSource, load_file, resolve
from fedmate.experiment.prepare import Request, new_runs
from fedmate.experiment.record import Record
from fedmate.experiment.sample_files import read_array

SETTINGS: dict[str, Any] = {"rounds": 1, "partition.clients": 2, "partition.examples": 5}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fedmate.run(method="local", set=SETTINGS, out=folder)
    return folder


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run before its first round."""
    values = {"rounds": 1, "partition": {"clients": 2, "examples": 5}}
    with new_runs(Request(methods=["fedavg"], settings=ConfigSource("set", values)), tmp_path / "run"):
        return tmp_path / "run"


@pytest.mark.parametrize("name", ["rounds.csv", "summary.json.new", "checkpoint/lock", "diagnostics"])
def test_resume_does_not_follow_links(stopped: Path, tmp_path: Path, name: str) -> None:
    folder, file = tmp_path / "victim", tmp_path / "victim" / "authorized_keys"
    folder.mkdir()
    file.write_bytes(b"mine\n")
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).symlink_to(folder if name == "diagnostics" else file)
    with pytest.raises(UserError) as caught:
        fedmate.run(resume=stopped)
    assert str(caught.value).startswith(f"`{stopped / name}` is a link; replace it by the file or folder it names")
    assert [path.read_bytes() for path in folder.iterdir()] == [b"mine\n"]


def test_resume_does_not_follow_a_link_to_another_run(stopped: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "comparison.json").write_text(json.dumps({"runs": ["fedavg"]}), encoding="utf-8")
    (hostile / "fedavg").symlink_to(stopped)
    with pytest.raises(UserError, match=r"fedavg` is a link; "):
        fedmate.compare(resume=hostile)
    assert not Record(stopped).finished


def test_a_folder_that_is_a_link_itself_is_resumed(stopped: Path, tmp_path: Path) -> None:
    """A user's own link, to a larger disk for example."""
    (tmp_path / "link").symlink_to(stopped)
    assert fedmate.run(resume=tmp_path / "link").finished


@pytest.mark.parametrize(
    ("text", "found"),
    [("a = " + "[" * 20_000, "is not valid TOML: maximum recursion"), ("method.name = nan", r"^`method\.name` in ")],
    ids=["deep", "nan"],
)
def test_experiments_that_make_no_sense(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "odd.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=found):
        resolve([load_file(tmp_path / "odd.toml")])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_named_pipe_is_no_experiment(tmp_path: Path) -> None:
    """Nothing ever comes out of it."""
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    # Who waits for it is let go, and then finds an empty file.
    timer = threading.Timer(20, lambda: pipe.write_text(""))
    timer.daemon = True
    timer.start()
    with pytest.raises(UserError, match=r"pipe\.toml` is a pipe, not a file; give an experiment's TOML file\."):
        load_file(pipe)
    timer.cancel()


def test_an_archive_of_arrays_that_expands_without_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LARGEST", 2**20)
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros(2**22, np.uint8))
    with pytest.raises(UserError, match=r"bomb\.npz` is not a file of .* \(it expands to 4,194,.* bytes\)"):
        read_array(path)


@pytest.mark.parametrize("wrong", [{"accuracy": {"pre": [1]}}, {"headline": []}])
def test_a_summary_that_makes_no_sense(finished: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | wrong), encoding="utf-8")
    with pytest.raises(UserError, match=r"summary\.json` cannot be read"):
        _ = Record(tmp_path / "run").summary


def test_a_table_whose_rows_have_another_length(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "rounds.csv"
    path.write_text(path.read_text(encoding="utf-8") + "1\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"rounds\.csv` cannot be read \(row 4 has another length than the first\)"):
        _ = Record(tmp_path / "run").rounds
