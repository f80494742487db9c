"""The package as Python sees it: what the command does, as functions, on named data or on a user's own."""

from __future__ import annotations

import importlib
import json
import runpy
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import fedmate
from fedmate import cli
from fedmate.errors import UserError
from fedmate.progress import RunProgress

SMALL: dict[str, Any] = {
    "rounds": 2,
    "eval_every": 1,
    "checkpoint_every": 1,
    "partition.clients": 3,
    "partition.examples": 10,
    "training.epochs": 1,
}
OWN: dict[str, Any] = {**SMALL, "rounds": 3, "training.batch_size": 4, "training.learning_rate": 0.1}
"""For a user's own pool."""

AS_THEY_ARE = {key: value for key, value in OWN.items() if not key.startswith("partition.")}
"""For a user's own sites."""


def samples(seed: int, size: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(size) % 3)
    return rng.normal(size=(size, 4)) + 2 * np.eye(3, 4)[y], y


def network(*middle: nn.Module, width: int = 5) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts = OrderedDict(body=nn.Linear(4, width), middle=nn.Sequential(*middle, nn.Tanh()))
        return nn.Sequential(OrderedDict(**parts, head=nn.Linear(width, 3)))


POOL = fedmate.Pool(*samples(0, 60), *samples(1, 30))
SITES = fedmate.Sites([samples(i + 2, 4 + 3 * i) for i in range(4)], test=samples(1, 30))
MINE: dict[str, Any] = {"data": POOL, "model": network(), "classifier": "head"}


def content(folder: Path) -> dict[str, Any]:
    """Return everything a run has written, but for what a clock wrote."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        match path.suffix:
            case ".jsonl":
                rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
                found[name] = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
            case ".json" if path.name == "summary.json":
                summary = json.loads(path.read_text(encoding="utf-8"))
                found[name] = {key: value for key, value in summary.items() if key != "seconds"}
            case ".json" if path.name == "checkpoint.json":
                found[name] = None
            case _:
                found[name] = path.read_bytes()
    return found


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["fedmate", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0


def settings(values: dict[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def refused(**options: Any) -> str:
    with pytest.raises(UserError) as caught:
        fedmate.run(**options)
    return str(caught.value)


# The names.


def test_what_is_offered_is_sorted_and_there() -> None:
    assert fedmate.__all__ == sorted(fedmate.__all__)
    assert dir(fedmate) == fedmate.__all__
    assert sorted([*fedmate._PLACES, "__version__"]) == fedmate.__all__
    for name, place in fedmate._PLACES.items():
        offered = getattr(fedmate, name)
        assert offered is getattr(importlib.import_module(place), name)
        assert offered.__doc__


def test_importing_the_package_and_its_errors_is_quick() -> None:
    code = """
import sys, fedmate
assert fedmate.UserError and fedmate.DivergedError and dir(fedmate)
print(sorted({name.split(".")[0] for name in sys.modules} & {"torch", "numpy", "sklearn", "rich", "typer"}))
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


# The same as the command.


def test_run_is_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "command")
    command(monkeypatch, "run", "--method", "fedmate", "--dataset", "digits", *settings(SMALL), "--out", out)
    record = fedmate.run(method="fedmate", dataset="digits", set=SMALL, out=tmp_path / "function")
    assert record.folder == tmp_path / "function"
    assert content(record.folder) == content(tmp_path / "command")
    assert fedmate.load(out).summary["accuracy"] == record.summary["accuracy"]


def test_an_experiment_may_be_a_file_or_what_it_would_hold(tmp_path: Path) -> None:
    text = 'seed = 4\n[method]\nname = "fedper"\npersonal_layers = 2\n[partition]\nname = "iid"\n'
    (tmp_path / "e.toml").write_text(text, encoding="utf-8")
    values = {"seed": 4, "method": {"name": "fedper", "personal_layers": 2}, "partition": {"name": "iid"}}
    changes = {**SMALL, "rounds": 1}
    ways: list[Any] = [str(tmp_path / "e.toml"), values]
    records = [fedmate.run(way, set=changes, out=tmp_path / str(i)) for i, way in enumerate(ways)]
    assert content(records[0].folder) == content(records[1].folder)
    assert (records[0].config["seed"], records[0].config["partition"]["name"]) == (4, "iid")
    assert values == {"seed": 4, "method": {"name": "fedper", "personal_layers": 2}, "partition": {"name": "iid"}}


def test_notes_are_warnings_of_the_callers_line(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 1, "method.classifier_epochs": 2}
    with pytest.warns(fedmate.NoteWarning) as warned:
        fedmate.compare(["fedrep", "fedavg"], set=settings, out=tmp_path / "both")
    said = [str(one.message) for one in warned]
    assert "`method.classifier_epochs=2` does not hold for `fedavg`, which has no such option." in said
    assert len(said) == len({*said})
    assert {one.filename for one in warned} == {__file__}


# A user's own data and network.


def test_your_own_sites_are_the_clients(tmp_path: Path) -> None:
    options = {**MINE, "data": SITES}
    record = fedmate.run(method="fedmate", set=AS_THEY_ARE, out=tmp_path / "run", **options)
    assert [row["samples"] for row in record.clients] == [4, 7, 10, 13]
    assert (record.config["partition"]["name"], record.config["partition"]["clients"]) == ("given", 4)


def test_batch_norm_and_dropout_are_welcome_and_the_callers_things_stay_as_they_are(tmp_path: Path) -> None:
    module, (x, y) = network(nn.BatchNorm1d(5), nn.Dropout(0.3)), samples(0, 60)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}, x.copy(), y.copy()
    numbers = torch.get_rng_state()
    mine: dict[str, Any] = {"data": fedmate.Pool(x, y, x, y), "model": module, "classifier": "head"}
    fedmate.run(method="fedmate", set=OWN, out=tmp_path / "run", **mine)
    assert_close(dict(module.state_dict()), before[0], rtol=0, atol=0)
    assert module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    assert np.array_equal(x, before[1])
    assert np.array_equal(y, before[2])
    assert torch.equal(torch.get_rng_state(), numbers)


