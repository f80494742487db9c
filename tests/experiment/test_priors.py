"""Priors chosen at prediction time: by hand where answers are known, in files, and against a run's own figures."""

from __future__ import annotations

import shutil
from collections.abc import Callable
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
from fedmate.components.prior_calibration import prior_adjustment
from fedmate.core.serialise import pack, unpack
from fedmate.data import DATASETS, Normalisation
from fedmate.data.arrays import Pool
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.partitioning import ClientSplit
from fedmate.experiment.predict import PortableModel, load_model
from fedmate.experiment.prepare import stored_experiment
from fedmate.experiment.priors import NO_CALIBRATION, Calibration
from fedmate.experiment.signature import Signature
from fedmate.experiment.user_inputs import structure

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


def make(calibration: Calibration = OWN, dtype: str = "float64") -> PortableModel:
    """Return a model that answers with its samples."""
    module = linear(np.eye(3), np.zeros(3)).to(getattr(torch, dtype))
    architecture = {"name": "given", "options": {"buffers": "shared", "layer": "x", "digest": structure(module)}}
    return PortableModel(module, replace(SIGNATURE, dtype=dtype), architecture, {"client": 3}, calibration)


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def refused(call: Callable[[], object]) -> str:
    """Return the one sentence that a call is refused with."""
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert text.startswith("`")
    assert "; " in text
    assert text[-1] in ".?"
    assert "\n" not in text
    return text


# -------------------- what is predicted


def test_uniform_leaves_answers_as_they_are() -> None:
    plain, found = make(NO_CALIBRATION).predict(X), make().predict(X, "uniform")
    assert np.array_equal(found.probabilities, plain.probabilities)
    assert found.class_names == plain.class_names
    assert found.prior is not None
    assert found.prior.tolist() == [1 / 3] * 3
    assert (plain.prior, plain.notes) == (None, ())
    assert found.notes == ("the prior is `uniform`: all 3 classes equally likely.",)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_own_is_added_to_the_logits(dtype: str) -> None:
    """By hand; a class that the client lacks is ruled out, and nothing becomes NaN."""
    found = make(dtype=dtype).predict(X, "own")
    expected = softmax(X[:, :2] + np.log([0.75, 0.25]))
    assert found.probabilities[:, :2] == pytest.approx(expected, abs=1e-12 if dtype == "float64" else 1e-6)
    assert found.probabilities[:, 2].tolist() == [0.0] * 50
    assert found.probabilities.dtype == dtype
    assert found.labels.tolist() == expected.argmax(1).tolist()
    assert {*found.class_names} == {"red", "green"}
    assert found.prior is not None
    assert found.prior.tolist() == list(SHARES)
    assert found.notes == (
        "the prior is `own`, the class shares of its client's training samples: `red` 75.0 %, `green` 25.0 %; "
        "1 class ruled out.",
    )


def test_what_is_taken_by_default() -> None:
    assert np.array_equal(make().predict(X).probabilities, make().predict(X, "own").probabilities)
    nobodys = make(Calibration(1.0))
    assert np.array_equal(nobodys.predict(X).probabilities, nobodys.predict(X, "uniform").probabilities)
    assert nobodys.predict(X).notes == make().predict(X, "uniform").notes
    assert make(NO_CALIBRATION).predict(X).prior is None


VECTORS: list[Any] = [
    [0.2, 0.7, 0.1],
    (2, 7, 1),
    np.array([2, 7, 1], np.uint8),
    torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64),
    torch.tensor([2.0, 7.0, 1.0], dtype=torch.bfloat16, requires_grad=True),
    torch.tensor([2.0, 7.0, 1.0]).to_sparse(),
    np.ma.array([2.0, 7.0, 1.0], mask=False),
    [0.2e-300, 0.7e-300, 0.1e-300],
    [0.4e308, 1.4e308, 0.2e308],
    "0.2,0.7,0.1",
    " 2, 7.0, 1e0",
]


