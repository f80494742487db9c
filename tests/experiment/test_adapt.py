"""An unseen client adapts: its samples, its accuracy, which the run itself would give, and the command."""

from __future__ import annotations

import csv
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import test_cli
from tests.test_cli import Fedmate
from torch import nn
from torch.testing import assert_close

import fedmate
from fedmate.core import Augmentation, flatten
from fedmate.data import DATASETS, Normalisation
from fedmate.data.arrays import Pool
from fedmate.errors import UserError
from fedmate.experiment.build import Signature, build
from fedmate.experiment.checkpoint import Restored
from fedmate.experiment.config import load_file, resolve
from fedmate.experiment.predict import Calibration
from fedmate.experiment.sample_files import read_client

# Samples of an unseen client.

SIGNATURE = Signature((2, 3), ("ant", "bee", "cat"), Normalisation((1.0,), (2.0,)), "float32")
X = np.arange(60.0).reshape(10, 2, 3)
Y = np.array([0, 1, 2, 0, 1, 0, 1, 0, 2, 2])
NAMES = np.array(SIGNATURE.class_names)[Y]
FLAT = X.reshape(10, 6)


def write_csv(path: Path, *rows: list[Any]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


WAYS: dict[str, Callable[[Path], Pool | Path]] = {
    "pool, names": lambda folder: Pool(X, (Y + 1) % 3, class_names=["cat", "ant", "bee"]),
    "npz, short names, flat": lambda folder: write_npz(folder / "n.npz", x=FLAT, y=Y),
    "npz, names": lambda folder: write_npz(folder / "n.npz", train_x=X, train_y=NAMES),
    "csv": lambda folder: write_csv(folder / "n.csv", *([*x, y] for x, y in zip(FLAT, Y, strict=True))),
    "csv, label first": lambda folder: write_csv(
        folder / "n.CSV", ["label", *"abcdef"], *([f" {y} ", *x] for x, y in zip(FLAT, NAMES, strict=True))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_samples(tmp_path: Path, way: str) -> None:
    *found, is_held_back = read_client(WAYS[way](tmp_path), SIGNATURE, 3)
    *expected, _ = read_client(Pool(X, Y), SIGNATURE, 3)
    assert is_held_back
    for part, other in zip(found, expected, strict=True):
        assert np.array_equal(part.x, other.x)
        assert np.array_equal(part.y, other.y)
        assert part.x.shape[1:] == (2, 3)
    assert not np.array_equal(read_client(Pool(X, Y), SIGNATURE, 4)[1].x, expected[1].x)


def test_a_test_part_is_used_as_it_is(tmp_path: Path) -> None:
    test_x, test_y = X[:4] + 0.5, Y[:4]
    data = write_npz(tmp_path / "b.npz", x=X, y=Y, test_x=test_x.reshape(4, 6), test_y=NAMES[:4])
    train, test, is_held_back = read_client(data, SIGNATURE, 0)
    assert not is_held_back
    np.testing.assert_array_equal(train.x, X)
    np.testing.assert_array_equal(test.x, test_x)
    assert (train.y.tolist(), test.y.tolist()) == (Y.tolist(), test_y.tolist())


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(0, 5))
def test_a_fifth_of_each_class_is_held_back_as_nearly_as_can_be(labels: list[int], seed: int) -> None:
    pool = Pool(np.arange(2 * len(labels)).reshape(-1, 2), labels, class_names="0123456789")
    signature = Signature((2,), tuple("0123456789"), Normalisation(), "float32")
    counts = Counter(labels)
    enough = sum(count for count in counts.values() if count > 1)
    if enough < 3:
        with pytest.raises(UserError, match=r"^`data` has too few samples to hold some back"):
            read_client(pool, signature, seed)
        return
    kept, held = (Counter(part.y.tolist()) for part in read_client(pool, signature, seed)[:2])
    assert held + kept == counts
    assert abs(held.total() - enough / 5) <= 0.6
    for k, count in counts.items():
        assert kept[k] >= 1
        assert count // 5 <= held[k] <= -(-count // 5)


ROW = ["1"] * 6
WRONG: dict[str, tuple[Callable[[Path], Pool | Path], str]] = {
    "no labels": (lambda f: write_npz(f / "n.npz", train_x=X), "n.npz` has no `train_y`; give `train_x` and"),
    "few labels": (lambda f: write_npz(f / "n.npz", x=X, y=Y[:9]), "n.npz:y` has 9 labels for 10 samples; give"),
    "no column": (lambda f: write_csv(f / "n.csv", [*"abcdefg"], [*ROW, 0]), "n.csv` needs exactly one column called"),
    "empty": (lambda f: write_csv(f / "n.csv"), "n.csv` is empty; write a row of numbers for each sample."),
    "short row": (lambda f: write_csv(f / "n.csv", [*ROW, 0], ROW), "n.csv` has 6 cells in row 2, but 7 in row 1; "),
    "another file": (lambda f: f / "n.xlsx", "n.xlsx` is not a file of samples; give an `.npz` or `.csv` file."),
    "a pool": (lambda f: Pool(X, Y + 1), "y` has the label 3, which is no class of the run"),
    "another name": (lambda f: write_npz(f / "n.npz", x=X[:2], y=["ant", "bees"]), "`bees`, which is no class of the"),
    "a fraction": (lambda f: write_npz(f / "n.npz", x=X[:2], y=[0, 0.5]), "0.5, which is no class of the run"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_samples(tmp_path: Path, case: str) -> None:
    data, found = WRONG[case]
    with pytest.raises(UserError) as caught:
        read_client(data(tmp_path), SIGNATURE, 0)
    assert found in str(caught.value)


# Its accuracy and its model.

RUN: dict[str, Any] = {
    "rounds": 1,
    "holdout_clients": 0.34,
    "dtype": "float64",
    "backend": "sequential",
    "device": "cpu",
    "partition.clients": 3,
    "partition.examples": 12,
    "training.epochs": 2,
    "training.batch_size": 5,
    "training.learning_rate": 0.1,
}
ARRAYS = DATASETS["digits"]().load(Path())
IMAGES, LABELS = ARRAYS.train


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        norm, drop = nn.BatchNorm1d(4), nn.Dropout(0.2)
        layers = OrderedDict(body=nn.Linear(3, 4), norm=norm, bend=nn.Tanh(), drop=drop, head=nn.Linear(4, 2))
        return nn.Sequential(layers)


def points(seed: int, size: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(size) % 2)
    return rng.normal(size=(size, 3)) + 2 * y[:, None], y


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give the folder of a small run on digits for a method."""
    folder = tmp_path_factory.mktemp("digits")

    def run(method: str) -> Path:
        if not (folder / method).exists():
            fedmate.run(method=method, set=RUN, out=folder / method)
        return folder / method

    return run


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a run on the user's own data and network."""
    data = Pool(*points(0, 60), *points(1, 30), class_names=["left", "right"])
    settings = {"rounds": 2, "partition.clients": 3, "training.learning_rate": 0.1}
    folder = tmp_path_factory.mktemp("mine") / "run"
    fedmate.run(method="fedavg", set=settings, data=data, model=network(), classifier="head", out=folder)
    return folder


@pytest.mark.parametrize("method", ["fedbabu", "fedmate"])
def test_adapting_gives_the_runs_figures_of_its_first_held_out_client(runs: Callable[[str], Path], method: str) -> None:
    folder = runs(method)
    federation = build(resolve([load_file(folder / "config.toml")])).federation
    source = ARRAYS.normalisation.source(IMAGES, Augmentation(), torch.float64, "cpu")
    places = {row.numpy().tobytes(): i for i, row in enumerate(source.read(torch.arange(len(IMAGES))))}
    parts = (federation.held_out_clients[0], federation.test)
    own, test = ([places[row.numpy().tobytes()] for row in data.x] for data in parts)
    found = fedmate.adapt(folder, Pool(IMAGES[own], LABELS[own], IMAGES[test], LABELS[test]))
    assert not found.diverged
    expected = fedmate.load(folder).metrics[-1]["newcomers"]
    for view in ("before", "after"):
        for name in ("balanced", "own"):
            assert found.accuracy[view][name] == pytest.approx(expected[view][name]["clients"][0], abs=1e-9)


def test_the_saved_model_is_the_one_that_was_tested(runs: Callable[[str], Path], tmp_path: Path) -> None:
    """A calibrated one answers with the client's class shares on `own`, without on `balanced`."""
    x, y, own = IMAGES[:300], LABELS[:300], (LABELS[-200:] % 4 == 1).nonzero()[0] + len(LABELS) - 200
    path, counts = tmp_path / "model.safetensors", np.bincount(LABELS[own], minlength=10)
    found = fedmate.adapt(runs("fedmate_plus"), Pool(IMAGES[own], LABELS[own], x, y), to=path)
    assert (found.model.origin["client"], found.model.origin["round"]) == ("newcomer", 1)
    for model in (found.model, fedmate.load_model(path)):
        assert model.calibration == Calibration(1.0, tuple(counts / counts.sum()))
        for test, prior, weights in (("own", None, counts), ("balanced", "uniform", np.ones(10))):
            right = model.predict(x, prior).labels == y
            by_class = [100 * right[y == k].mean() for k in range(10)]
            assert found.accuracy["after"][test] == pytest.approx(weights @ by_class / weights.sum())


def test_a_client_that_diverges_keeps_the_received_model(mine: Path, tmp_path: Path) -> None:
    x, y = points(4, 20)
    found = fedmate.adapt(mine, Pool(x * 1e37, y, x, y), to=tmp_path / "m.safetensors", model=network())
    assert found.diverged
    assert found.notes == ("training diverged (not finite): the client keeps the model it received.",)
    assert found.accuracy["after"] == found.accuracy["before"]
    received = {path.partition("/")[2]: leaf for path, leaf in flatten(Restored(mine, network()).server).items()}
    for model in (found.model, fedmate.load_model(tmp_path / "m.safetensors", model=network())):
        for name in ("body.weight", "norm.running_mean"):
            assert_close(model.module.state_dict()[name], received[name], rtol=0, atol=0)


def test_calls_that_are_refused(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trained a network that came from Python"):
        fedmate.adapt(mine, Pool(*points(4, 20)))
    with pytest.raises(fedmate.DivergedError):
        fedmate.run(method="local", set=RUN | {"training.learning_rate": 1e300}, out=tmp_path / "run")
    with pytest.raises(UserError, match="diverged in its first round"):
        fedmate.adapt(tmp_path / "run", Pool(IMAGES[:20], LABELS[:20]))


fedmate_ = test_cli.fedmate_


def test_the_command_prints_what_the_function_returns(
    fedmate_: Fedmate, runs: Callable[[str], Path], tmp_path: Path
) -> None:
    np.savez(tmp_path / "clinic.npz", train_x=IMAGES[:30], train_y=LABELS[:30].astype(str))
    answer = fedmate_("adapt", runs("fedper"), "--data", "clinic.npz", "--to", "model.safetensors")
    assert (answer.status, answer.err) == (0, "")
    expected = fedmate.adapt(runs("fedper"), tmp_path / "clinic.npz")
    lines = answer.out.splitlines()
    assert lines[: len(expected.notes)] == [f"Note: {note}" for note in expected.notes]
    assert lines[-1] == "Model: model.safetensors"
    for view, figures in expected.accuracy.items():
        assert [view, *(f"{figures[name]:.2f}" for name in ("balanced", "own"))] in [line.split() for line in lines]
    model = fedmate.load_model(tmp_path / "model.safetensors")
    assert_close(model.module.state_dict(), expected.model.module.state_dict(), rtol=0, atol=0)
