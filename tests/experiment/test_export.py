"""A model that leaves answers raw samples as the run's own evaluation says that client's model does."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import fedmate
from fedmate.core import Tree
from fedmate.core.layers import BufferPolicy
from fedmate.data.arrays import Pool
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.callback import Callback, RoundSummary
from fedmate.experiment.checkpoint import Restored
from fedmate.experiment.config import nest, stored_experiment
from fedmate.experiment.export import export_model
from fedmate.experiment.predict import PortableModel
from fedmate.experiment.prepare import Request, new_runs
from fedmate.experiment.record import Record
from fedmate.experiment.run import run

SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "eval_every": 3,
    "checkpoint_every": 1,
    "participation": 0.5,
    "holdout_clients": 0.2,
    "backend": "sequential",
    "partition.name": "share",
    "partition.clients": 5,
    "partition.examples": 20,
    "model.name": "digits_cnn",
    "model.width": 16,
    "training.batch_size": 5,
    "training.epochs": 4,
    "training.learning_rate": 0.1,
    # A tie that one rounding decides is not what is tested.
    "dtype": "float64",
}


def balanced(model: PortableModel, x: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the accuracy averaged over classes, in percent."""
    labels = model.predict(x).labels
    return 100 * float(np.mean([(labels[y == k] == k).mean() for k in np.unique(y)]))


@pytest.mark.parametrize("method", ["fedbabu", "fedmate", "local"])
def test_a_model_is_as_good_as_the_record_says(tmp_path: Path, method: str) -> None:
    folder = tmp_path / "run"
    fedmate.run(method=method, set=SETTINGS, out=folder)
    test = build(stored_experiment(folder)).federation.test
    x, y = np.rint(test.x.numpy() * 6.017 + 4.884), test.y.numpy()
    rows = [row for row in Record(folder).clients if not row["newcomer"]]
    found = [balanced(export_model(folder, client), x, y) for client in range(4)]
    assert found == pytest.approx([row["pre_balanced"] for row in rows], abs=1e-9)
    # A confusion of models, or with untrained ones, must show.
    assert max(found) > 14
    assert len({*found}) > 2
    if rows[0]["global_balanced"] is None:
        with pytest.raises(UserError, match=rf"ran `{method}`, which has no global model; export a client's\.$"):
            export_model(folder, None)
    else:
        assert balanced(export_model(folder, None), x, y) == pytest.approx(rows[0]["global_balanced"], abs=1e-9)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = OrderedDict(
            body=nn.Linear(4, 6), norm=nn.BatchNorm1d(6), bend=nn.Tanh(), drop=nn.Dropout(0.2), head=nn.Linear(6, 3)
        )
        return nn.Sequential(layers)


def pool() -> Pool:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    x = 3 * rng.normal(size=(120, 4)) + 4 * np.eye(3, 4)[y]
    return Pool(x[:60], y[:60], x[60:], y[60:], class_names=["red", "green", "blue"])


OWN = {"rounds": 2, "backend": "sequential", "partition.name": "iid", "partition.clients": 3, "dtype": "float64"}


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_statistics_leave_with_the_model(tmp_path: Path, buffers: BufferPolicy) -> None:
    settings = {**OWN, "model.buffers": buffers}
    folder, data = tmp_path / "run", pool()
    record = fedmate.run(method="fedavg", set=settings, data=data, model=network(), classifier="head", out=folder)
    split = data.arrays.test
    assert split is not None
    models = [fedmate.export(folder, client=client, model=network()) for client in range(3)]
    expected = [row["pre_balanced"] for row in record.clients]
    assert [balanced(model, *split) for model in models] == pytest.approx(expected, abs=1e-9)
    held = [name for name, _ in models[0].module.named_buffers() if not name.endswith("tracked")]
    assert held == ([] if buffers == "dropped" else ["norm.running_mean", "norm.running_var"])
    if buffers == "private":
        assert len(set(expected)) > 1
        with pytest.raises(UserError, match=r"kept BatchNorm statistics private .*; export a client's\.$"):
            fedmate.export(folder, global_=True, model=network())
    else:
        exported = fedmate.export(folder, global_=True, model=network())
        assert balanced(exported, *split) == pytest.approx(record.clients[0]["global_balanced"], abs=1e-9)