@pytest.mark.parametrize("prior", VECTORS)
def test_a_number_for_each_class(prior: Any) -> None:
    """Whatever they add up to."""
    found = make().predict(X, prior)
    assert found.probabilities == pytest.approx(softmax(X + np.log([0.2, 0.7, 0.1])), abs=1e-12)
    assert found.prior == pytest.approx([0.2, 0.7, 0.1], abs=1e-15)
    said = "the prior is as given: `green` 70.0 %, `red` 20.0 %, `blue` 10.0 %."
    assert make(Calibration(1.0)).predict(X, prior).notes == (said,)
    # What it was never shown by its own client is another matter.
    foreign = "The client has no sample of `blue`: what the model knows of it can only come from others."
    assert found.notes == (f"{said} {foreign}",)


def test_the_callers_numbers_stay_as_they_are() -> None:
    prior = np.array([2.0, 7.0, 1.0])
    make().predict(X, prior)
    assert prior.tolist() == [2.0, 7.0, 1.0]


@pytest.mark.parametrize("word", ["own", "uniform", "estimated"])
def test_blanks_around_a_word_are_nothing(word: str) -> None:
    assert make().predict(X, f" {word}\n").notes == make().predict(X, word).notes


def test_one_class_may_be_certain() -> None:
    assert make().predict(X, [0, 0, 5]).probabilities.tolist() == [[0.0, 0.0, 1.0]] * 50


# -------------------- shares that are estimated

CENTRES = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])


