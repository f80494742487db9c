"""What is kept of a run has all its figures, and a name that depends on what was run and on nothing else."""

from __future__ import annotations

import copy
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fedmate.studies.kept import Kept, command_of, condense, digest_of, name_of, rounded

import fedmate
from fedmate.errors import UserError
from fedmate.experiment.config import ConfigSource, nest, resolve
from fedmate.experiment.prepare import Request, compose, stored_experiment
from fedmate.experiment.record import Record

SETTINGS = {"rounds": 3, "eval_every": 2, "partition.clients": 3, "partition.examples": 20, "training.epochs": 1}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return fedmate.run(method="fedmate", set=SETTINGS, out=tmp_path_factory.mktemp("kept") / "run", progress=False)


@pytest.fixture(scope="module")
def content(record: Record) -> dict[str, Any]:
    """What is kept of the run, as JSON has it."""
    kept: dict[str, Any] = json.loads(json.dumps(condense(record) | {"measures": ["flops"]}))
    return kept


def write(folder: Path, content: object, name: str | None = None) -> Path:
    path = folder / f"{name or named()}.json"
    path.write_text(json.dumps(content))
    return path


def named(**more: object) -> str:
    settings = nest("--set", [*SETTINGS.items(), *((key.replace("__", "."), value) for key, value in more.items())])
    return name_of(compose(Request(methods=["fedmate"], settings=settings))[0])


def test_a_name_says_what_was_run(record: Record) -> None:
    name = name_of(stored_experiment(record.folder))
    assert name == named()
    assert name.startswith("fedmate-digits-s10-seed0-")
    assert named(method__classifier_epochs=3).startswith("fedmate-classifier_epochs_3-digits-")


def test_runs_that_were_kept_before_an_option_existed_are_found_by_what_they_did(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """FedMate+ had no server momentum once: those cells are the ones that ask for none, under their old names."""
    options = compose(Request(methods=["fedmate_plus"]))[0].to_toml()
    now = tomllib.loads(options) | {"seed": 0}
    then = {**now, "method": {key: value for key, value in now["method"].items() if key != "server_momentum"}}
    without = {**then, "method": {**then["method"], "server_momentum": 0.0}}
    assert now["method"]["server_momentum"] == 0.5
    assert digest_of(then) == digest_of(without) != digest_of(now)
    cells = {
        name: name_of(resolve([ConfigSource(name, config)])) for name, config in (("now", now), ("without", without))
    }
    assert cells["without"].startswith("fedmate_plus-digits-")
    assert cells["now"].startswith("fedmate_plus-server_momentum_0.5-digits-")
    kept = Kept.read(write(tmp_path, {**content, "config": then, "command": "as it was"}, cells["without"]))
    assert kept.config == without
    assert kept.command.split()[-2:] == ["--set", "method.server_momentum=0.0"]
    assert Kept.read(write(tmp_path, {**content, "config": now, "command": "as is"}, cells["now"])).command == "as is"
    dealt = {**content, "config": then, "command": "fedmate partition --dataset digits"}
    assert Kept.read(write(tmp_path, dealt, cells["without"])).command.startswith("fedmate partition --dataset digits")


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
    kept = Kept.read(write(tmp_path, content))
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


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling link", "device"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.json"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "dangling link":
            path.symlink_to("nowhere")
        case "device":
            path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"x\.json. cannot be read"):
        Kept.read(path)


