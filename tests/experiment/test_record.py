"""A record is read as the run left it: finished, stopped, or torn in the middle of a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedmate.errors import UserError
from fedmate.experiment.record import Record, Recorder, runs_of

CONFIG = 'rounds = 4\n[dataset]\nname = "digits"\n[method]\nname = "fedper"\n'
SUMMARY = {
    "headline": {"view": "pre", "test": "balanced", "mean": 81.236},
    "accuracy": {
        "pre": {"balanced": {"mean": 81.236}, "own": {"mean": 60.5}},
        "post": {"balanced": {"mean": None}, "own": {"mean": 93.25}},
        "global": None,
    },
}


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    Recorder.begin(tmp_path / "run", CONFIG, "{}", {"torch": "2"})
    return Recorder(tmp_path / "run")


@pytest.fixture
def record(recorder: Recorder) -> Record:
    return Record(recorder.folder)


def test_what_is_not_finished_has_no_summary_and_says_how_to_get_one(record: Record) -> None:
    with pytest.raises(UserError) as caught:
        _ = record.summary
    assert str(caught.value) == (
        f"`{record.folder}` is not finished, so it has no summary; continue it with `fedmate run --resume "
        f"{record.folder}`, or in Python with `fedmate.run(resume=...)`."
    )


def test_accuracy_is_asked_by_view_and_test(recorder: Recorder, record: Record) -> None:
    recorder.finish(SUMMARY, [])
    assert record.accuracy() == 81.236
    assert record.accuracy(test="own") == 60.5
    assert record.accuracy("post", "own") == 93.25
    assert record.accuracy("post") is None
    assert record.accuracy("global") is None
    for arguments, sentence in (
        (("best",), "`view` is `best`; this run has `pre`, `post`, `global`."),
        (("pre", "mine"), "`test` is `mine`; this run has `balanced`, `own`."),
    ):
        with pytest.raises(UserError) as caught:
            record.accuracy(*arguments)
        assert str(caught.value) == sentence


@pytest.mark.parametrize("torn", [b"", b"{", b'{"round": 3, "loss": 1.5}'])
def test_a_torn_last_line_of_metrics_is_left_out(recorder: Recorder, record: Record, torn: bytes) -> None:
    rows: list[dict[str, Any]] = [{"round": 1, "loss": 2.5}, {"round": 2, "loss": None}]
    for row in rows:
        recorder.add_metrics(row)
    with (recorder.folder / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    assert record.metrics == rows


def test_a_line_that_is_damaged_in_the_middle_is_not_passed_over(recorder: Recorder, record: Record) -> None:
    (recorder.folder / "metrics.jsonl").write_text('{"round": 1}\n{"rou\n{"round": 3}\n', encoding="utf-8")
    with pytest.raises(UserError) as caught:
        _ = record.metrics
    assert f"`{recorder.folder / 'metrics.jsonl'}` cannot be read" in str(caught.value)


@pytest.mark.parametrize("name", ["config.toml", "environment.json", "summary.json"])
def test_a_file_that_cannot_be_read_is_named(recorder: Recorder, record: Record, name: str) -> None:
    recorder.finish(SUMMARY, [])
    attribute = name.partition(".")[0]
    assert getattr(record, attribute)
    (recorder.folder / name).write_bytes(b"\xff = {")
    with pytest.raises(UserError) as caught:
        getattr(record, attribute)
    assert str(caught.value).startswith(f"`{recorder.folder / name}` cannot be read (")


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "comparison.json").write_text(json.dumps({"runs": ["fedavg", "local"]}), encoding="utf-8")
    for name, hint in (
        ("nowhere", "it does not exist"),
        ("empty", "it is not a run's folder"),
        ("both", "it is a comparison of `fedavg`, `local`"),
    ):
        with pytest.raises(UserError) as caught:
            Record(tmp_path / name)
        assert str(caught.value) == f"`{tmp_path / name}` holds no record: {hint}; give the folder of a run."


def test_a_comparison_names_its_runs_and_nothing_outside_itself(tmp_path: Path) -> None:
    assert runs_of(tmp_path) == [tmp_path]
    names = ["local", "../fedavg", "/etc/fedper"]
    (tmp_path / "comparison.json").write_text(json.dumps({"runs": names}), encoding="utf-8")
    assert runs_of(tmp_path) == [tmp_path / "local", tmp_path / "fedavg", tmp_path / "fedper"]