def test_training_starts_from_the_networks_own_weights(tmp_path: Path) -> None:
    """Without a step, the global model is the network as it came."""
    settled = {**OWN, "training.learning_rate": 0.0, "training.weight_decay": 0.0}
    record = fedmate.run(method="fedavg", set=settled, out=tmp_path / "run", **MINE)
    x, y = samples(1, 30)
    with torch.no_grad():
        right = network()(torch.tensor(x, dtype=torch.float32)).argmax(1).numpy() == y
    expected = np.mean([100 * right[y == k].mean() for k in range(3)])
    assert record.accuracy("global") == pytest.approx(expected, abs=1e-9)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a tuple for data": ({"data": samples(0, 9)}, "`data` is a tuple; give `fedmate.Pool(x, y)`, or `fedmate.Sites"),
    "no classifier": (
        {"data": POOL, "model": network()},
        "`model` needs `classifier`, the name of its last layer; probably it is `head`.",
    ),
    "a lazy layer": (
        {**MINE, "model": nn.Sequential(OrderedDict(body=nn.LazyLinear(5), head=nn.Linear(5, 3)))},
        "`model` has `body.weight` of a lazy layer, which has no shape yet; run one sample through it first.",
    ),
    "samples of another width": (
        {**MINE, "data": fedmate.Pool(np.zeros((60, 8)), samples(0, 60)[1])},
        "`model` cannot read samples of shape (8,): ",
    ),
    "two networks": (
        {**MINE, "set": {**OWN, "model.name": "digits_cnn"}},
        "`model` is given, but `model.name` is `digits_cnn`; leave one of them out.",
    ),
    "the name alone": (
        {"set": {"dataset.name": "given"}},
        "`dataset.name` is `given`, arrays that were passed in",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_together_is_refused_and_nothing_written(tmp_path: Path, case: str) -> None:
    options, sentence = BAD[case]
    assert refused(**{"set": OWN, **options, "out": tmp_path / "run"}).startswith(sentence)
    assert list(tmp_path.iterdir()) == []


# Going on.


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder of a run on the user's own that was stopped after its first round of three."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunProgress, "round_ended", stop)
        with pytest.raises(KeyboardInterrupt):
            fedmate.run(method="fedmate", set=OWN, out=tmp_path / "cut", **MINE)
    return tmp_path / "cut"


def test_a_run_goes_on_with_the_same_things(cut: Path, tmp_path: Path) -> None:
    record = fedmate.load(cut)
    assert (record.finished, len(record.metrics)) == (False, 1)
    assert repr(record) == f"Record({str(cut)!r}: fedmate on given, 3 rounds, not finished)"
    other_weights = network()
    nn.init.zeros_(other_weights.get_parameter("body.weight"))
    found = fedmate.run(resume=cut, **{**MINE, "model": other_weights})
    whole = fedmate.run(method="fedmate", set=OWN, out=tmp_path / "whole", **MINE)
    assert content(found.folder) == content(whole.folder)
    assert record.finished
    # Once more: there is nothing to do.
    assert fedmate.run(resume=cut, **MINE).summary == found.summary


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {},
            "`dataset.name` is `given`, arrays that were passed in Python and are in no file; call "
            "`fedmate.run(..., data=...)`, and pass them again, with `resume=...`, to continue a run.",
        ),
        (
            {"data": POOL},
            "`model.name` is `given`, a network that was passed in Python and is in no file; call "
            "`fedmate.run(..., model=...)`, and pass it again, with `resume=...`, to continue a run.",
        ),
        ({**MINE, "data": fedmate.Pool(*samples(5, 60))}, "`data` holds other samples than the run began with; give"),
        ({**MINE, "model": network(width=6)}, "`model` has another structure than the network the run began with; "),
        ({**MINE, "classifier": "body"}, "`classifier` is `body`, but the run began with `head`; give that one."),
    ],
)
def test_a_run_does_not_go_on_with_other_things(cut: Path, options: dict[str, Any], sentence: str) -> None:
    before = content(cut)
    assert refused(resume=cut, **options).startswith(sentence)
    assert content(cut) == before


def test_a_comparison_goes_on_as_a_comparison(tmp_path: Path) -> None:
    records = fedmate.compare(["local", "fedavg"], set={**OWN, "rounds": 1}, out=tmp_path / "both", **MINE)
    again = fedmate.compare(resume=tmp_path / "both", **MINE)
    assert {name: record.summary for name, record in again.items()} == {
        name: record.summary for name, record in records.items()
    }
    assert "a comparison of 2 runs; use `fedmate.compare(resume=...)`" in refused(resume=tmp_path / "both", **MINE)


# The examples.


EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["your_dataset.py", "your_model_and_data.py"])
def test_an_example_runs_and_prints_where_its_records_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        record = fedmate.load(tmp_path / line.split()[-1])
        assert f"{record.accuracy(test='own'):.1f} %" in line


def test_an_interrupt_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunProgress, "round_ended", interrupt)
    few = {"rounds": 2, "partition.clients": 2, "training.epochs": 1}
    with pytest.raises(KeyboardInterrupt) as caught:
        fedmate.run(method="local", set=few, out=tmp_path / "one")
    assert caught.value.__notes__ == [
        f"The rounds done are saved: `fedmate.run(resume={str(tmp_path / 'one')!r})` goes on."
    ]
