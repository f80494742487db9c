"""The page of results: made of what is kept alone, and not older than that."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
from fedmate.studies.kept import Kept, command_of, name_of

from fedmate.experiment.config import ConfigSource, resolve

RESULTS = Path(__file__).parents[1] / "paper"
CELLS = sorted((RESULTS / "cells").glob("*.json"))


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", RESULTS / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_and_its_pictures_are_what_is_kept(page: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(page.outcomes())
    # What there is to see is the same for the page and for its pictures, and takes long.
    shown = {id(outcome): page._shown(outcome) for outcome in found}
    monkeypatch.setattr(page, "_shown", lambda outcome: shown[id(outcome)])
    assert page.PAGE.read_text(encoding="utf-8") == page.make_page(found)
    assert page.RUNS.read_text(encoding="utf-8") == page.make_runs(found)
    pictures = {path.name for path in page.pictures(found)}
    assert pictures == {path.name for path in page.PICTURES.iterdir()}
    cells = {name for outcome in found for name in outcome.found}
    assert cells == {path.stem for path in CELLS}, "a cell that no table shows"
    for outcome in found:
        assert not any("different samples" in note for note in outcome.notes())


def test_every_cell_is_named_and_commanded_as_it_was_run() -> None:
    for path in CELLS:
        kept = Kept.read(path)
        experiment = resolve([ConfigSource(path.name, kept.config)])
        prefix = "" if kept.content["curve"] else "dealt-"
        assert path.stem == prefix + name_of(experiment)
        verb: Literal["run", "partition"] = "run" if kept.content["curve"] else "partition"
        assert kept.content["command"] == command_of(kept.content["config"], verb)
        assert kept.command == command_of(kept.config, verb)


def test_every_cell_says_where_it_comes_from() -> None:
    for path in CELLS:
        content = Kept.read(path).content
        assert content["date"] > "2026"
        assert content["environment"]["commit"]
        assert content["environment"]["torch"]
