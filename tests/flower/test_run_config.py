"""The run config of the Flower app: which experiment it names, and what it changes in it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedmate.errors import UserError
from fedmate.flower.run_config import _assignments, experiment_of, request_of

APP = Path(__file__).parents[2] / "flower"


def config(**values: Any) -> dict[str, Any]:
    """The app's own, with some keys changed."""
    usual = {"experiment": "digits", "set": "", "out": "", "min-clients": 0, "patience": 0.0}
    return usual | {key.replace("_", "-"): value for key, value in values.items()}


def refused(**values: Any) -> str:
    with pytest.raises(UserError) as caught:
        request_of(config(**values), APP)
    return str(caught.value)


@pytest.mark.parametrize("name", ["digits", "digits.toml"])
def test_an_experiment_of_the_app_is_named_with_or_without_its_ending(name: str) -> None:
    experiment = experiment_of(config(experiment=name), APP)
    assert (experiment.dataset.name, experiment.method.name) == ("digits", "fedmate")
    assert (experiment.partition.options["clients"], experiment.partition.options["share"]) == (20, 10)
    assert experiment.general.backend == "flower"


def test_the_example_of_a_federation_is_complete() -> None:
    experiment = experiment_of(config(experiment="sites"), APP)
    assert (experiment.dataset.name, experiment.partition.name) == ("sites", "given")
    assert experiment.partition.options["clients"] == 3


def test_single_values_are_changed_as_on_the_command_line() -> None:
    assignments = """rounds=3  method.name=fedrep training.learning_rate=0.5 device='cpu'"""
    experiment = experiment_of(config(set=assignments), APP)
    assert (experiment.general.rounds, experiment.method.name) == (3, "fedrep")
    assert (experiment.training.learning_rate, experiment.general.device) == (0.5, "cpu")


def test_numbers_of_the_run_config_come_last_and_zero_leaves_them_to_the_experiment() -> None:
    plain = experiment_of(config(set="min_clients=4 patience=7"), APP).general
    assert (plain.min_clients, plain.patience) == (4, 7)
    told = experiment_of(config(set="min_clients=4 patience=7", min_clients=2, patience=9), APP).general
    assert (told.min_clients, told.patience) == (2, 9)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ('a="two words" b=x', {"a": "two words", "b": "x"}),
        ('s.a=["x", "y z"] s.b=1', {"s": {"a": ["x", "y z"], "b": 1}}),
        ("s.a=[1,\n 2]", {"s": {"a": [1, 2]}}),
    ],
)
def test_blanks_separate_assignments_but_not_in_quotation_marks_and_brackets(text: str, values: Any) -> None:
    assert _assignments(text) == values


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"experiment": "digit"}, "`experiment` of the run config is `digit`, which the app does not have; did you"),
        ({"experiment": "../x"}, "`experiment` of the run config is `../x`, which the app does not have; known are"),
        ({"experiment": "pyproject"}, "which the app does not have"),
        ({"set": 3}, "`set` of the run config is 3; give a string."),
        ({"out": True}, "`out` of the run config is True; give a string."),
        ({"min_clients": "2"}, "`min-clients` of the run config is '2'; give a number."),
        ({"patience": None}, "`patience` of the run config is None; give a number."),
        ({"set": "rounds"}, "`set` got `rounds`; write `key=value`"),
        ({"set": 'a="b'}, "where a quotation mark or bracket stands alone; close it."),
        ({"set": "rounds=x"}, "`rounds` in `set` of the run config is the string 'x'; it must be a whole number."),
        ({"set": "method.nme=x"}, "`method.nme` in `set` of the run config is not an option"),
        ({"set": "backend=vectorised"}, "`backend` is `vectorised`, but `flwr run` runs on Flower; leave it out."),
    ],
)
def test_a_mistake_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(**values)


def test_the_app_declares_what_is_read() -> None:
    declared = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    assert declared["config"] == config()
    assert set(declared["components"]) == {"serverapp", "clientapp"}


def test_other_runs_import_nothing_of_flower() -> None:
    script = """
import sys
import fedmate.cli, fedmate.experiment.build, fedmate.experiment.prepare, fedmate.experiment.restore
import fedmate.experiment.run, fedmate.studies, fedmate.report
print([name for name in sys.modules if name.startswith(("fedmate.flower", "flwr", "ray."))])
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
