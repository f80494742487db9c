"""The run config of the Flower app: which experiment it names, and what it changes in it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedmate.errors import UserError
from fedmate.experiment.prepare import compose
from fedmate.experiment.sections import Experiment
from fedmate.flower.node import request_of

APP = Path(__file__).parents[2] / "flower"


def config(**values: Any) -> dict[str, Any]:
    """The app's own, with some keys changed."""
    usual = {"experiment": "digits", "set": "", "out": "", "min-clients": 0, "patience": 0.0}
    return usual | {key.replace("_", "-"): value for key, value in values.items()}


def composed(**values: Any) -> Experiment:
    (experiment,) = compose(request_of(config(**values), APP))
    return experiment


def test_experiments_of_the_app_are_complete() -> None:
    declared = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    assert declared["config"] == config()
    sites, digits = composed(experiment="sites"), composed()
    assert digits == composed(experiment="digits.toml")
    assert (digits.dataset.name, digits.method.name, digits.general.backend) == ("digits", "fedmate", "flower")
    assert (digits.partition.options["clients"], digits.partition.options["share"]) == (20, 10)
    assert (sites.dataset.name, sites.partition.options["clients"]) == ("sites", 3)


def test_single_values_are_changed_as_on_the_command_line() -> None:
    names = """dataset.name=sites dataset.classes=["a b", 'c'] dataset.shape=[1,\n 2, 2]"""
    found = composed(experiment="sites", set=f"rounds=3  method.name='fedrep' training.learning_rate=0.5 {names}")
    assert (found.general.rounds, found.method.name, found.training.learning_rate) == (3, "fedrep", 0.5)
    assert (found.dataset.options["classes"], found.dataset.options["shape"]) == (("a b", "c"), (1, 2, 2))
    # Numbers of the run config come last, and zero leaves them to the experiment.
    changed = composed(set="min_clients=4 patience=7", min_clients=2).general
    assert (changed.min_clients, changed.patience) == (2, 7)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"experiment": "digit"}, "`experiment` of the run config is `digit`, which the app does not have; did you"),
        ({"min_clients": "2"}, "`min_clients` in `set` of the run config is the string '2'"),
        ({"set": 'a="b'}, "where a quotation mark or bracket stands alone; close it."),
    ],
)
def test_a_mistake_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        composed(**values)
    assert sentence in str(caught.value)


def test_other_runs_import_nothing_of_flower() -> None:
    script = """
import sys
import fedmate.cli, fedmate.experiment.build, fedmate.experiment.prepare, fedmate.experiment.checkpoint
import fedmate.experiment.run, fedmate.studies, fedmate.report
print([name for name in sys.modules if name.startswith(("fedmate.flower", "flwr", "ray."))])
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
