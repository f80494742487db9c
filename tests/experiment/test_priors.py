"""Priors at prediction: by hand where answers are known, in files, and against a run's own accuracy."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

import fedmate
from fedmate.core.tree import pack, unpack
from fedmate.data import Normalisation
from fedmate.data.arrays import Pool
from fedmate.errors import UserError
from fedmate.experiment.build import Signature, build
from fedmate.experiment.config import stored_experiment
from fedmate.experiment.inputs import structure
from fedmate.experiment.predict import Calibration, PortableModel, load_model

SIGNATURE = Signature((3,), ("red", "green", "blue"), Normalisation(), "float64")
SHARES = (0.75, 0.25, 0.0)
OWN = Calibration(1.0, SHARES)
X = np.random.default_rng(0).normal(size=(50, 3))


def linear(weight: Any, bias: Any) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer.eval()


def make(calibration: Calibration = OWN) -> PortableModel:
    """Return a model whose logits are its samples."""
    module = nn.Sequential(OrderedDict(x=linear(np.eye(3), np.zeros(3)))).eval()
    architecture = {"name": "given", "options": {"buffers": "shared", "layer": "x", "digest": structure(module)}}
    return PortableModel(module, SIGNATURE, architecture, {"client": 3}, calibration)


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def test_uniform_leaves_answers_as_they_are() -> None:
    plain, found = make(Calibration()).predict(X), make().predict(X, " uniform\n")
    assert np.array_equal(found.probabilities, plain.probabilities)
    assert found.prior is not None
    assert found.prior.tolist() == [1 / 3] * 3
    assert (plain.prior, plain.notes) == (None, ())
    assert found.notes == ("the prior is `uniform`: 3 equally likely classes.",)


def test_own_is_added_to_the_logits() -> None:
    """By hand; a class that the client lacks is ruled out, and nothing becomes NaN."""
    found = make().predict(X, "own")
    expected = softmax(X[:, :2] + np.log([0.75, 0.25]))
    assert found.probabilities[:, :2] == pytest.approx(expected, abs=1e-12)
    assert found.probabilities[:, 2].tolist() == [0.0] * 50
    assert found.labels.tolist() == expected.argmax(1).tolist()
    assert found.prior is not None
    assert found.prior.tolist() == list(SHARES)
    assert found.notes == ("the prior is `own`: `red` 75.0 %, `green` 25.0 %.",)


@pytest.mark.parametrize("prior", [np.array([2, 7, 1], np.uint8), [0.4e308, 1.4e308, 0.2e308], " 2, 7.0, 1e0"])
def test_a_number_per_class(prior: Any) -> None:
    found = make().predict(X, prior)
    assert found.probabilities == pytest.approx(softmax(X + np.log([0.2, 0.7, 0.1])), abs=1e-12)
    assert found.prior == pytest.approx([0.2, 0.7, 0.1], abs=1e-15)
    assert found.notes[0] == "the prior is `given`: `green` 70.0 %, `red` 20.0 %, `blue` 10.0 %."
    assert found.notes[1:] == ("the model's client has no training sample of `blue`.",)
    assert make(Calibration(1.0)).predict(X, prior).notes == found.notes[:1]


def test_a_shift_is_estimated_without_labels() -> None:
    """The network knows the logarithms of the densities, up to a term that all classes share."""
    centres = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    rng = np.random.default_rng(1)
    y = rng.choice(3, 4000, p=[0.8, 0.17, 0.03])
    x = centres[y] + rng.normal(size=(4000, 2))
    module = linear(centres, -(centres**2).sum(1) / 2)
    model = PortableModel(module, replace(SIGNATURE, input_shape=(2,)), {}, {}, Calibration(1.0, (0.05, 0.05, 0.9)))
    found = model.predict(x, "estimated")
    # Two standard errors of the drawn shares, and some more for uncertain samples.
    assert found.prior == pytest.approx([0.8, 0.17, 0.03], abs=0.015)
    logits = x @ centres.T - (centres**2).sum(1) / 2
    assert found.probabilities == pytest.approx(softmax(logits + np.log(found.prior)), abs=1e-12)
    right = {prior: (model.predict(x, prior).labels == y).mean() for prior in ("estimated", "own", "uniform")}
    assert right["estimated"] > right["uniform"] + 0.01 > right["own"]


def test_another_weight_than_one_answers_for_own_and_uniform() -> None:
    """Its logits contain some of the client's shares, and are right where these hold."""
    model = make(Calibration(0.5, SHARES))
    expected = softmax(X[:, :2] + 0.5 * np.log([0.75, 0.25]))
    assert model.predict(X, "own").probabilities[:, :2] == pytest.approx(expected, abs=1e-12)
    assert model.predict(X, "uniform").probabilities == pytest.approx(softmax(X), abs=1e-12)
    assert "some class shares of training remain" in model.predict(X, "uniform").notes[0]