MEANS = {"mean": 50.0}
POINT = {"round": 1, "seconds": 1.0, "accuracy": {"pre": {"balanced": 50.0, "own": None}}}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("config", []),
        ("config.dataset", "digits"),
        ("config.partition", {}),
        ("config.method", {"name": 3}),
        ("config.rounds", "3"),
        ("config.rounds", True),
        ("config.seed", None),
        ("summary", None),
        ("summary.accuracy", 50.0),
        ("summary.accuracy", {"pre": 50.0}),
        ("summary.accuracy", {"pre": {}}),
        ("summary.accuracy", {"pre": {"balanced": MEANS}}),
        ("summary.accuracy", {"pre": {"balanced": MEANS, "own": 1.0}}),
        ("summary.accuracy", {"pre": {"balanced": MEANS, "own": {"mean": "50"}}}),
        ("summary.accuracy", {"pre": {"balanced": MEANS, "own": {"mean": float("nan")}}}),
        ("summary.accuracy", {"pre": {"balanced": MEANS, "own": {"mean": 10**400}}}),
        ("summary.partition_sha256", None),
        ("summary.diverged_in_round", "3"),
        ("summary.bytes_up_items", None),
        ("summary.bytes_down_items", {"model": "much"}),
        ("environment", "here"),
        ("holdings", []),
        ("holdings", [[]]),
        ("holdings", [[1, 2], [3]]),
        ("holdings", [[1, 2], [3, 4.5]]),
        ("holdings", {"0": [1]}),
        ("curve", {}),
        ("curve", [3]),
        ("curve", [{"round": 1}]),
        ("curve", [{**POINT, "round": 1.5}]),
        ("curve", [{**POINT, "seconds": None}]),
        ("curve", [{**POINT, "accuracy": [50.0]}]),
        ("curve", [{**POINT, "accuracy": {"pre": 50.0}}]),
        ("classes", {"pre": 50.0}),
        ("losses", {"before": ["1"]}),
        ("measures", "flops"),
        ("measures", [["flops"]]),
        ("flops_per_round", "many"),
        ("class_names", 10),
        ("data_sha256", ["ab"]),
    ],
)
def test_parts_of_another_shape_are_refused_in_a_sentence(
    tmp_path: Path, content: dict[str, Any], part: str, value: object
) -> None:
    changed = copy.deepcopy(content)
    *above, last = part.split(".")
    (changed[above[0]] if above else changed)[last] = value
    path = write(tmp_path, changed)
    with pytest.raises(UserError, match="cannot be read as what is kept of a run") as caught:
        Kept.read(path)
    assert str(caught.value).startswith(f"`{path}` ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "part", ["config.rounds", "summary.accuracy", "summary.partition_sha256", "environment", "holdings", "curve"]
)
def test_missing_parts_are_refused_in_a_sentence(tmp_path: Path, content: dict[str, Any], part: str) -> None:
    changed = copy.deepcopy(content)
    *above, last = part.split(".")
    del (changed[above[0]] if above else changed)[last]
    with pytest.raises(UserError, match="cannot be read as what is kept of a run"):
        Kept.read(write(tmp_path, changed))


@pytest.mark.parametrize("part", ["classes", "losses", "measures", "class_names", "data_sha256", "method_sha256"])
def test_parts_that_only_some_runs_have_may_be_missing(tmp_path: Path, content: dict[str, Any], part: str) -> None:
    kept = Kept.read(write(tmp_path, {key: value for key, value in content.items() if key != part}))
    assert kept.views


def test_views_and_means_may_be_missing(tmp_path: Path, content: dict[str, Any]) -> None:
    changed = copy.deepcopy(content)
    changed["summary"]["accuracy"] = {"pre": None, "post": {"balanced": {"mean": None}, "own": {"mean": 3}}}
    kept = Kept.read(write(tmp_path, changed))
    assert kept.views == ["post"]
    assert kept.accuracy("post", "balanced") is None
    assert kept.accuracy("post", "own") == 3


def test_a_file_that_holds_another_experiment_than_its_name_says_is_refused(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    for name in (named(seed=1), "copy", f"{named()} (1)"):
        path = write(tmp_path, content, name)
        with pytest.raises(UserError, match="holds another experiment than its name says") as caught:
            Kept.read(path)
        assert str(caught.value).startswith(f"`{path}` ")
    changed = copy.deepcopy(content)
    changed["config"]["training"]["learning_rate"] = 0.125
    with pytest.raises(UserError, match="holds another experiment"):
        Kept.read(write(tmp_path, changed))


def test_a_name_of_what_was_only_dealt_fits_too(tmp_path: Path, content: dict[str, Any]) -> None:
    assert Kept.read(write(tmp_path, content, f"dealt-{named()}")).name == f"dealt-{named()}"


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"format": 9}')
    with pytest.raises(UserError, match="format 9"):
        Kept.read(tmp_path / "x.json")


def test_numbers_keep_six_digits() -> None:
    assert rounded({"a": [1 / 3, 12345678.9, float("nan"), None, "x", 7]}) == {
        "a": [0.333333, 12345700.0, None, None, "x", 7]
    }
