"""The commands `export` and `predict`: output, files, and one sentence for a mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import test_cli
from tests.test_cli import Fedmate, refuse

import fedmate
from fedmate.data.mnist import Digits
from fedmate.experiment.predict import Calibration

PIXELS = Digits().load(Path()).train.x[:4]


fedmate_ = test_cli.fedmate_


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods, with a held-out client."""
    folder = tmp_path_factory.mktemp("runs") / "both"
    settings = {
        "rounds": 2,
        "backend": "sequential",
        "holdout_clients": 0.3,
        "partition.clients": 4,
        "partition.examples": 10,
        "training.learning_rate": 0.2,
    }
    fedmate.compare(["fedavg", "fedrep"], set=settings, out=folder)
    return folder


@pytest.fixture(scope="module")
def model(runs: Path) -> Path:
    """A client's model."""
    path = runs.parent / "model.safetensors"
    fedmate.export(runs / "fedrep", client=1, to=path)
    return path


def test_export_and_predict(fedmate_: Fedmate, runs: Path, tmp_path: Path) -> None:
    answer = fedmate_("export", runs / "fedrep", "--client", "1", "--to", "model.safetensors")
    line = f"model.safetensors: the model of client 1 of {runs / 'fedrep'} after round 2\n"
    assert (answer.status, answer.out, answer.err) == (0, line, "")
    np.savetxt("x.csv", PIXELS.reshape(4, 64), delimiter=",", header="pixel" + ",pixel" * 63, comments="")
    answer = fedmate_("predict", "model.safetensors", "x.csv")
    assert (answer.status, answer.err) == (0, "")
    expected = fedmate.export(runs / "fedrep", client=1).predict(PIXELS)
    assert answer.out == expected.to_csv()
    assert fedmate_("predict", "model.safetensors", "x.csv", "--to", "y.csv").out == ""
    assert (tmp_path / "y.csv").read_text(encoding="utf-8") == expected.to_csv()
    sentence = refuse(fedmate_, tmp_path, "predict", "model.safetensors", "x.csv", "--to", "y.csv")
    assert "`y.csv` exists already and is not overwritten" in sentence


def test_the_global_model_as_a_graph(fedmate_: Fedmate, runs: Path, tmp_path: Path) -> None:
    answer = fedmate_("export", runs / "fedavg", "--global", "--to", "model.pt2")
    line = f"model.pt2: the global model of {runs / 'fedavg'} after round 2\n"
    assert (answer.status, answer.out, answer.err) == (0, line, "")
    logits = torch.export.load("model.pt2").module()(torch.tensor(PIXELS, dtype=torch.float32))
    expected = fedmate.export(runs / "fedavg", global_=True).predict(PIXELS).probabilities
    assert np.allclose(logits.detach().softmax(-1), expected, atol=1e-6)
    assert "or use `torch.export.load`" in refuse(fedmate_, tmp_path, "predict", "model.pt2", "x.npy")


@pytest.mark.parametrize("prior", [None, " uniform"])
def test_a_prior_is_chosen(fedmate_: Fedmate, model: Path, prior: str | None) -> None:
    """Notes are on the other stream, so that predictions can be piped."""
    shares = (0, 0, 0.75, 0, 0, 0, 0, 0.25, 0, 0)
    replace(fedmate.load_model(model), calibration=Calibration(1.0, shares)).save("calibrated.safetensors")
    np.save("x.npy", PIXELS)
    answer = fedmate_("predict", "calibrated.safetensors", "x.npy", *([] if prior is None else ["--prior", prior]))
    expected = fedmate.predict("calibrated.safetensors", PIXELS, prior=prior)
    assert (answer.status, answer.out) == (0, expected.to_csv())
    assert answer.err == "".join(f"Note: {note}\n" for note in expected.notes)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("export both/fedrep --to m.pt2", "`--client` and `--global` choose the model; give exactly one of them."),
        ("export both/fedrep --client 30 --to m.pt2", "has clients 0 to 2, not 30 (held-out clients have no model)"),
        ("export both/fedrep --client 0 --to m.onnx", "`m.onnx` ends in `.onnx`; name the model"),
        ("export both/fedrep --client 0 --to taken.pt2", "`taken.pt2` exists already and is not overwritten"),
        ("export both --client 0 --to m.pt2", "is a comparison of `fedavg`, `fedrep`; give the folder of a run."),
        ("export none --client 0 --to m.pt2", "holds no record"),
        ("predict none.safetensors x.npy", "`none.safetensors` cannot be read"),
        ("predict x.npy x.npy", "`x.npy` is no model that fedmate reads; give a `.safetensors` file of `export`."),
        ("predict foreign.safetensors x.npy", "`foreign.safetensors` cannot be used: it is not a file of fedmate's"),
        ("predict model.safetensors none.csv", "`none.csv` does not exist"),
        ("predict model.safetensors x.npy --prior own", "`--prior` is given, but the model is not calibrated"),
        ("predict model.safetensors x.npy --to answers.txt", "`--to` is `answers.txt`, but predictions are CSV"),
    ],
)
def test_mistakes(fedmate_: Fedmate, model: Path, tmp_path: Path, arguments: str, found: str) -> None:
    np.save("x.npy", PIXELS)
    Path("both").symlink_to(model.parent / "both")
    Path("model.safetensors").symlink_to(model)
    Path("taken.pt2").write_bytes(b"mine")
    Path("foreign.safetensors").write_bytes(b"something else")
    assert found in refuse(fedmate_, tmp_path, *arguments.split())