def draw(shares: list[float], size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw samples of classes that are normal distributions around their centres."""
    rng = np.random.default_rng(1)
    y = rng.choice(3, size, p=shares)
    return CENTRES[y] + rng.normal(size=(size, 2)), y


def test_a_shift_is_found_from_samples_without_labels() -> None:
    """The network knows the logarithms of the densities, up to what all classes share."""
    module = linear(CENTRES, -(CENTRES**2).sum(1) / 2)
    model = PortableModel(module, replace(SIGNATURE, input_shape=(2,)), {}, {}, Calibration(1.0, (0.05, 0.05, 0.9)))
    x, y = draw([0.8, 0.17, 0.03], 4000)
    found = model.predict(x, "estimated")
    # Two standard errors of the shares in what was drawn, and some more for what is not certain.
    assert found.prior == pytest.approx([0.8, 0.17, 0.03], abs=0.015)
    logits = x @ CENTRES.T - (CENTRES**2).sum(1) / 2
    assert found.probabilities == pytest.approx(softmax(logits + np.log(found.prior)), abs=1e-12)
    right = {prior: (model.predict(x, prior).labels == y).mean() for prior in ("estimated", "own", "uniform")}
    assert right["estimated"] > right["uniform"] + 0.01 > right["own"]
    assert found.notes[0].startswith("the prior is `estimated` from the 4000 samples: `red` ")


def test_so_few_that_it_is_said() -> None:
    assert "from the 50 samples, so few that it is uncertain: " in make().predict(X, "estimated").notes[0]
    assert "from the 1 sample, so few that it is uncertain: " in make().predict(X[:1], "estimated").notes[0]


def test_what_an_estimate_rests_on_is_said_where_it_decides_something() -> None:
    found, uniform = make().predict(X, "estimated"), make().predict(X, "uniform")
    changed = (found.labels != uniform.labels).sum()
    assert 0 < changed < 50
    assert found.notes[1:] == (
        f"careful: against `uniform`, the estimate changed {changed} of 50 answers. If the model's probabilities are "
        "too timid, as after few rounds, an estimate collapses to few classes; compare both.",
    )
    assert len(make().predict(100 * X, "estimated").notes) == 1
    for other in ("own", "uniform", [1, 2, 3]):
        assert len(make().predict(X, other).notes) == 1


def test_an_estimate_on_a_network_that_is_trained_and_on_one_that_is_right_but_not_sure() -> None:
    """Digits, trained with calibration on uneven classes, on a drift; then the same answers with a tenth of the logits.

    The limit that docs/models.md tells: such a network is as right as before for all classes alike.
    """
    images, y = DATASETS["digits"]().load(Path()).train
    x = images.reshape(len(images), 64) / 16
    test_x, test_y = x[1200:], y[1200:]
    kept = np.flatnonzero((y[:1200] < 5) | (np.arange(1200) % 5 == 0))
    shares = np.bincount(y[kept], minlength=10) / len(kept)
    layer, inputs, targets = linear(np.zeros((10, 64)), np.zeros(10)), torch.tensor(x[kept]), torch.tensor(y[kept])
    adjustment = prior_adjustment(torch.tensor(shares), 1.0)
    for _ in range(150):
        loss = nn.functional.cross_entropy(layer(inputs) + adjustment, targets)
        slopes = torch.autograd.grad(loss, [layer.weight, layer.bias])
        with torch.no_grad():
            layer.weight.sub_(2 * slopes[0])
            layer.bias.sub_(2 * slopes[1])
    signature = Signature((64,), tuple("0123456789"), Normalisation(), "float64")
    model = PortableModel(layer.requires_grad_(False), signature, {}, {}, Calibration(1.0, tuple(shares)))
    drift = test_y >= 8

    def accuracy(prior: str, rows: NDArray[Any]) -> float:
        return float((model.predict(test_x[rows], prior).labels == test_y[rows]).mean())

    everything = np.ones_like(drift)
    assert accuracy("estimated", drift) > accuracy("uniform", drift) > accuracy("own", drift)
    before = accuracy("uniform", everything)
    assert accuracy("estimated", everything) > before - 0.01
    layer.weight.div_(10)
    layer.bias.div_(10)
    assert accuracy("uniform", everything) == before
    assert accuracy("estimated", everything) < before - 0.1


def test_classes_that_a_client_never_held_are_named_when_they_are_expected() -> None:
    shares = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    prior = Calibration(1.0, (1.0, 0.0, 0.0)).choose(shares, 3)
    assert prior is not None
    foreign = "The client has no sample of `c`, `b`: what the model knows of them can only come from others."
    assert prior.describe("abc", 500).endswith(f"`b` 20.0 %. {foreign}")
    # An estimate leaves a bit of everything.
    for share, named in ((0.0009, False), (0.0011, True)):
        estimated = replace(prior, name="estimated", shares=torch.tensor([1 - share, 0, share], dtype=torch.float64))
        assert ("no sample of `c`:" in estimated.describe("abc", 500)) == named
    for wanted in ("own", "uniform"):
        assert "no sample of" not in " ".join(make().predict(X, wanted).notes)


def test_a_sentence_lists_some_classes() -> None:
    shares = torch.tensor([0.3, 0.0, 0.2, 0.1, 0.15, 0.14, 0.1099, 0.0001], dtype=torch.float64)
    prior = Calibration(1.0).choose(shares, 8)
    assert prior is not None
    said = prior.describe("abcdefgh", 3)
    listed = "`a` 30.0 %, `c` 20.0 %, `e` 15.0 %, `f` 14.0 %, `g` 11.0 %, 1 more"
    assert said == f"the prior is as given: {listed}; 1 class ruled out."


def test_a_sentence_lists_a_class_where_each_is_rare() -> None:
    prior = Calibration(1.0).choose([1] * 3000, 3000)
    assert prior is not None
    assert prior.describe(["x"] * 3000, 3).endswith("`x` 0.0 %, `x` 0.0 %, 2995 more.")


def test_another_weight_than_one_knows_its_own_distribution_alone() -> None:
    """Its answers hold some of the client's shares, and are right where they hold."""
    model = make(Calibration(0.5, SHARES))
    expected = softmax(X[:, :2] + 0.5 * np.log([0.75, 0.25]))
    assert model.predict(X, "own").probabilities[:, :2] == pytest.approx(expected, abs=1e-12)
    plain = model.predict(X, "uniform")
    assert plain.probabilities == pytest.approx(softmax(X), abs=1e-12)
    assert plain.notes == (
        "the prior is `uniform`: the answers as they are, which hold some of the class shares of training (the model "
        "was calibrated with 0.5, not 1).",
    )
    assert make(Calibration(0.5)).predict(X).notes == plain.notes
    for calibration, known in ((Calibration(0.5, SHARES), "`own`, or "), (Calibration(0.5), "")):
        for prior in ("estimated", "1,1,1", [1, 1, 1]):
            assert refused(lambda c=calibration, prior=prior: make(c).predict(X, prior)) == (  # type: ignore[misc]
                "`prior` is given, but the model was calibrated with 0.5, not 1: its answers hold some of the class "
                f"shares of training; use {known}`uniform` for its answers as they are."
            )


def test_a_small_share_is_not_none() -> None:
    """Single precision has no number for it, but one for its logarithm."""
    found = make(Calibration(1.0), "float32").predict([[0.0, 0.0, 232.0]], [1, 0, 1e-100])
    assert found.probabilities[0] == pytest.approx(
        softmax(np.array([[0, -np.inf, 232 - 100 * np.log(10)]]))[0], rel=1e-4
    )
    assert found.labels.tolist() == [2]


# -------------------- what is refused

WRONG: dict[str, tuple[Any, str]] = {
    "another word": (
        "unifrom",
        "is `unifrom`, which is neither `estimated`, `own`, `uniform` nor numbers; did you mean `uniform`?",
    ),
    "a capital": ("Own", "is `Own`, which is neither `estimated`, `own`, `uniform` nor numbers; did you mean `own`?"),
    "no word of ours": (
        "x" * 99,
        f"is `{'x' * 37}...`, which is neither `estimated`, `own`, `uniform` nor numbers; give shares as ",
    ),
    "a file": (
        "estimated.npy",
        "is `estimated.npy`, which is neither `estimated`, `own`, `uniform` nor numbers; give shares as ",
    ),
    "semicolons": (
        "0.2;0.7;0.1",
        "is `0.2;0.7;0.1`, which is neither `estimated`, `own`, `uniform` nor numbers; give shares as ",
    ),
    "nothing": ("", "is empty; give `estimated`, `own`, `uniform`, or a number for each class, with commas between."),
    "too few": ("1,2", "has 2 values for 3 classes; give one number for each class."),
    "too many": ([1, 2, 3, 4], "has 4 values for 3 classes; "),
    "a comma at the end": ("1,2,3,", "has 4 values for 3 classes; "),
    "one": ("1", "has 1 value for 3 classes; "),
    "no row": (3.0, "has the shape [] for 3 classes; "),
    "a table": ([[1, 2, 3]], "has the shape [1, 3] for 3 classes; "),
    "negative": ([1, -0.5, 1], "is -0.5 for class 1; give finite numbers that are 0 or more."),
    "negative in words": ("-1,0,1", "is -1 for class 0; "),
    "not a number": ([1, np.nan, 1], "is nan for class 1; "),
    "not a number in words": ("1,1,nan", "is nan for class 2; "),
    "infinite": ([np.inf, 1, 1], "is inf for class 0; "),
    "zeros": ("0,0,0", "is 0 for every class; give a number above 0 for at least one of them."),
    "a word among numbers": ("1,two,3", "is `two` for class 1; give a number for each class, with commas between."),
    "a hole": ("1,,3", "is empty for class 1; "),
    "rows of two lengths": ([[1], [2, 3]], "has rows of unequal length; "),
    "too large for a double": ([np.longdouble("1e4000"), 1, 1], "is inf for class 0; "),
    "masked": (np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False]), "has masked values, which would be read as "),
    "words in a row": (["a", "b", "c"], "holds <U1 values; "),
    "something else": ({"red": 1}, "holds object values; "),
}