def half_frozen(seed: int) -> nn.Module:
    module = network()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nn.init.normal_(module.get_parameter("body.weight"))
    module.get_submodule("body").requires_grad_(False)
    return module


def test_what_is_frozen_leaves_with_the_model_as_the_run_had_it(tmp_path: Path) -> None:
    """The record holds it, so that a network with other numbers does no harm."""
    folder, data = tmp_path / "run", pool()
    record = fedmate.run(method="fedavg", set=OWN, data=data, model=half_frozen(1), classifier="head", out=folder)
    split = data.arrays.test
    assert split is not None
    model = fedmate.export(folder, global_=True, model=half_frozen(2))
    assert balanced(model, *split) == pytest.approx(record.clients[0]["global_balanced"], abs=1e-9)
    exported, began = model.module.get_parameter("body.weight"), half_frozen(1).get_parameter("body.weight")
    torch.testing.assert_close(exported, began.double(), rtol=0, atol=0)
    with pytest.raises(UserError, match="`model` has another structure"):
        fedmate.export(folder, global_=True, model=network())
    model.save(tmp_path / "model.safetensors")
    loaded = fedmate.load_model(tmp_path / "model.safetensors", model=half_frozen(3))
    torch.testing.assert_close(loaded.module.get_parameter("body.weight"), exported, rtol=0, atol=0)


def test_a_network_and_data_from_python_are_asked_for(tmp_path: Path) -> None:
    """The data, where a method trains before use."""
    folder = tmp_path / "run"
    record = fedmate.run(method="fedbabu", set=OWN, data=pool(), model=network(), classifier="head", out=folder)
    with pytest.raises(UserError, match=r"`.*run` trained a network that came from Python .*`model`"):
        fedmate.export(folder, client=1)
    with pytest.raises(UserError, match=r"^`model` has another structure"):
        fedmate.export(folder, client=1, model=nn.Sequential(OrderedDict(head=nn.Linear(4, 3))))
    with pytest.raises(UserError, match=r"^`dataset.name` is `given`, arrays that were"):
        fedmate.export(folder, client=1, model=network())
    model, split = fedmate.export(folder, client=1, model=network(), data=pool()), pool().arrays.test
    assert split is not None
    assert balanced(model, *split) == pytest.approx(record.clients[1]["pre_balanced"], abs=1e-9)


class Stop(Callback):
    """Interrupts a run after some rounds."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round_ended(self, summary: RoundSummary) -> None:
        if summary.round == self.after:
            raise KeyboardInterrupt


def start(folder: Path, rounds: int) -> Path:
    """Begin a run in which everybody takes part, and stop it after some rounds."""
    settings = nest("set", {**SETTINGS, "participation": 1.0, "holdout_clients": 0.0}.items())
    with new_runs(Request(methods=["fedper"], settings=settings), folder) as jobs:
        if rounds and jobs[0].built is not None:
            with pytest.raises(KeyboardInterrupt):
                run(jobs[0].built, folder, [Stop(rounds)])
    return folder


def test_a_run_that_has_not_begun_gives_nothing(tmp_path: Path) -> None:
    folder = start(tmp_path / "run", 0)
    with pytest.raises(UserError, match="has no saved round, so nothing is trained yet; continue it with `fedmate run"):
        export_model(folder, 0)


def test_a_run_that_goes_on_meanwhile_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, later = start(tmp_path / "now", 1), start(tmp_path / "later", 2)
    read = Restored.client

    def read_late(self: Restored, client: int) -> Tree:
        shutil.rmtree(now)
        shutil.copytree(later, now)
        return read(self, client)

    monkeypatch.setattr(Restored, "client", read_late)
    assert export_model(now, 2).origin["round"] == 2


def test_a_damaged_run_is_not_read_again_for_ever(tmp_path: Path) -> None:
    folder = start(tmp_path / "run", 1)
    (folder / "checkpoint" / "clients" / "000002-000001.safetensors").unlink()
    with pytest.raises(UserError, match="it is missing"):
        export_model(folder, 2)
    assert export_model(folder, 1).origin["client"] == 1
