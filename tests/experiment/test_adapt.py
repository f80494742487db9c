"""A client that was not in training adapts: in Python and as a command, with figures that the run itself would give."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import fedmate
from fedmate import cli
from fedmate.backends.client import Adapted
from fedmate.core import Augmentation, flatten
from fedmate.data import DATASETS, Samples
from fedmate.errors import UserError
from fedmate.experiment.adapt import _notes
from fedmate.experiment.build import build
from fedmate.experiment.config import load_file, resolve
from fedmate.experiment.newcomer import Newcomer
from fedmate.experiment.priors import Calibration
from fedmate.experiment.restore import Restored

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


def network(width: int = 4) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        norm, drop = nn.BatchNorm1d(width), nn.Dropout(0.2)
        layers = OrderedDict(body=nn.Linear(3, width), norm=norm, bend=nn.Tanh(), drop=drop, head=nn.Linear(width, 2))
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
    data = fedmate.Pool(*points(0, 60), *points(1, 30), class_names=["left", "right"])
    settings = {"rounds": 2, "partition.clients": 3, "training.learning_rate": 0.1}
    folder = tmp_path_factory.mktemp("mine") / "run"
    fedmate.run(method="fedavg", set=settings, data=data, model=network(), classifier="head", out=folder)
    return folder


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The figures.


@pytest.mark.parametrize("method", ["ditto", "fedavg", "fedbabu", "fedmate", "fedpac", "fedrod", "local"])
def test_adapting_gives_what_the_run_says_about_its_first_newcomer(runs: Callable[[str], Path], method: str) -> None:
    folder = runs(method)
    federation = build(resolve([load_file(folder / "config.toml")])).federation
    source = ARRAYS.normalisation.source(IMAGES, Augmentation(), torch.float64, "cpu")
    places = {row.numpy().tobytes(): i for i, row in enumerate(source.read(torch.arange(len(IMAGES))))}
    mine, test = (
        [places[row.numpy().tobytes()] for row in data.x] for data in (federation.newcomers[0], federation.test)
    )
    data = fedmate.Pool(IMAGES[mine], federation.newcomers[0].y, IMAGES[test], federation.test.y)
    before = snapshot(folder)
    found = fedmate.adapt(folder, data)
    assert snapshot(folder) == before
    assert not found.diverged
    assert all(" is better than the adapted one on the " in note for note in found.notes)
    expected = fedmate.load(folder).metrics[-1]["newcomers"]
    for view in ("before", "after"):
        for name in ("balanced", "own"):
            assert found.accuracy[view][name] == pytest.approx(expected[view][name]["clients"][0], abs=1e-9)
    assert sum(found.samples["train"].values()) == 12
    assert found.samples["test"] == {str(k): int((LABELS[test] == k).sum()) for k in range(10)}


def test_the_model_is_the_one_that_was_tested(runs: Callable[[str], Path], tmp_path: Path) -> None:
    """And what is saved is it, and reads raw samples."""
    x, y = IMAGES[:300], LABELS[:300]
    path = tmp_path / "model.safetensors"
    found = fedmate.adapt(runs("fedmate"), fedmate.Pool(IMAGES[-40:], LABELS[-40:], x, y), to=path)
    assert found.model.origin["client"] == "newcomer"
    assert found.model.origin["round"] == 1
    for model in (found.model, fedmate.load_model(path)):
        right = model.predict(x).labels == y
        by_class = [100 * right[y == k].mean() for k in range(10)]
        assert found.accuracy["after"]["balanced"] == pytest.approx(np.mean(by_class))
        counts = np.bincount(LABELS[-40:], minlength=10)
        assert found.accuracy["after"]["own"] == pytest.approx(counts @ by_class / counts.sum())


def test_a_calibrated_model_knows_the_newcomers_shares(runs: Callable[[str], Path], tmp_path: Path) -> None:
    """And answers as it was tested: on its own distribution with them, on the balanced one without."""
    x, y, own = IMAGES[:300], LABELS[:300], (LABELS[-200:] % 4 == 1).nonzero()[0] + len(LABELS) - 200
    path, counts = tmp_path / "model.safetensors", np.bincount(LABELS[own], minlength=10)
    found = fedmate.adapt(runs("fedmate_plus"), fedmate.Pool(IMAGES[own], LABELS[own], x, y), to=path)
    for model in (found.model, fedmate.load_model(path)):
        assert model.calibration == Calibration(1.0, tuple(counts / counts.sum()))
        for test, prior, weights in (("own", None, counts), ("balanced", "uniform", np.ones(10))):
            right = model.predict(x, prior).labels == y
            by_class = [100 * right[y == k].mean() for k in range(10)]
            assert found.accuracy["after"][test] == pytest.approx(weights @ by_class / weights.sum())
    assert {*np.flatnonzero(counts)} == {1, 5, 9}
    assert {*map(int, found.model.predict(x).labels)} <= {1, 5, 9}


@pytest.mark.parametrize(("method", "said"), [("fedmate_plus", True), ("fedmate", False)])
def test_a_calibrated_newcomer_of_one_class_is_pointed_out(
    runs: Callable[[str], Path], method: str, said: bool
) -> None:
    eights = (LABELS == 8).nonzero()[0]
    data = fedmate.Pool(IMAGES[eights[:20]], LABELS[eights[:20]], IMAGES[:100], LABELS[:100])
    found = fedmate.adapt(runs(method), data)
    assert any("holds one class, and the model is told so: its `own`" in note for note in found.notes) == said
    assert (found.accuracy["before"]["own"] == 100) == said
    several = fedmate.adapt(runs(method), fedmate.Pool(IMAGES[:40], LABELS[:40], IMAGES[:100], LABELS[:100]))
    assert not any("one class" in note for note in several.notes)


def test_before_is_the_broadcast(mine: Path) -> None:
    restored = Restored(mine, network())
    x, y = points(5, 80)
    found = fedmate.adapt(mine, fedmate.Pool(*points(4, 10), x, y), model=network())
    module = restored.method.setup.model.to_module(restored.server)
    with torch.no_grad():
        right = module(torch.tensor(x, dtype=torch.float32)).argmax(1).numpy() == y
    expected = np.mean([100 * right[y == k].mean() for k in range(2)])
    assert found.accuracy["before"]["balanced"] == pytest.approx(expected)
    assert found.samples == {"train": {"left": 5, "right": 5}, "test": {"left": 40, "right": 40}}
    assert repr(found).startswith("Adaptation(fedavg on given: own ")


@pytest.mark.parametrize("method", ["fedmate", "fedper", "local"])
def test_global_is_the_model_that_export_gives(runs: Callable[[str], Path], method: str) -> None:
    """And it is left out where there is none."""
    x, y = IMAGES[:300], LABELS[:300]
    found = fedmate.adapt(runs(method), fedmate.Pool(IMAGES[-40:], LABELS[-40:], x, y))
    try:
        model = fedmate.export(runs(method), global_=True)
    except UserError:
        assert list(found.accuracy) == ["before", "after"]
        return
    assert method == "fedmate"
    assert list(found.accuracy) == ["before", "after", "global"]
    right = model.predict(x).labels == y
    expected = np.mean([100 * right[y == k].mean() for k in range(10)])
    assert found.accuracy["global"]["balanced"] == pytest.approx(expected)


def test_private_statistics_leave_no_global_model(tmp_path: Path) -> None:
    settings = {"rounds": 1, "partition.clients": 3, "model.buffers": "private"}
    data = fedmate.Pool(*points(0, 60))
    fedmate.run(method="fedavg", set=settings, data=data, model=network(), classifier="head", out=tmp_path / "run")
    found = fedmate.adapt(tmp_path / "run", data, model=network())
    assert list(found.accuracy) == ["before", "after"]


def test_that_adapting_made_it_worse_is_said(mine: Path) -> None:
    """Trained on labels that are wrong, it must be."""
    (x, y), (test_x, test_y) = points(4, 40), points(5, 10)
    found = fedmate.adapt(
        mine, fedmate.Pool(np.repeat(x, 40, 0), np.repeat(1 - y, 40), test_x, test_y), model=network()
    )
    before, after = found.accuracy["before"]["own"], found.accuracy["after"]["own"]
    assert before is not None
    assert after is not None
    assert found.notes == (
        "the model it received (`before`) is better than the adapted one on the 10 test samples: own "
        f"{before:.2f} % against {after:.2f} %, but so few decide little.",
    )
    many = np.repeat(test_x, 10, 0), np.repeat(test_y, 10)
    found = fedmate.adapt(mine, fedmate.Pool(np.repeat(x, 40, 0), np.repeat(1 - y, 40), *many), model=network())
    assert found.notes[0].endswith(f"on the 100 test samples: own {before:.2f} % against {after:.2f} %.")


NOTES: list[tuple[dict[str, float | None], bool, str]] = [
    ({"before": 50.0, "after": 75.0, "global": 70.0}, True, ""),
    ({"before": 75.0, "after": 75.0, "global": 75.0}, True, ""),
    ({"before": 25.000000000000004, "after": 25.0}, True, ""),
    ({"before": None, "after": None}, False, ""),
    (
        {"before": 10.0, "after": 60.0, "global": 90.0},
        True,
        "the aggregated model (`global`) is better than the adapted",
    ),
    (
        {"before": 80.0, "after": 60.0, "global": 70.0},
        True,
        "the model it received (`before`) is better than the adapt",
    ),
    (
        {"before": 80.0, "after": 60.0},
        False,
        "the model it received (`before`) is better than the adapted one on the 1 ",
    ),
]


@pytest.mark.parametrize(("own", "held_back", "start"), NOTES)
def test_only_a_model_that_is_better_is_named(own: dict[str, float | None], held_back: bool, start: str) -> None:
    samples = Samples(np.zeros((1, 3)), np.array([0]))
    accuracy = {view: {"balanced": 1.0, "own": figure} for view, figure in own.items()}
    notes = _notes(Newcomer(samples, samples, held_back), Adapted({}, {}, torch.tensor(True)), accuracy)
    better = notes[held_back:]
    assert len(better) == bool(start)
    if better:
        assert better[0].startswith(start)
        assert f" on the 1 {'held-back' if held_back else 'test'} sample: own " in better[0]


def test_a_class_only_the_test_part_has_counts_for_balanced_alone(mine: Path) -> None:
    x, y = points(5, 40)
    found = fedmate.adapt(
        mine, fedmate.Pool(x[y == 1], y[y == 1], x[y == 0], y[y == 0], class_names=["left", "right"]), model=network()
    )
    assert found.accuracy["after"]["own"] is None
    assert found.accuracy["after"]["balanced"] is not None
    assert found.samples == {"train": {"left": 0, "right": 20}, "test": {"left": 20, "right": 0}}
    assert "own - before, - after" in repr(found)


def test_what_is_held_back_is_said(mine: Path) -> None:
    found, again = (fedmate.adapt(mine, fedmate.Pool(*points(4, 23)), model=network()) for _ in range(2))
    assert found.notes[0] == "there is no test part: 5 of 23 samples are held back for it."
    assert {part: sum(counts.values()) for part, counts in found.samples.items()} == {"train": 18, "test": 5}
    assert found.accuracy == again.accuracy
    assert_close(found.model.module.state_dict(), again.model.module.state_dict(), rtol=0, atol=0)


def test_a_newcomer_that_diverges_keeps_what_it_received_and_that_is_said(mine: Path, tmp_path: Path) -> None:
    x, y = points(4, 20)
    data = fedmate.Pool(x * 1e37, y, x, y)
    found = fedmate.adapt(mine, data, to=tmp_path / "m.safetensors", model=network())
    assert found.diverged
    assert found.notes == ("training diverged (not finite): the newcomer keeps the model it received.",)
    assert found.accuracy["after"] == found.accuracy["before"]
    server = Restored(mine, network()).server
    for model in (found.model, fedmate.load_model(tmp_path / "m.safetensors", model=network())):
        state = model.module.state_dict()
        received = {path.partition("/")[2]: leaf for path, leaf in flatten(server).items()}
        assert_close(state["body.weight"], received["body.weight"], rtol=0, atol=0)
        assert_close(state["norm.running_mean"], received["norm.running_mean"], rtol=0, atol=0)


def test_a_graph_can_be_saved(mine: Path, tmp_path: Path) -> None:
    x, y = points(5, 20)
    found = fedmate.adapt(str(mine), fedmate.Pool(x, y, x, y), to=str(tmp_path / "m.pt2"), model=network())
    answers = torch.export.load(tmp_path / "m.pt2").module()(torch.tensor(x, dtype=torch.float32)).softmax(-1)
    np.testing.assert_allclose(answers.detach(), found.model.predict(x).probabilities, atol=1e-6)


def test_the_callers_network_and_arrays_stay_as_they_are(mine: Path) -> None:
    module, (x, y) = network(), points(4, 20)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}, x.copy(), y.copy()
    fedmate.adapt(mine, fedmate.Pool(x, y), model=module)
    assert_close(module.state_dict(), OrderedDict(before[0]), rtol=0, atol=0)
    assert module.training
    assert np.array_equal(x, before[1])
    assert np.array_equal(y, before[2])


# What is refused.


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        fedmate.adapt(*arguments, **options)
    return str(caught.value)


def test_the_network_of_a_run_from_python_is_asked_for(mine: Path, runs: Callable[[str], Path]) -> None:
    data = fedmate.Pool(*points(4, 20))
    assert refused(mine, data).endswith(
        "came from Python and is in no file; hand it over as `model` in Python: `fedmate.export(..., model=...)`, "
        "`fedmate.adapt(..., model=...)`."
    )
    assert refused(mine, data, model=network(5)).startswith("`model` has another structure than the network the run")
    assert "leave it out" in refused(runs("fedavg"), data, model=network())


def test_numbers_beyond_the_runs_precision_are_refused(mine: Path) -> None:
    x, y = points(4, 20)
    for part, data in (("train", fedmate.Pool(x * 1e300, y)), ("test", fedmate.Pool(x, y, x * 1e300, y))):
        assert refused(mine, data, model=network()).startswith(
            f"`data` holds {part} samples that are too large for float32, the run's precision; check the scale"
        )


def test_a_run_without_a_trained_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fedmate.DivergedError):
        fedmate.run(method="local", set=RUN | {"training.learning_rate": 1e300}, out=tmp_path / "run")
    assert "diverged in its first round" in refused(tmp_path / "run", fedmate.Pool(IMAGES[:20], LABELS[:20]))


# The command.

Command = Callable[..., tuple[object, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `fedmate adapt ARGUMENTS...` in an empty folder; return the status and both streams."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmate", "adapt", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code, *capsys.readouterr()

    return run


def test_the_command_prints_what_the_function_returns(
    command: Command, runs: Callable[[str], Path], tmp_path: Path
) -> None:
    np.savez(tmp_path / "clinic.npz", train_x=IMAGES[:30], train_y=LABELS[:30].astype(str))
    status, out, err = command(runs("fedper"), "--data", "clinic.npz", "--to", "model.safetensors")
    assert (status, err) == (0, "")
    expected = fedmate.adapt(runs("fedper"), tmp_path / "clinic.npz")
    assert expected.notes[0] == "there is no test part: 6 of 30 samples are held back for it."
    said = [*(f"Note: {note}" for note in expected.notes), "A newcomer to fedper on digits, after round 1:"]
    assert out.splitlines()[: len(said)] == said
    assert out.splitlines()[-1] == "Model: model.safetensors"
    lines = [line.split() for line in out.splitlines()]
    for view in expected.accuracy:
        figures = [f"{expected.accuracy[view][name]:.2f}" for name in ("balanced", "own")]
        assert [view, *figures] in lines
    for name, count in expected.samples["train"].items():
        assert [name, str(count), str(expected.samples["test"][name])] in lines
    assert ["all", "24", "6"] in lines
    model = fedmate.load_model(tmp_path / "model.safetensors")
    assert_close(model.module.state_dict(), expected.model.module.state_dict(), rtol=0, atol=0)


BAD: dict[str, tuple[list[str], list[str]]] = {
    "no run": (["nowhere", "--data", "good.npz"], ["`nowhere` holds no record", "give the folder of a run"]),
    "no file": (["RUN", "--data", "missing.npz"], ["`missing.npz` does not exist; give"]),
    "no such arrays": (["RUN", "--data", "odd.npz"], ["`odd.npz` holds `a`; give `train_x` and `train_y`"]),
    "wrong shape": (["RUN", "--data", "shape.npz"], ["`shape.npz:x` has the shape [4, 5]; give [samples, 1, 8, 8]"]),
    "file taken": (["RUN", "--data", "good.npz", "--to", "taken.pt2"], ["`taken.pt2` exists already and is not over"]),
    "unknown format": (["RUN", "--data", "good.npz", "--to", "m.onnx"], ["`m.onnx` ends in `.onnx`; name the model"]),
    "no folder": (["RUN", "--data", "good.npz", "--to", "a/m.pt2"], ["folder `a`, which does not exist; make it"]),
}


@pytest.mark.parametrize("case", BAD)
def test_the_command_refuses_in_one_sentence(
    command: Command, runs: Callable[[str], Path], tmp_path: Path, case: str
) -> None:
    np.savez(tmp_path / "good.npz", x=IMAGES[:20], y=LABELS[:20])
    np.savez(tmp_path / "odd.npz", a=IMAGES[:20])
    np.savez(tmp_path / "shape.npz", x=np.zeros((4, 5)), y=LABELS[:4])
    (tmp_path / "taken.pt2").write_bytes(b"mine")
    arguments, fragments = BAD[case]
    before = snapshot(tmp_path)
    status, out, err = command(*(str(runs("local")) if word == "RUN" else word for word in arguments))
    assert (status, out) == (2, "")
    assert snapshot(tmp_path) == before
    (sentence,) = err.splitlines()
    assert sentence.startswith("Error: `")
    assert [fragment for fragment in fragments if fragment not in sentence] == []
