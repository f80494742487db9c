"""The preset `tuned`: what was found for a method on the data set of the experiment."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedmate.errors import UserError
from fedmate.experiment import config
from fedmate.experiment.config import ConfigSource, parse_set, resolve
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.sections import Experiment

FOUND = """
[fedrep.cifar10]
training = { learning_rate = 0.04 }
score = 50.0
[fedrep.digits]
training = { learning_rate = 0.3 }
method = { classifier_learning_rate = 0.05 }
score = 60.0
[fedper.digits]
training = { learning_rate = 0.4 }
"""

SHIPPED = tomllib.loads(config.TUNED_FILE.read_text(encoding="utf-8"))
ENTRIES = [(method, dataset) for method, by_dataset in SHIPPED.items() for dataset in by_dataset]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Other entries than those of the package."""
    path = tmp_path / "tuned.toml"
    path.write_text(FOUND, encoding="utf-8")
    monkeypatch.setattr(config, "TUNED_FILE", path)
    return path


def resolved(*layers: dict[str, Any]) -> Experiment:
    return resolve([ConfigSource(f"layer {i}", values) for i, values in enumerate(layers)])


def rates(experiment: Experiment) -> tuple[float, float]:
    return experiment.training.learning_rate, experiment.method.options["classifier_learning_rate"]


def refused(*layers: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        resolved(*layers)
    return str(caught.value)


# -------------------- what it stands for


def test_it_stands_for_what_was_found_on_the_data_set(found: Path) -> None:
    experiment = resolved({"method": {"preset": "tuned"}})
    assert rates(experiment) == (0.3, 0.05)
    assert rates(resolved({"method": {"preset": "tuned"}, "dataset": {"name": "cifar10"}})) == (0.04, 0.1)
    assert "preset" not in experiment.method.options


# -------------------- what it does not


def test_a_data_set_without_an_entry_is_refused_with_those_that_have_one(found: Path) -> None:
    sentence = refused({"method": {"preset": "tuned"}, "dataset": {"name": "mnist"}})
    assert sentence == (
        "`method.preset` in layer 0 is 'tuned', but `fedrep` was tuned on `cifar10` and `digits` only, not on `mnist`; "
        "leave it out, or run `fedmate tune fedrep` on data with a test split of its own (`digits` has none)."
    )


def test_methods_that_were_tuned_are_not_compared_with_one_that_was_not(found: Path) -> None:
    settings = parse_set(["method.preset=tuned"])
    fedrep, fedper = compose(Request(methods=["fedrep", "fedper"], settings=settings))
    assert (fedrep.training.learning_rate, fedper.training.learning_rate) == (0.3, 0.4)
    with pytest.raises(UserError, match="`ditto` was tuned on no data set"):
        compose(Request(methods=["fedrep", "ditto"], settings=settings))


# -------------------- those that come with the package


@pytest.mark.parametrize(("method", "dataset"), ENTRIES)
def test_every_entry_is_a_setting_of_its_method_and_says_where_it_comes_from(method: str, dataset: str) -> None:
    entry = SHIPPED[method][dataset]
    experiment = resolved({"method": {"name": method, "preset": "tuned"}, "dataset": {"name": dataset}})
    assert {key: getattr(experiment.training, key) for key in entry.get("training", {})} == entry.get("training", {})
    spelled = {key: None if value == "none" else value for key, value in entry.get("method", {}).items()}
    assert {key: experiment.method.options[key] for key in spelled} == spelled
    assert {*entry} - {"server"} <= {
        *("training", "method", "date", "commit", "command", "trials", "view", "score", "default_score"),
    }
    assert entry["score"] >= entry.get("default_score", 0) > 0
    words = shlex.split(entry["command"])
    searched = ["fedmate", "tune", method, "--dataset", dataset]
    assert words[:5] == searched or words == ["python", "benchmarks/tune_digits.py"]
