"""The commands `export` and `predict`, in this process: what they print and write, and what bad input gets."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests import test_cli
from tests.test_cli import Fedmate

import fedmate
from fedmate.data.digits import Digits
from fedmate.experiment.priors import Calibration

PIXELS = Digits().load(Path()).train.x[:4]


fedmate_ = test_cli.fedmate_


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods, with a newcomer."""
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


@pytest.fixture(scope="module")
def calibrated(model: Path) -> Path:
    """The same, as if it had been trained with prior calibration by a client that holds 2 and 7."""
    path = model.with_name("calibrated.safetensors")
    shares = (0, 0, 0.75, 0, 0, 0, 0, 0.25, 0, 0)
    replace(fedmate.load_model(model), calibration=Calibration(1.0, shares)).save(path)
    return path


def refuse(command: Fedmate, *arguments: str | Path) -> str:
    """Run what must be refused: status 2, one sentence, nothing written. Return the sentence."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    answer = command(*arguments)
    assert (answer.status, answer.out) == (2, "")
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    (line,) = answer.err.splitlines()
    assert line.startswith("Error: `")
    assert re.search(r"; .+[.?]$", line), f"what was found, then what to do: {line}"
    return line


# -------------------- what works


def test_a_clients_model_leaves_and_answers(fedmate_: Fedmate, runs: Path, tmp_path: Path) -> None:
    answer = fedmate_("export", runs / "fedrep", "--client", "1", "--to", "model.safetensors")
    said = f"model.safetensors: the model of client 1 of {runs / 'fedrep'} after round 2\n"
    assert (answer.status, answer.out, answer.err) == (0, said, "")
    np.save("x.npy", PIXELS)
    answer = fedmate_("predict", "model.safetensors", "x.npy")
    assert (answer.status, answer.err) == (0, "")
    expected = fedmate.export(runs / "fedrep", client=1).predict(PIXELS)
    assert answer.out == expected.to_csv()
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert [row["sample"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["class"] for row in rows] == expected.class_names
    assert [float(row["probability"]) for row in rows] == pytest.approx(expected.probabilities.max(1), abs=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "x.npy"]


def test_the_global_model_leaves_as_a_graph(fedmate_: Fedmate, runs: Path) -> None:
    answer = fedmate_("export", runs / "fedavg", "--global", "--to", "model.pt2")
    said = f"model.pt2: the global model of {runs / 'fedavg'} after round 2\n"
    assert (answer.status, answer.out, answer.err) == (0, said, "")
    np.savetxt("x.csv", PIXELS.reshape(4, 64), delimiter=",", header="pixel" + ",pixel" * 63, comments="")
    assert "which fedmate does not read; use `torch.export.load`" in refuse(fedmate_, "predict", "model.pt2", "x.csv")


def test_answers_go_to_a_new_file(fedmate_: Fedmate, model: Path, tmp_path: Path) -> None:
    np.savez("x.npz", y=np.zeros(4), x=PIXELS)
    answer = fedmate_("predict", model, "x.npz", "--to", "answers.csv")
    assert (answer.status, answer.out, answer.err) == (0, "", "")
    assert (tmp_path / "answers.csv").read_text(encoding="utf-8") == fedmate_("predict", model, "x.npz").out
    sentence = refuse(fedmate_, "predict", model, "x.npz", "--to", "answers.csv")
    assert "`answers.csv` exists already and is not overwritten" in sentence


OWN = (
    "the prior is `own`, the class shares of its client's training samples: `2` 75.0 %, `7` 25.0 %; "
    "8 classes ruled out."
)


@pytest.mark.parametrize(
    ("prior", "said"),
    [
        (None, OWN),
        ("own", OWN),
        ("uniform", "the prior is `uniform`: all 10 classes equally likely."),
        (" uniform", "the prior is `uniform`: all 10 classes equally likely."),
        ("0,0,0,0,0,1,0,0,0,1", "the prior is as given: `5` 50.0 %, `9` 50.0 %; 8 classes ruled out."),
        ("estimated", "the prior is `estimated` from the 4 samples, so few that it is uncertain: "),
    ],
)
def test_a_prior_is_chosen_and_said(fedmate_: Fedmate, calibrated: Path, prior: str | None, said: str) -> None:
    """Beside the answers, so that these can go on into a file."""
    np.save("x.npy", PIXELS)
    answer = fedmate_("predict", calibrated, "x.npy", *([] if prior is None else ["--prior", prior]))
    expected = fedmate.predict(calibrated, PIXELS, prior=prior)
    assert (answer.status, answer.out) == (0, expected.to_csv())
    assert answer.err.startswith(f"Note: {said}")
    assert answer.err == "".join(f"Note: {note}\n" for note in expected.notes)


def test_priors_that_are_refused(fedmate_: Fedmate, model: Path, calibrated: Path) -> None:
    np.save("x.npy", PIXELS)
    for prior, found in (
        ("estimate", "`prior` is `estimate`, which is neither `estimated`, `own`, `uniform` nor numbers; did you mean"),
        ("1,2", "`prior` has 2 values for 10 classes; give one number for each class."),
        ("-1" + ",1" * 9, "`prior` is -1 for class 0; give finite numbers that are 0 or more."),
    ):
        assert found in refuse(fedmate_, "predict", calibrated, "x.npy", "--to", "y.csv", "--prior", prior)
    assert "the model is not calibrated" in refuse(fedmate_, "predict", model, "x.npy", "--prior", "own")


# -------------------- what bad arguments get


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["fedrep", "--to", "m.pt2"], "`--client` and `--global` choose the model; give exactly one of them."),
        (["fedrep", "--client", "0", "--global", "--to", "m.pt2"], "`--client` and `--global` choose the model"),
        (["fedrep", "--client", "30", "--to", "m.pt2"], "has clients 0 to 2, not 30 (newcomers were kept out"),
        (["fedrep", "--client", "-1", "--to", "m.pt2"], "has clients 0 to 2, not -1; choose one of these."),
        (["fedrep", "--global", "--to", "m.pt2"], "ran `fedrep`, which has no global model; export a client's."),
        (["fedrep", "--client", "0", "--to", "m.onnx"], "`m.onnx` ends in `.onnx`; name the model"),
        (["fedrep", "--client", "0", "--to", "model"], "`model` ends in ``; name the model"),
        (["fedrep", "--client", "0", "--to", "none/m.pt2"], "folder `none`, which does not exist; make it first."),
        ([".", "--client", "0", "--to", "m.pt2"], "is a comparison of `fedavg`, `fedrep`; give the folder of a run."),
        (["none", "--client", "0", "--to", "m.pt2"], "holds no record: it does not exist; give the folder of a run."),
    ],
)
def test_exports_that_are_refused(fedmate_: Fedmate, runs: Path, arguments: list[str], found: str) -> None:
    assert found in refuse(fedmate_, "export", runs / arguments[0], *arguments[1:])


def test_a_model_is_not_overwritten(fedmate_: Fedmate, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"mine")
    sentence = refuse(fedmate_, "export", runs / "fedrep", "--client", "0", "--to", "m.safetensors")
    assert "`m.safetensors` exists already and is not overwritten; choose another name." in sentence


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["none.safetensors", "x.npy"], "`none.safetensors` cannot be read (No such file or directory); give a"),
        (["x.npy", "x.npy"], "`x.npy` is no model; give a `.safetensors` file that `fedmate export` wrote."),
        (["foreign.safetensors", "x.npy"], "`foreign.safetensors` cannot be used: it is not a file of fedmate's"),
        (["model", "none.csv"], "`none.csv` does not exist; give the path of a file that can be read."),
        (["model", "x.txt"], "`x.txt` ends in `.txt`; give a `.npy`, `.npz` or `.csv` file."),
        (["model", "word.csv"], "`word.csv` is `x` in row 2, column 1; every cell"),
        (["model", "german.csv"], "`german.csv` has semicolons between its cells; write it with commas, and numbers"),
        (["model", "tabs.csv"], "`tabs.csv` has tabs between its cells; write it with commas, and numbers with a"),
        (["model", "long.csv"], f"`long.csv` is `{'x' * 37}...` in row 2, column 2; every cell"),
        (["model", "narrow.npy"], "`narrow.npy` has the shape [2, 63]; give [samples, 1, 8, 8], [1, 8, 8] for one "),
        (["model", "x.npy", "--to", "answers.txt"], "`--to` is `answers.txt`, but the answers are CSV"),
        (["model", "x.npy", "--to", "none/answers.csv"], "folder `none`, which does not exist; make it first."),
    ],
)
def test_predictions_that_are_refused(
    fedmate_: Fedmate, model: Path, tmp_path: Path, arguments: list[str], found: str
) -> None:
    np.save("x.npy", PIXELS)
    np.save("narrow.npy", np.zeros((2, 63)))
    (tmp_path / "word.csv").write_text("1,2\nx,3\n", encoding="utf-8")
    (tmp_path / "german.csv").write_text("0,5;" * 63 + "0,5\n" + "0;" * 63 + "1\n", encoding="utf-8")
    (tmp_path / "tabs.csv").write_text("a\tb\n1.0\t2\n", encoding="utf-8")
    (tmp_path / "long.csv").write_text(f"1,2\n1,{'x' * 130}\n", encoding="utf-8")
    (tmp_path / "foreign.safetensors").write_bytes(b"something else")
    words = [model if word == "model" else word for word in arguments]
    assert found in refuse(fedmate_, "predict", *words)


# -------------------- help


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("export", ["DIR", "--client", "--global", "--to", "[required]"]),
        ("predict", ["MODEL", "INPUT", "--to", "--prior"]),
    ],
)
def test_help_names_what_there_is(fedmate_: Fedmate, command: str, words: list[str]) -> None:
    answer = fedmate_(command, "--help")
    assert answer.status == 0
    assert [word for word in words if word not in answer.out] == []
    assert "\\" not in answer.out
    assert command in fedmate_("--help").out


def test_help_is_quick() -> None:
    """It needs neither torch nor numpy, which take seconds to import."""
    script = "import sys; from fedmate import cli; sys.exit(sum(name in sys.modules for name in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
