"""The test `local`: samples of a client's own, given or held back, on which no client trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import fedmate
from fedmate.errors import UserError
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import nest
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.prepare import Request, compose

Samples = tuple[NDArray[Any], NDArray[Any]]
QUICK = {"rounds": 8, "device": "cpu", "training.learning_rate": 0.1, "training.batch_size": 20}


def digits(start: int, end: int, *, inverted: bool = False) -> Samples:
    """Return digits in random order, black on white if inverted."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))[start:end]
    images = (data.images[order, None] / 8 - 1).astype(np.float32)
    return (-images if inverted else images), data.target[order].astype(np.int64)


def hospitals() -> fedmate.Sites:
    """Return two clients whose scanners differ, each with test samples of its own."""
    return fedmate.Sites(
        [
            (*digits(0, 600), *digits(1200, 1400)),
            (*digits(600, 1200, inverted=True), *digits(1400, 1600, inverted=True)),
        ]
    )


def built(data: fedmate.Pool | fedmate.Sites | None, **changes: Any) -> Built:
    """Build an experiment; a section's key is written with two underscores."""
    values = QUICK | {key.replace("__", "."): value for key, value in changes.items()}
    inputs = UserInputs(data)
    return build(compose(Request(methods=["fedavg"], settings=nest("set", values.items()), inputs=inputs))[0], inputs)


@pytest.mark.parametrize("backend", ["sequential", "vectorised"])
def test_two_hospitals(tmp_path: Path, backend: str) -> None:
    """Where clients' images differ, `own` says nothing of a personal model, for half its test is the other's."""
    found = {}
    for method in ("local", "fedavg"):
        settings = {**QUICK, "backend": backend, "evaluation.metrics": ["macro_f1", "auroc", "confusion"]}
        record = fedmate.run(method=method, data=hospitals(), set=settings, out=tmp_path / method)
        found[method] = {test: record.accuracy("post", test) or 0.0 for test in ("balanced", "own", "local")}
        assert record.metric("macro_f1", "post", "local") == pytest.approx(found[method]["local"], abs=3)
        assert (record.metric("auroc", "post", "local") or 0) > 99
        assert record.metric("auroc", "post", "own") is None
        with pytest.raises(UserError, match="`precision` was not computed"):
            record.metric("precision")
        local = record.metrics[-1]["accuracy"]["post"]["local"]["clients"]
        assert [row["post_local"] for row in record.clients] == local
    assert found["local"]["local"] > 90
    assert found["local"]["own"] < 60
    assert found["fedavg"]["local"] > 90
    assert found["fedavg"]["own"] > 90
    matrix = np.array(record.metrics[-1]["confusion"]["global"]["balanced"]["matrix"])
    shares = np.diag(matrix) / matrix.sum(1)
    assert 100 * shares.mean() == pytest.approx(record.accuracy("global", "balanced"))
    assert record.metrics[-1]["confusion"]["pre"]["balanced"] is None


def test_what_is_held_back_is_not_trained_on() -> None:
    """A share of each class of each client, in training or not; who trains and the common test stay as they are."""
    pool = fedmate.Pool(*digits(0, 900), *digits(900, 1100))
    settings = {"partition.name": "pathological", "partition.clients": 8, "holdout_clients": 0.25}
    plain, found = built(pool, **settings).split, built(pool, **settings, evaluation__local=0.25).split
    trained = np.concatenate([*found.clients, *found.held_out])
    assert not {*trained.tolist()} & {*np.concatenate(found.local_rows).tolist()}
    assert found.test is plain.test or np.array_equal(found.test.x, plain.test.x)
    assert [len(part) for part in (found.clients, found.held_out, found.local_rows)] == [6, 2, 8]
    for before, rows, own in zip([*plain.clients, *plain.held_out], found.local_rows, found.local_tests, strict=True):
        assert {*rows.tolist()} <= {*before.tolist()}
        labels, every = found.arrays.train.y[rows], np.bincount(found.arrays.train.y[before])
        assert np.array_equal(own.y, labels)
        assert (abs(np.bincount(labels, minlength=len(every)) - every / 4) < 1).all()
    assert plain.sha256 != found.sha256


def test_a_client_without_test_samples_has_no_figure(tmp_path: Path) -> None:
    """A class's only sample is never held back."""
    x, y = digits(0, 300)
    data = fedmate.Sites([(x[:200], y[:200]), (x[200:201], y[200:201])], digits(300, 400))
    for backend in ("sequential", "vectorised"):
        settings = {**QUICK, "rounds": 1, "backend": backend, "evaluation.local": 0.2}
        record = fedmate.run(method="fedavg", data=data, set=settings, out=tmp_path / backend)
        one, none = record.metrics[-1]["accuracy"]["pre"]["local"]["clients"]
        assert one is not None
        assert none is None


def test_a_file_names_the_client_of_each_test_sample(tmp_path: Path) -> None:
    (x, y), (test_x, test_y) = digits(0, 60), digits(60, 90)
    path, owners = tmp_path / "own.npz", np.array(["ann", "bob", "eve"])
    arrays: dict[str, Any] = {"train_x": x, "train_y": y, "test_x": test_x, "test_y": test_y}
    np.savez(path, **arrays, train_client=owners.repeat(20), test_client=owners[[2, 0, 1]].repeat(10))
    settings = {"dataset.name": "npz", "dataset.path": str(path), "model.name": "mlp", "rounds": 1}
    federation = built(None, **settings, partition__name="natural").federation
    assert [test.y.tolist() for test in federation.local_tests] == [test_y[i : i + 10].tolist() for i in (10, 20, 0)]
    assert torch.equal(federation.test.y, torch.from_numpy(test_y))
    assert not built(None, **settings, partition__name="iid", partition__clients=2).federation.local_tests


def test_clients_with_a_common_test_alone_are_warned_of_it() -> None:
    one, common = digits(0, 100), digits(100, 150)
    warned = built(fedmate.Sites([one, one], common)).warnings
    assert any("`own` assumes that a class looks alike" in text for text in warned)
    held_back, brought = built(fedmate.Sites([one, one], common), evaluation__local=0.2), built(hospitals())
    assert not any("looks alike" in text for text in (*held_back.warnings, *brought.warnings))


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (lambda: hospitals(), {"evaluation.local": 0.2}, "clients have test samples of their own; set it to 0"),
        (lambda: fedmate.Sites([digits(0, 2)] * 2, digits(2, 50)), {"evaluation.local": 0.2}, "another share"),
        (lambda: fedmate.Sites([(*digits(0, 9), *digits(9, 20)), digits(0, 9)]), {}, "the same two or four"),
        (lambda: hospitals(), {"evaluation.metrics": ["f1"]}, "`f1` is not among the metrics"),
    ],
)
def test_mistakes_are_named(data: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        built(data(), **settings)
