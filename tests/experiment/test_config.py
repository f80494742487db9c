"""An experiment is put together from layers; what it writes, it reads back."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmate.core import Limits, option
from fedmate.data import DATASETS, Arrays, Dataset, Samples
from fedmate.errors import UserError
from fedmate.experiment.config import ConfigSource, load_file, parse_set, resolve
from fedmate.experiment.sections import Experiment


@dataclass(frozen=True, kw_only=True)
class Toy(Dataset):
    """A data set that brings defaults and an option along."""

    size: int = option(30, "how many samples there are", Limits(at_least=1))

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        return {"partition": {"name": "iid", "examples": 12}, "training": {"epochs": 2, "momentum": 0.1}}

    def load(self, folder: Path) -> Arrays:
        y = np.arange(self.size, dtype=np.int64) % 4
        return Arrays(Samples(np.zeros((self.size, 1, 8, 8), np.float32), y), None, ("a", "b", "c", "d"))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS._rows, "toy", Toy)


def resolved(*layers: dict[str, Any]) -> Experiment:
    return resolve([ConfigSource(f"layer {i}", values) for i, values in enumerate(layers)])


def refused(*layers: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        resolved(*layers)
    return str(caught.value)


def test_each_layer_overrides_those_before_it() -> None:
    experiment = resolved(
        {"rounds": 1, "seed": 1, "eval_every": 1, "training": {"epochs": 1, "momentum": 0.1}},
        {"rounds": 2, "seed": 2, "training": {"epochs": 2}},
        {"rounds": 3},
    )
    general, training = experiment.general, experiment.training
    assert (general.rounds, general.seed, general.eval_every) == (3, 2, 1)
    assert (training.epochs, training.momentum, training.learning_rate) == (2, 0.1, 0.02)


# Changing a section's name.


def test_dropped_keys_do_not_come_back_with_their_name() -> None:
    experiment = resolved(
        {"method": {"name": "fedrep", "classifier_epochs": 7}},
        {"method": {"name": "local"}},
        {"method": {"name": "fedrep"}},
    )
    assert experiment.method.options["classifier_epochs"] == 1


# Presets.


def test_a_preset_lies_beneath_its_own_layer_and_above_those_below() -> None:
    options = resolved(
        {"method": {"classifier_epochs": 3, "classifier_learning_rate": 0.3, "tuning_epochs": 4}},
        {"method": {"preset": "authors", "classifier_epochs": 6}},
    ).method.options
    assert options == {
        "classifier_epochs": 6,
        "classifier_learning_rate": 0.01,
        "tuning_epochs": 4,
    }


# Assignments.


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("5e-4", 5e-4),
        ("true", True),
        ("True", "True"),
        ("[1, 2]", [1, 2]),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_an_assignment_is_read_as_toml_or_else_as_a_word(word: str, value: Any) -> None:
    for key, values in (("key", {"key": value}), (" section.key ", {"section": {"key": value}})):
        layer = parse_set([f"{key}={word}"])
        assert layer == ConfigSource("--set", values)
        assert type({**layer.values, **layer.values.get("section", {})}["key"]) is type(value)


@pytest.mark.parametrize("assignment", ["", "rounds", "=3", "training.=3", "a.b.c=1"])
def test_a_malformed_assignment_is_refused(assignment: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_set([assignment])
    assert str(caught.value) == f"`--set` got `{assignment}`; write `key=value` or `section.key=value`."


# Names, keys and limits.


@pytest.mark.parametrize(
    ("values", "fragments"),
    [
        ({"rouns": 3}, ["`rouns` in layer 0", "did you mean `rounds`?"]),
        ({"rounds": {"x": 3}}, ["`[rounds]` in layer 0", "not a section"]),
        ({"method": {"alpha": 3}}, ["`method.alpha` in layer 0 is not an option of", "mean `partition.alpha`?"]),
        (
            {"method": {"name": "fedavg", "centre_weight": 3}},
            ["is not an option of `fedavg`; it is one of `fedmate` and `fedmate_plus`: leave it out, or choose"],
        ),
        ({"method": "fedavg"}, ["`method` in layer 0", "'fedavg'", "`[method]`"]),
        ({"model": {"buffers": "privat"}}, ["`model.buffers` in layer 0", "'privat'", "did you mean `private`?"]),
        ({"method": {"name": "local", "preset": "authors"}}, ["`method.preset` in layer 0", "`local`", "use `tuned`"]),
        ({"dataset": {"preset": "authors"}}, ["`dataset.preset` in layer 0 is not an option of `digits`"]),
        ({"dtype": "float16"}, ["`dtype` in layer 0", "'float16'", "`float64`"]),
        ({"rounds": 0}, ["`rounds` is 0", "at least 1"]),
        ({"training": {"learning_rate": float("inf")}}, ["`training.learning_rate` is inf", "finite"]),
    ],
)
@pytest.mark.usefixtures("toy")
def test_what_is_wrong_is_named(values: dict[str, Any], fragments: list[str]) -> None:
    sentence = refused(values)
    assert [fragment for fragment in fragments if fragment not in sentence] == []
    assert "\n" not in sentence


# Files.


def test_malformed_toml_is_refused_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("seed = 0\nrounds = three\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"broken\.toml` is not valid TOML: .*line 2"):
        load_file(path)


# Writing and reading back.


@pytest.mark.parametrize("device", ['a "quoted" \\ back\\slash', "naïve 東京 🎲 \u2028 \x00"])
def test_an_experiment_reads_back_what_it_writes(tmp_path: Path, device: str) -> None:
    method = {"name": "fedrep", "preset": "authors", "classifier_learning_rate": 1e-300, "tuning_epochs": 99}
    partition = {"name": "dirichlet", "examples": 999, "alpha": 1e9}
    values = {"seed": -(2**70), "participation": 1e-5, "device": device, "training": {"learning_rate": 1e300}}
    experiment = resolved({**values, "partition": partition, "method": method})
    path = tmp_path / "round trip.toml"
    path.write_text(experiment.to_toml(), encoding="utf-8")
    assert resolve([load_file(path)]) == experiment


def test_an_option_without_a_value_is_spelled_out_and_reads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "defaults", {})
    monkeypatch.setitem(DATASETS._rows, "toy", Toy)
    experiment = resolved({"dataset": {"name": "toy"}})
    assert experiment.partition.options["examples"] is None
    assert 'examples = "none"' in experiment.to_toml()
    assert resolved(tomllib.loads(experiment.to_toml())) == experiment


# What a data set says about one name does not hold for another.


@pytest.mark.usefixtures("toy")
def test_what_a_data_set_says_of_its_partition_is_dropped_with_that_partition() -> None:
    values = {"dataset": {"name": "toy"}, "partition": {"name": "pathological", "clients": 4}}
    options = resolve([ConfigSource("test", values)]).partition.options
    assert (options["clients"], options["examples"]) == (4, None)


def test_a_path_is_kept_as_it_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = resolve([parse_set(["dataset.name=npz", "dataset.path=mine.npz"])])
    assert experiment.dataset.options["path"] == str(tmp_path / "mine.npz")
    monkeypatch.chdir(tmp_path.parent)
    assert resolved(tomllib.loads(experiment.to_toml())) == experiment
    with pytest.raises(UserError, match="bytes that are no text; rename"):
        resolve([parse_set(["dataset.name=npz", "dataset.path=caf\udce9.npz"])])


def test_the_server_has_two_rows_with_options_in_one_section() -> None:
    found = resolve([parse_set(["server.momentum=0.5", "server.aggregator=median"])])
    expected = {"aggregator": "median", "optimiser": "sgd", "learning_rate": 1.0, "momentum": 0.5}
    assert found.to_dict()["server"] == expected
    assert resolve([ConfigSource("again", tomllib.loads(found.to_toml()))]) == found
    # What belongs to the row before does not hold for the next one.
    adam = resolve([parse_set(["server.momentum=0.5"]), parse_set(["server.optimiser=adam"])]).server
    assert adam.optimiser.options == {"learning_rate": 0.1, "beta1": 0.9, "tau": 1e-3, "beta2": 0.99}
    assert resolve([parse_set(["method.name=fedmate_plus"])]).server.optimiser.options["momentum"] == 0.5


@pytest.mark.parametrize(
    ("setting", "fragment"),
    [
        ("server.optimiser=adm", "`server.optimiser`: `adm` is not among the server_optimisers; did you mean `adam`?"),
        ("server.aggregator=3", "`server.aggregator"),
        ("server.beta1=0.9", "not an option of `mean` and `sgd`; it is one of `adagrad`, `adam` and `yogi`: leave it"),
        (
            "server.optimizer=adam",
            "`server.optimizer` in --set is not an option of `mean` and `sgd`; did you mean `optimiser`?",
        ),
        ("server.momentum=1", "`server.momentum` is 1"),
    ],
)
def test_a_wrong_server_is_one_sentence(setting: str, fragment: str) -> None:
    with pytest.raises(UserError, match=re.escape(fragment)):
        resolve([parse_set([setting])])
