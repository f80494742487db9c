"""The contract of data sets, models and partitions: every row of their tables, without a test of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedmate.core import Model, gradient
from fedmate.core.options import Registry
from fedmate.data import DATASETS
from fedmate.data.partitions import PARTITIONS, PartitionInput
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.experiment.inputs import UserInputs
from fedmate.models import MODELS

INPUTS = {"digits_cnn": (1, 8, 8), "emnist_cnn": (1, 28, 28)}
"""What a model reads, where it is not 3 x 32 x 32."""


def named(table: Registry[Any]) -> list[str]:
    """Return the rows whose content is in files; what is `given` exists in Python, what lies with `sites` there."""
    return [name for name in table.names() if name not in ("given", "sites")]


CLASSES = {"cifar100": 100, "emnist": 62}
"""How many classes a data set has, where it is not 10."""

SMALL = ("emnist", "fashion_mnist", "mnist")
"""Data sets of grey images of 28 x 28; the others have colours and 32 x 32."""


def prepare(name: str, folder: Path) -> dict[str, Any]:
    """Write a data set as a prepared file, a few samples of each class, and return the options that find it."""
    classes, shape = CLASSES.get(name, 10), (28, 28) if name in SMALL else (32, 32, 3)
    rng, y = np.random.default_rng(0), np.arange(classes * 60) % classes
    x = rng.integers(0, 256, (len(y), *shape), dtype=np.uint8)
    if name == "folder":
        for i, image in enumerate(x[:200]):
            place = folder / "images" / str(y[i]) / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place)
        return {"path": str(folder / "images")}
    np.savez(folder / f"{name}.npz", train_x=x, train_y=y, test_x=x[: classes * 2], test_y=y[: classes * 2])
    return {"path": str(folder / "npz.npz")} if name == "npz" else {}


@pytest.mark.parametrize("name", named(DATASETS))
def test_a_data_set_is_labelled_arrays_with_working_defaults(name: str, tmp_path: Path) -> None:
    options = prepare(name, tmp_path)
    dataset = DATASETS[name](**options)
    arrays, again = dataset.load(tmp_path), dataset.load(tmp_path)
    assert np.array_equal(again.train.x, arrays.train.x)
    for samples in (arrays.train, arrays.test):
        if samples is not None:
            source = arrays.normalisation.source(np.array(samples.x), dataset.augmentation, torch.float32, "cpu")
            assert torch.isfinite(source.read(torch.arange(len(samples.y)))).all()
            assert samples.x.dtype == np.uint8
            assert samples.y.dtype == np.int64
            assert len(samples.x) == len(samples.y)
            assert set(samples.y.tolist()) <= set(range(len(arrays.class_names)))
    few = {"partition": {"clients": 2, "examples": 40}, "dataset": {"name": name, **options}, "rounds": 1}
    built = build(resolve([ConfigSource("test", few)]), UserInputs(folder=tmp_path))
    assert built.federation.num_classes == len(arrays.class_names)


@pytest.mark.parametrize("name", named(MODELS))
def test_a_model_computes_what_its_module_does_and_learns_everywhere(name: str) -> None:
    shape = INPUTS.get(name, (3, 32, 32))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        architecture = MODELS[name]()
        module = architecture.build(shape, 7)
        x = torch.randn(3, *shape)
    model = Model(module, classifier=architecture.classifier, buffers=architecture.buffers)
    model.check(x, 7)
    params = model.init_params()
    gradients, _ = gradient(
        lambda p: (model.logits({**p, "buffers": params["buffers"]}, x).square().sum(), {}),
        {part: params[part] for part in ("extractor", "classifier")},
    )
    for part in gradients.values():
        assert all(bool(leaf.any()) for leaf in part.values())


@pytest.mark.parametrize("name", named(PARTITIONS))
def test_a_partition_deals_to_everybody_and_repeats_itself(name: str) -> None:
    labels = np.repeat(np.arange(10), 60)
    owners = np.arange(600) % 7
    first, again, other = (
        PARTITIONS[name](clients=6, examples=30).split(
            PartitionInput(labels, 10, np.random.default_rng(seed), clients=owners)
        )
        for seed in (0, 0, 1)
    )
    assert len(first) == 6
    assert all(1 <= len(rows) <= 30 and len(set(rows.tolist())) == len(rows) for rows in first)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("table", [DATASETS, MODELS, PARTITIONS], ids=lambda table: table.kind)
def test_what_only_python_can_give_says_so_when_a_file_names_it(table: Registry[Any]) -> None:
    section = table.kind.removesuffix("s")
    with pytest.raises(UserError) as caught:
        build(resolve([ConfigSource("test", {section: {"name": "given"}, "rounds": 1})]))
    assert str(caught.value).startswith(f"`{section}.name` is `given`")
    assert "call `fedmate.run" in str(caught.value)
