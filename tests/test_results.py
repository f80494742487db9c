"""The page of results: made of records alone, and not older than they are."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedmate.api import run
from fedmate.experiment.compose import Request, compose
from fedmate.experiment.config import parse_set
from fedmate.experiment.record import Record

RESULTS = Path(__file__).parents[1] / "results"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"results_{name}", RESULTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_records_say() -> None:
    page = script("page")
    assert page.PAGE.read_text(encoding="utf-8") == page.make_page()


def test_every_kept_command_is_the_experiment_that_was_run() -> None:
    keep = script("keep")
    for path in sorted(RESULTS.glob("*/*.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert path.stem == keep.name_of(kept["config"])
        assert kept["command"] == keep.command_of(kept["config"])


def test_a_run_is_kept_with_the_command_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"rounds": 1, "partition.clients": 2, "partition.share": 30, "method.classifier_epochs": 2, "seed": 4}
    run(method="fedrep", set=settings, out=tmp_path / "run")
    keep = script("keep")
    monkeypatch.setattr(sys, "argv", ["keep.py", str(tmp_path / "kept"), str(tmp_path / "run"), "--note", "small"])
    keep.main()
    (path,) = (tmp_path / "kept").iterdir()
    assert path.name.startswith("fedrep-classifier_epochs_2-s30-seed4-")
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["note"] == "small"
    assert kept["summary"]["accuracy"]["pre"]["own"]["mean"] == Record(tmp_path / "run").accuracy("pre", "own")

    words = shlex.split(kept["command"])
    assert words[:6] == ["fedmate", "run", "--dataset", "digits", "--method", "fedrep"]
    again = compose(Request(methods=["fedrep"], dataset="digits", settings=parse_set(words[7::2])))[0]
    assert again.to_toml() == (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")

    # Whatever else is set, the name is another one; where it was run does not matter.
    assert keep.name_of(kept["config"] | {"rounds": 2}) != path.stem
    assert keep.name_of(kept["config"] | {"device": "cuda", "backend": "sequential"}) == path.stem

    path.write_text("mine", encoding="utf-8")
    keep.main()
    assert path.read_text(encoding="utf-8") == "mine"
    assert "left alone" in capsys.readouterr().out


def test_what_cannot_be_kept_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["keep.py", str(tmp_path / "kept"), str(tmp_path / "missing")])
    with pytest.raises(SystemExit, match=r"^Error: `.*missing` holds no record"):
        script("keep").main()
    assert not (tmp_path / "kept").exists()


def test_a_run_in_another_setting_does_not_slip_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = script("page")
    known = sorted((RESULTS / "cifar10").glob("fed*.json"))[:2]
    (tmp_path / "cifar10").mkdir()
    for path in known:
        (tmp_path / "cifar10" / path.name).write_bytes(path.read_bytes())
    content = json.loads(known[1].read_text(encoding="utf-8"))
    content["config"]["rounds"] = 1
    (tmp_path / "cifar10" / known[1].name).write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match="another setting"):
        page.make_page()
