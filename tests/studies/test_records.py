"""Finished runs are recognised, added once, and never lost."""

from __future__ import annotations

import json
import multiprocessing
import tomllib
from pathlib import Path

import pytest
from tests.studies.small import Run, study_of, summary_of

from fedmate import storage
from fedmate.errors import UserError
from fedmate.experiment.config import parse_set, resolve
from fedmate.studies.records import Records, RunSummary, name_of, run_name
from fedmate.studies.study import Choice


def summaries(folder: Path, mean: float = 50.0) -> list[RunSummary]:
    runs = {run.name: run for run in study_of(folder).runs(Choice())}
    return [summary_of(run, Run({"pre": (mean, 60.0)})) for run in runs.values()]


def name(*settings: str) -> str:
    return run_name(resolve([parse_set(settings)]))


def test_a_name_holds_what_matters_and_not_where_a_run_is_run() -> None:
    same = ("backend=vectorised", "device=cpu", "checkpoint_every=3", "chunk_size=2")
    assert {name(), *map(name, same)} == {name()}
    others = ("seed=1", "rounds=7", "dtype=float64", "partition.share=11", "training.epochs=2")
    assert len({name(), *map(name, others)}) == 6


def test_an_option_at_its_default_is_the_same_as_none() -> None:
    config = tomllib.loads(resolve([parse_set(["method.name=fedavg"])]).to_toml())
    shorter = {key: value for key, value in config.items() if key != "server"}
    assert name_of(shorter) == name_of(config)
    assert name_of({**config, "server": {"momentum": 0}}) == name_of(config)
    assert name_of({**config, "server": {"momentum": 0.5}}) != name_of(config)


def test_records_are_added_once_and_found_by_name(tmp_path: Path) -> None:
    records, found = Records(tmp_path / "out", "mine"), summaries(tmp_path)
    assert records.find(found[0].name) is None
    merged = records.add(found[:3])
    assert merged.new == [one.name for one in found[:3]]
    before = records.path.read_bytes()
    assert records.add(found[:1]).same == [found[0].name]
    assert records.path.read_bytes() == before
    again = Records(tmp_path / "out", "another")
    again.add(found[3:])
    # All files of the folder are read together, also those of other processes.
    assert {*records.all()} == {one.name for one in found}
    one = records.find(found[0].name)
    assert one is not None
    assert one.accuracy("pre", "own") == 60.0
    assert one.accuracy("post", "own") is None


def test_a_run_with_other_figures_is_not_replaced(tmp_path: Path) -> None:
    ours, theirs = Records(tmp_path / "a", "mine"), Records(tmp_path / "b", "theirs")
    ours.add(summaries(tmp_path)[:2])
    theirs.add([summaries(tmp_path, 40.0)[0], *summaries(tmp_path)[1:]])
    before = ours.path.read_bytes()
    merged = ours.merge(theirs.folder)
    assert [len(kind) for kind in merged] == [2, 1, 1]
    assert ours.path.read_bytes().startswith(before)
    with pytest.raises(UserError, match="holds no records"):
        ours.merge(tmp_path / "nowhere")


def test_a_kill_while_a_record_is_added_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, found = Records(tmp_path, "mine"), summaries(tmp_path)
    records.add(found[:1])

    def killed(path: Path, data: bytes) -> None:
        path.with_name("half").write_bytes(data[: len(data) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            records.add(found[1:])
    assert [*Records(tmp_path, "mine").all()] == [found[0].name]
    records.add(found[1:])
    assert len(records.all()) == len(found)


def add(folder: Path, number: int) -> None:
    records = Records(folder, "mine")
    for one in summaries(folder / str(number)):
        content = json.loads(json.dumps(one.content))
        content["config"]["seed"] = number
        records.add([RunSummary(content)])


def test_processes_that_add_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(add, [(tmp_path, number) for number in range(2)], chunksize=1)
    assert len(Records(tmp_path, "mine").all()) == 2 * len(summaries(tmp_path))