@pytest.mark.parametrize(
    ("calibration", "prior", "found"),
    [
        (OWN, "unifrom", "is `unifrom`, neither a word nor finite numbers with commas between; did you mean `uniform`"),
        (OWN, [[1, 2, 3]], "has the shape [1, 3] for 3 classes; "),
        (OWN, [1, -0.5, 1], "is [1.0, -0.5, 1.0]; give numbers of 0 or more, at least one above 0."),
        (OWN, [1, np.nan, 1], "is nan at [1]; "),
        (OWN, "1,nan,1", "is `1,nan,1`, neither a word nor finite numbers"),
        (Calibration(1.0), "own", "a global model belongs to no client"),
        (Calibration(), [1, 1, 1], "the model is not calibrated"),
        (Calibration(0.5, SHARES), "estimated", "calibrated with 0.5, not 1"),
    ],
)
def test_wrong_priors(calibration: Calibration, prior: Any, found: str) -> None:
    with pytest.raises(UserError, match=re.escape(found)):
        make(calibration).predict(X, prior)


def test_files_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    make().save(path)
    again = load_model(path, make().module)
    assert again.calibration == OWN
    for prior in (None, "uniform", "estimated", [1, 2, 3]):
        assert np.array_equal(again.predict(X, prior).probabilities, make().predict(X, prior).probabilities)


@pytest.mark.parametrize("value", [3, {"tau": 10**400, "shares": None}, {"tau": 1.0, "shares": [0.5, 0.5]}])
def test_descriptions_that_make_no_sense(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "m.safetensors"
    make().save(path)
    tensors, note = unpack(path.read_bytes())
    path.write_bytes(pack(tensors, note | {"calibration": value}))
    with pytest.raises(UserError, match="its description is not fedmate's"):
        load_model(path, make().module)


SETTINGS = {
    "rounds": 2,
    "backend": "sequential",
    "dtype": "float64",
    "partition.clients": 2,
    "partition.examples": 60,
    "training.learning_rate": 0.1,
    "objective.calibration": 1.0,
}
OWN_PRIOR = SETTINGS | {"objective.calibration": 0.0, "objective.own_prior": True}


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a personal classifier and a global model."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    fedmate.run(method="fedmate", set=SETTINGS, out=folder)
    return folder


def counts(folder: Path, client: int) -> NDArray[Any]:
    return np.bincount(build(stored_experiment(folder)).federation.clients[client].y, minlength=10)


def test_a_runs_own_accuracy_comes_out_again(calibrated: Path) -> None:
    test = build(stored_experiment(calibrated)).federation.test
    x, y = np.rint(test.x.numpy() * 6.017 + 4.884), test.y.numpy()
    everyone = fedmate.export(calibrated, global_=True)
    assert everyone.calibration == Calibration(1.0)
    for client, row in enumerate(fedmate.load(calibrated).clients):
        model, held = fedmate.export(calibrated, client=client), counts(calibrated, client)
        assert (held == 0).any()
        assert model.calibration == Calibration(1.0, tuple(held / held.sum()))

        def accuracy(model: PortableModel, prior: Any, weights: NDArray[Any]) -> float:
            right = model.predict(x, prior).labels == y
            return 100 * float(weights @ [right[y == k].mean() for k in range(10)] / weights.sum())

        assert accuracy(model, "own", held) == pytest.approx(row["pre_own"], abs=1e-9)
        assert accuracy(model, "uniform", np.ones(10)) == pytest.approx(row["pre_balanced"], abs=1e-9)
        assert accuracy(everyone, held, held) == pytest.approx(row["global_own"], abs=1e-9)
        assert accuracy(everyone, None, np.ones(10)) == pytest.approx(row["global_balanced"], abs=1e-9)
        # The test could not fail otherwise.
        assert abs(row["pre_own"] - accuracy(model, "uniform", held)) > 1


def test_own_prior_with_a_common_model(tmp_path: Path) -> None:
    """A client's copy is told its client's shares; the model an unseen client adapts is not."""
    folder = tmp_path / "run"
    fedmate.run(method="fedavg", set=OWN_PRIOR, out=folder)
    held = counts(folder, 1)
    assert fedmate.export(folder, client=1).calibration == Calibration(1.0, tuple(held / held.sum()))
    images, labels = load_digits(return_X_y=True)
    found = fedmate.adapt(folder, Pool(images[:40], labels[:40], images[800:900], labels[800:900]))
    assert found.model.calibration == Calibration()
