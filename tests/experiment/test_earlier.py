"""Runs from before an option existed are what they were, wherever they are met."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedmate.experiment.compose import Request, compose
from fedmate.experiment.config import General, Layer, Values, load_file, parse_set
from fedmate.experiment.earlier import as_it_was, completed, options_since
from fedmate.experiment.jobs import started


def in_full(method: str = "fedmate_plus") -> Values:
    return tomllib.loads(compose(Request(methods=[method]))[0].to_toml())


def without(values: Mapping[str, Any], section: str, *keys: str) -> Values:
    return {**values, section: {key: value for key, value in values[section].items() if key not in keys}}


OLD = without(in_full(), "method", "server_momentum")


def test_what_came_later_is_known_by_section() -> None:
    since = options_since(in_full())
    assert since["method.server_momentum"] == 0.0, "FedMate+ has 0.5 today"
    assert (since["min_clients"], since["patience"]) == (General().min_clients, General().patience)
    assert "method.centre_weight" not in since
    assert not [key for key in options_since({"method": {"name": "nobody's"}}) if key.startswith("method.")]


def test_what_a_run_did_not_have_is_added_and_what_it_says_stays() -> None:
    old = {key: value for key, value in OLD.items() if key != "patience"} | {"min_clients": 3}
    found = completed(old)
    assert (found["method"]["server_momentum"], found["patience"], found["min_clients"]) == (0.0, 600.0, 3)
    assert "server_momentum" not in old["method"], "what was given is as it was"
    assert completed(in_full()) == in_full()


def test_the_file_of_an_old_run_repeats_it_and_says_so() -> None:
    file, notes = as_it_was(Layer("old.toml", OLD))
    assert file.values["method"]["server_momentum"] == 0.0
    assert notes == {
        "method.server_momentum": "`old.toml` is of a run from before `method.server_momentum`, and is run as it was, "
        "with 0.0; today's default is 0.5."
    }
    assert compose(Request(Layer("old.toml", OLD)))[0].method.options["server_momentum"] == 0.0
    asked = Request(Layer("old.toml", OLD), settings=parse_set(["method.server_momentum=0.9"]))
    assert compose(asked)[0].method.options["server_momentum"] == 0.9


@pytest.mark.parametrize(
    "values",
    [
        in_full(),
        without(OLD, "method", "centre_weight"),
        without(OLD, "training", "epochs"),
        without(OLD, "partition", "name"),
        {key: value for key, value in OLD.items() if key != "rounds"},
        {key: value for key, value in OLD.items() if key != "dataset"},
        {"method": {"name": "fedmate_plus"}},
        {},
    ],
)
def test_a_file_that_leaves_other_things_to_the_defaults_has_todays(values: Values) -> None:
    assert as_it_was(Layer("mine.toml", values)) == (Layer("mine.toml", values), {})


@pytest.mark.parametrize(
    "wrong", [{"method": 3}, {"method": {"name": 3}}, {"training": "x"}, {"method": {"name": "x"}}]
)
def test_files_that_are_wrong_are_left_to_those_who_say_so(wrong: Values) -> None:
    assert as_it_was(Layer("mine.toml", {**OLD, **wrong})) == (Layer("mine.toml", {**OLD, **wrong}), {})


def test_where_nothing_changed_nothing_is_said() -> None:
    old = without(in_full("fedavg"), "method", "server_momentum", "calibration")
    file, notes = as_it_was(Layer("old.toml", old))
    assert (file.values["method"]["server_momentum"], notes) == (0.0, {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a run from before momentum."""
    text = compose(Request(methods=["fedmate_plus"]))[0].to_toml()
    path = tmp_path / "old.toml"
    path.write_text(text.replace("server_momentum = 0.5\n", ""))
    return path


@pytest.mark.parametrize("methods", [[], ["fedavg", "fedmate_plus"]])
def test_who_begins_a_run_reads_it(path: Path, tmp_path: Path, methods: list[str]) -> None:
    with started(Request(load_file(path), methods), tmp_path / "run") as jobs:
        assert "from before `method.server_momentum`" in jobs[0].notes[0]
    folder = tmp_path / "run" / "fedmate_plus" if methods else tmp_path / "run"
    assert load_file(folder / "config.toml").values["method"]["server_momentum"] == 0.0


@pytest.mark.parametrize(
    ("methods", "asked"),
    [([], "method.server_momentum=0.9"), ([], "method.name=fedavg"), (["fedavg", "fedpac"], "rounds=3")],
)
def test_nothing_is_said_of_what_the_run_does_not_take_from_it(
    path: Path, tmp_path: Path, methods: list[str], asked: str
) -> None:
    with started(Request(load_file(path), methods, settings=parse_set([asked])), tmp_path / "run") as jobs:
        assert not any("from before" in note for job in jobs for note in job.notes)
