"""What is kept of a run has all its figures, and a name that depends on what was run and on nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedmate
from fedmate.errors import UserError
from fedmate.experiment.compose import Request, compose
from fedmate.experiment.config import nest
from fedmate.experiment.jobs import stored_experiment
from fedmate.experiment.record import Record
from fedmate.reproduce.kept import Kept, command_of, condense, name_of, rounded

SETTINGS = {"rounds": 3, "eval_every": 2, "partition.clients": 3, "partition.examples": 20, "training.epochs": 1}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return fedmate.run(method="fedmate", set=SETTINGS, out=tmp_path_factory.mktemp("kept") / "run", progress=False)


def named(**more: object) -> str:
    settings = nest("--set", [*SETTINGS.items(), *((key.replace("__", "."), value) for key, value in more.items())])
    return name_of(compose(Request(methods=["fedmate"], settings=settings))[0])


def test_a_name_says_what_was_run(record: Record) -> None:
    name = name_of(stored_experiment(record.folder))
    assert name == named()
    assert name.startswith("fedmate-digits-s10-seed0-")
    assert named(method__classifier_epochs=3).startswith("fedmate-classifier_epochs_3-digits-")


def test_a_name_does_not_depend_on_where_and_how_it_was_run(record: Record) -> None:
    elsewhere = {"device": "cpu", "backend": "sequential", "chunk_size": 2, "checkpoint_every": 1}
    assert named(**elsewhere) == named()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"rounds": 4},
        {"evaluate_on": "validation"},
        {"precision": "strict"},
        {"partition__share": 70},
        {"training__momentum": 0.0},
        {"method__classifier_learning_rate": 0.5},
    ],
)
def test_a_name_depends_on_what_figures_depend_on(change: dict[str, object]) -> None:
    assert named(**change) != named()


def test_the_command_repeats_the_run(record: Record) -> None:
    words = command_of(record.config).split()
    assert words[:6] == ["fedmate", "run", "--dataset", "digits", "--method", "fedmate"]
    settings = [word for word in words[6:] if word != "--set"]
    assert {"rounds=3", "partition.examples=20", "training.epochs=1"} <= set(settings)
    assert not any(word.startswith("checkpoint_every") for word in settings)


def test_what_is_kept_has_the_figures_of_the_record(record: Record, tmp_path: Path) -> None:
    content = json.loads(json.dumps(condense(record)))
    path = tmp_path / "cell.json"
    path.write_text(json.dumps(content))
    kept = Kept.read(path)
    assert kept.accuracy("pre", "balanced") == pytest.approx(record.accuracy("pre", "balanced"), rel=1e-5)
    assert kept.accuracy("nothing", "balanced") is None
    assert kept.views[:3] == ["pre", "post", "global"]
    assert [point["round"] for point in content["curve"]] == [2, 3]
    last = record.metrics[-1]
    assert content["curve"][-1]["accuracy"]["global"]["own"] == rounded(last["accuracy"]["global"]["own"]["mean"])
    assert content["classes"]["pre"] == pytest.approx(last["accuracy"]["pre"]["balanced"]["per_class"], rel=1e-5)
    losses = [row["loss_before"] for row in record.rounds if row["round"] == 2]
    assert content["losses"]["before"][1] == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert len(content["losses"]["after"]) == 3
    assert [sum(row) for row in content["holdings"]] == [20, 20, 20]
    assert content["summary"]["partition_sha256"] == record.summary["partition_sha256"]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 1}', '{"format": 1, "config": {}, "summary": {}}', "[" * 100_000]
)
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"x\.json. cannot be read"):
        Kept.read(tmp_path / "x.json")


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"format": 9}')
    with pytest.raises(UserError, match="format 9"):
        Kept.read(tmp_path / "x.json")


def test_numbers_keep_six_digits() -> None:
    assert rounded({"a": [1 / 3, 12345678.9, float("nan"), None, "x", 7]}) == {
        "a": [0.333333, 12345700.0, None, None, "x", 7]
    }