@pytest.mark.parametrize("case", WRONG)
def test_priors_that_make_no_sense(case: str) -> None:
    prior, found = WRONG[case]
    assert refused(lambda: make().predict(X, prior)).startswith(f"`prior` {found}")


def test_own_needs_a_client() -> None:
    assert refused(lambda: make(Calibration(1.0)).predict(X, "own")) == (
        "`prior` is `own`, but the model belongs to no client whose class shares it could know; use `uniform`, "
        "`estimated`, or a number for each class."
    )


@pytest.mark.parametrize("prior", ["uniform", "own", "estimated", [1, 1, 1], "1,1,1"])
def test_a_model_without_calibration_takes_no_prior(prior: Any) -> None:
    assert refused(lambda: fedmate.predict(make(NO_CALIBRATION), X, prior=prior)) == (
        "`prior` is given, but the model is not calibrated: its answers hold the class shares of its training; leave "
        "`prior` out, or train with `method.calibration=1` (`method.own_prior` does not change training, so it is not "
        "enough for a model that a client has trained for itself)."
    )


# -------------------- files


def reload(path: Path) -> PortableModel:
    return load_model(path, make().module)


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the description in a model's file."""
    tensors, note = unpack(path.read_bytes())
    change(note)
    path.write_bytes(pack(tensors, note))


