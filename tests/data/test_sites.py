"""Data that lies with sites: what is declared is checked, and what a server has of it says nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmate.data import DATASETS
from fedmate.data.sites import AtSites
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.config import ConfigSource, Experiment, load_file, resolve
from fedmate.experiment.partitioning import make_federation, split_samples
from fedmate.experiment.request import NO_INPUTS

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


# -------------------- the declaration


def test_lists_are_kept_and_read_back(tmp_path: Path) -> None:
    declared = {"classes": ['a "b"', "c\\d"], "shape": [3, 8, 8], "mean": [1, 2.5, 3], "std": [1e-5]}
    first = experiment(declared)
    assert first.dataset.options["classes"] == ('a "b"', "c\\d")
    assert first.dataset.options["mean"] == (1.0, 2.5, 3.0)
    (tmp_path / "kept.toml").write_text(first.to_toml(), encoding="utf-8")
    assert resolve([load_file(tmp_path / "kept.toml")]) == first


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ({"classes": ["a"]}, "`dataset.classes` has 1 classes; there must be 2 to 100,000."),
        ({"classes": ["a", "b", "a"]}, "`dataset.classes` has `a` twice; give each class a name of its own."),
        ({"shape": [3, 0, 2]}, "`dataset.shape` is [3, 0, 2]; give the sizes of a sample, each 1 at least"),
        ({"mean": [1.0, 2.0]}, "`dataset.mean` has 2 numbers, but a sample has 1 channels; give one for all"),
        ({"std": [0.0]}, "`dataset.std` is [0.0]; each must be a finite number above 0."),
        ({"mean": [math.inf]}, "`dataset.mean` is [inf]; each must be a finite number."),
        ({"shape": [16], "crop": 2}, "`dataset.crop` is for images, but `dataset.shape` is [16]; leave it out."),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(dataset: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(dataset)


def test_images_come_to_lie_around_zero_unless_it_is_said_otherwise() -> None:
    for declared, lowest, highest in (
        ({}, -1.0, 1.0),
        ({"mean": [0.0], "std": [255.0]}, 0.0, 1.0),
        ({"shape": [16]}, 0.0, 255.0),
    ):
        row = DATASETS["sites"](**experiment(declared).dataset.options)
        assert isinstance(row, AtSites)
        samples = np.stack([np.full(row.shape, byte, np.uint8) for byte in (0, 255)])
        source = row.normalisation.source(samples, row.augmentation, torch.float32, "cpu")
        assert {*source.read(torch.tensor([0])).flatten().tolist()} == {lowest}
        assert {*source.read(torch.tensor([1])).flatten().tolist()} == {highest}


# -------------------- what a server has of it


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
        ({"partition": {"examples": 30}}, "partition.examples"),
        ({"partition": {"redundant_clients": 0.5}}, "partition.redundant_clients"),
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
