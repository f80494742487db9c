"""Data that lies with sites: what is declared is checked, and what a server has of it says nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.experiment.inputs import NO_INPUTS, make_federation, split_samples
from fedmate.experiment.sections import Experiment

DECLARED: dict[str, Any] = {"name": "sites", "classes": ["ant", "bee", "cat"], "shape": [1, 4, 4]}


def experiment(dataset: dict[str, Any] | None = None, **values: Any) -> Experiment:
    return resolve(
        [ConfigSource("test", {"dataset": DECLARED | (dataset or {}), "partition": {"clients": 5}, **values})]
    )


def refused(dataset: dict[str, Any] | None = None, **values: Any) -> str:
    with pytest.raises(UserError) as caught:
        split_samples(experiment(dataset, **values), NO_INPUTS)
    assert str(caught.value).startswith("`")
    assert str(caught.value).endswith(".")
    return str(caught.value)


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ({"classes": ["a"]}, "`dataset.classes` has 1 classes; there must be 2 to 100,000."),
        ({"classes": ["a", "b", "a"]}, "`dataset.classes` has `a` twice; give each class a name of its own."),
        ({"shape": [3, 0, 2]}, "`dataset.shape` is [3, 0, 2]; give the sizes of a sample, each 1 at least"),
        ({"mean": [1.0, 2.0]}, "`dataset.mean` has 2 numbers, but a sample has 1 channels; give one for all"),
        ({"mean": [math.inf]}, "`dataset.mean` is [inf]; each must be a finite number."),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(dataset: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(dataset)


def test_stand_ins_have_the_declared_shape_and_say_nothing_else() -> None:
    split = split_samples(experiment(), NO_INPUTS)
    assert split.at_sites
    federation = make_federation(experiment(device="cpu"), split)
    assert federation.at_sites
    assert len(federation.clients) == 5
    assert federation.num_classes == 3
    assert not federation.held_out_clients
    for data in (*federation.clients, federation.test):
        assert data.source.take(data.rows).shape == (1, 1, 4, 4)
        assert not data.source.take(data.rows).any()


def test_the_record_of_the_split_counts_no_samples() -> None:
    split = split_samples(experiment(), NO_INPUTS)
    account = json.loads(split.to_json())
    assert account.keys() == {"sha256", "data_sha256", "classes", "names", "at_sites"}
    assert (account["at_sites"], account["names"]) == (True, ["0", "1", "2", "3", "4"])
    with pytest.raises(UserError, match="what the sites hold is known to them alone"):
        split.class_counts()


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"partition": {"name": "iid"}}, "partition.name"),
        ({"holdout_clients": 0.5}, "holdout_clients"),
        ({"evaluate_on": "validation"}, "evaluate_on"),
    ],
)
def test_there_is_nothing_to_split(values: dict[str, Any], key: str) -> None:
    sentence = refused(**values)
    assert sentence.startswith(f"`{key}` is `")
    assert sentence.endswith(f"taken as they are; leave `{key}` out.")


def test_only_flower_runs_it() -> None:
    with pytest.raises(UserError, match=r"`dataset\.name` is `sites`.* `flwr run`"):
        build(experiment(backend="sequential"))