def test_files_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    make().save(path)
    again = reload(path)
    assert again.calibration == OWN
    for prior in (None, "uniform", "estimated", [1, 2, 3]):
        expected = make().predict(X, prior)
        assert again.predict(X, prior).probabilities == pytest.approx(expected.probabilities, abs=1e-12)
        assert again.predict(X, prior).notes == expected.notes
    # As it was written before there was any of this.
    rewrite(path, lambda note: note.pop("calibration"))
    old = reload(path)
    assert old.calibration == NO_CALIBRATION
    assert old.predict(X).prior is None
    assert np.array_equal(old.predict(X).probabilities, again.predict(X, "uniform").probabilities)


def test_files_of_other_models_say_nothing_about_it(tmp_path: Path) -> None:
    make(NO_CALIBRATION).save(tmp_path / "plain.safetensors")
    assert {*unpack((tmp_path / "plain.safetensors").read_bytes())[1]} == {
        "format",
        "signature",
        "architecture",
        "origin",
    }
    make(Calibration(2.0)).save(tmp_path / "nobodys.safetensors")
    assert reload(tmp_path / "nobodys.safetensors").calibration == Calibration(2.0)


@pytest.mark.parametrize(
    "value",
    [
        3,
        None,
        {"tau": 1.0},
        {"shares": None},
        {"tau": "one", "shares": None},
        {"tau": -1.0, "shares": None},
        {"tau": 0.0, "shares": None},
        {"tau": 10**400, "shares": None},
        {"tau": 1.0, "shares": [0.5, 0.5]},
        {"tau": 1.0, "shares": [1.5, -0.5, 0.0]},
        {"tau": 1.0, "shares": [0.5, 0.6, 0.5]},
        {"tau": 1.0, "shares": "abc"},
        {"tau": 1.0, "shares": 0.5},
        {"tau": 1.0, "shares": []},
    ],
)
def test_descriptions_that_make_no_sense(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "m.safetensors"
    make().save(path)
    rewrite(path, lambda note: note.update(calibration=value))
    assert "cannot be used: its description is not fedmate's" in refused(lambda: reload(path))


# -------------------- models of runs

SETTINGS = {
    "rounds": 2,
    "backend": "sequential",
    "dtype": "float64",
    "partition.clients": 2,
    "partition.examples": 60,
    "training.learning_rate": 0.1,
    "method.calibration": 1.0,
}


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a personal classifier and a global model."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    fedmate.run(method="fedmate", set=SETTINGS, out=folder)
    return folder


def counts(folder: Path, client: int) -> NDArray[Any]:
    return np.bincount(build(stored_experiment(folder)).federation.clients[client].y, minlength=10)


def test_a_runs_own_figures_come_out_again(calibrated: Path) -> None:
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
        # Or nothing would have been compared.
        assert abs(row["pre_own"] - accuracy(model, "uniform", held)) > 1


def test_shares_of_a_run_that_is_not_finished(
    calibrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(calibrated, folder)
    for name in ("summary.json", "clients.csv"):
        (folder / name).unlink()
    finished, found = (fedmate.export(place, client=1).calibration for place in (calibrated, folder))
    assert found == finished
    monkeypatch.setattr(ClientSplit, "sha256", "another")
    text = refused(lambda: fedmate.export(folder, client=1))
    assert text.startswith(f"`{folder}` was begun with other samples than its data set holds now, ")
    assert fedmate.export(folder, global_=True).calibration == Calibration(1.0)


def test_a_record_that_does_not_say(calibrated: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(calibrated, folder)
    path = folder / "clients.csv"
    head, *rows = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([head, *reversed(rows), ""]), encoding="utf-8")
    assert fedmate.export(folder, client=0).calibration == fedmate.export(calibrated, client=0).calibration
    cells = rows[0].split(",")
    zeros = cells[:2] + ["0"] * 10 + cells[12:]
    negative, words = ([*cells[:2], cell, *cells[3:]] for cell in ("-1", "many"))
    for row in (",".join(zeros), ",".join(negative), ",".join(words), rows[1], "0,3"):
        path.write_text("\n".join([head, row, rows[1], ""]), encoding="utf-8")
        assert refused(lambda: fedmate.export(folder, client=0)) == (
            f"`{path}` does not say how many samples of each class client 0 holds; put it back from a copy."
        ), row


def test_shares_leave_with_calibrated_models_only(
    calibrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are they looked for otherwise: export needs no data then."""
    plain = tmp_path / "plain"
    fedmate.run(method="local", set=SETTINGS | {"rounds": 1, "method.calibration": 0.0}, out=plain)
    (plain / "clients.csv").unlink()
    monkeypatch.setattr(ClientSplit, "sha256", "another")
    assert fedmate.export(plain, client=0).calibration == NO_CALIBRATION
    rng = np.random.default_rng(0)
    data = Pool(rng.integers(0, 17, (20, 64)).reshape(20, 1, 8, 8), [2, 5, 5, 5] * 5)
    assert fedmate.adapt(plain, data).model.calibration == NO_CALIBRATION
    assert fedmate.adapt(calibrated, data).model.calibration.tau == 1.0


OWN_PRIOR = SETTINGS | {"rounds": 1, "method.calibration": 0.0, "method.own_prior": True}


def test_the_control_makes_no_personal_model_calibrated(tmp_path: Path) -> None:
    """Such a model holds its client's shares: to add them would be to add them twice."""
    fedmate.run(method="fedrod", set=OWN_PRIOR, out=tmp_path / "run")
    model, x = fedmate.export(tmp_path / "run", client=1), np.zeros((1, 64))
    assert model.calibration == NO_CALIBRATION
    assert model.predict(x).prior is None
    assert "not calibrated" in refused(lambda: model.predict(x, "uniform"))
    assert fedmate.export(tmp_path / "run", global_=True).calibration == Calibration(1.0)


def test_the_control_asks_a_common_model_for_whom_it_is_exported(tmp_path: Path) -> None:
    """FedAvg's is everybody's; a newcomer's own training makes it the newcomer's."""
    folder = tmp_path / "run"
    fedmate.run(method="fedavg", set=OWN_PRIOR, out=folder)
    held = counts(folder, 1)
    assert fedmate.export(folder, client=1).calibration == Calibration(1.0, tuple(held / held.sum()))
    assert fedmate.export(folder, global_=True).calibration == Calibration(1.0)
    rng = np.random.default_rng(0)
    data = Pool(rng.integers(0, 17, (20, 64)).reshape(20, 1, 8, 8), [2, 5, 5, 5] * 5)
    assert fedmate.adapt(folder, data).model.calibration == NO_CALIBRATION


def test_the_control_tests_a_newcomers_models_as_they_answer(tmp_path: Path) -> None:
    """What it received and the global model are told its shares; what it saves is not, and is what was tested."""
    folder = tmp_path / "run"
    fedmate.run(method="fedavg", set=OWN_PRIOR | {"rounds": 5}, out=folder)
    images, labels = load_digits(return_X_y=True)
    own = np.concatenate([(labels == k).nonzero()[0][:number] for k, number in ((1, 20), (3, 4), (8, 8))])
    test = slice(800, 1500)
    found = fedmate.adapt(folder, Pool(images[own], labels[own], images[test], labels[test]))
    counts = np.bincount(labels[own], minlength=10)

    def accuracy(model: PortableModel, prior: Any) -> float:
        right = model.predict(images[test], prior).labels == labels[test]
        by_class = [100 * right[labels[test] == k].mean() for k in range(10)]
        return float(counts @ by_class / counts.sum())

    everybodys, mine = fedmate.export(folder, global_=True), found.model
    assert found.accuracy["before"] == found.accuracy["global"]
    assert found.accuracy["before"]["own"] == pytest.approx(accuracy(everybodys, counts))
    assert found.accuracy["after"]["own"] == pytest.approx(accuracy(mine, None))
    # Were they told otherwise, it would show.
    assert accuracy(everybodys, "uniform") != accuracy(everybodys, counts)
    assert accuracy(mine, None) != accuracy(replace(mine, calibration=Calibration(1.0)), counts)
    alone = fedmate.adapt(folder, Pool(images[:20], [5] * 20, images[test], labels[test]))
    assert alone.accuracy["before"]["own"] == alone.accuracy["global"]["own"] == 100
    assert any("and a global model is told so: its `own` is 100 %" in note for note in alone.notes)


def test_another_weight_leaves_with_the_model(tmp_path: Path) -> None:
    fedmate.run(method="fedrep", set=SETTINGS | {"rounds": 1, "method.calibration": 2.0}, out=tmp_path / "run")
    (row, _), model = fedmate.load(tmp_path / "run").clients, fedmate.export(tmp_path / "run", client=0)
    held = counts(tmp_path / "run", 0)
    assert model.calibration == Calibration(2.0, tuple(held / held.sum()))
    test = build(stored_experiment(tmp_path / "run")).federation.test
    right = model.predict(np.rint(test.x.numpy() * 6.017 + 4.884), "own").labels == test.y.numpy()
    by_class = [right[test.y.numpy() == k].mean() for k in range(10)]
    assert 100 * held @ by_class / held.sum() == pytest.approx(row["pre_own"], abs=1e-9)


def test_data_of_ones_own_are_asked_for_while_it_is_not_finished(tmp_path: Path) -> None:
    rng, folder = np.random.default_rng(0), tmp_path / "run"
    y = np.arange(40) % 4 % 3
    data = Pool(rng.normal(size=(40, 1, 8, 8)), y, rng.normal(size=(9, 1, 8, 8)), np.arange(9) % 3)
    settings = {"rounds": 1, "partition.clients": 2, "method.calibration": 1.0, "model.name": "digits_cnn"}
    fedmate.run(method="fedavg", set=settings, data=data, out=folder)
    finished = fedmate.export(folder, client=1).calibration
    assert finished.shares is not None
    (folder / "summary.json").unlink()
    (folder / "clients.csv").unlink()
    assert refused(lambda: fedmate.export(folder, client=1)).startswith("`dataset.name` is `given`, arrays that were")
    assert fedmate.export(folder, client=1, data=data).calibration == finished
