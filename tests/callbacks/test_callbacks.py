"""Callbacks: when they are called and with what, what a failing one costs, early stopping, and trackers."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors.torch import load_file

import fedmate
from fedmate import Callback, Record, UserError, cli
from fedmate.callbacks import EarlyStopping, TensorBoard
from fedmate.experiment.callback import CALLBACKS, RoundSummary, Run, replay
from fedmate.experiment.checkpoint import Checkpoint

PAGE = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
ROUNDS = 6
SETTINGS = {
    "rounds": ROUNDS,
    "eval_every": 2,
    "checkpoint_every": 2,
    "participation": 0.7,
    "seed": 3,
    "partition.clients": 3,
    "partition.examples": 10,
    "training.epochs": 1,
    "method.name": "fedavg",
    "method.tuning_epochs": 0,
}
STUCK = {"eval_every": 1, "training.learning_rate": 0.0, "callbacks.early_stopping": {"patience": 3}}
"""No evaluation is better than the first, so a run ends after round 4."""


class Crash(BaseException):
    """Ends a process."""


class Listener(Callback):
    """Writes down what it is called with, and fails or crashes at an event."""

    def __init__(self, fails_at: str = "", crashes_after: int = 0) -> None:
        self.calls, self.fails_at, self.crashes_after = list[tuple[str, Any]](), fails_at, crashes_after

    def _note(self, event: str, content: object) -> None:
        self.calls.append((event, content))
        if event == self.fails_at:
            raise ValueError("no connection")

    def of(self, event: str) -> list[Any]:
        return [content for name, content in self.calls if name == event]

    def run_started(self, run: Run) -> None:
        self._note("run_started", run)

    def round_ended(self, summary: RoundSummary) -> None:
        self._note("round_ended", summary)
        if summary.round == self.crashes_after:
            raise Crash

    def run_ended(self, summary: Mapping[str, Any] | None) -> None:
        self._note("run_ended", summary)

    def warned(self, message: str) -> None:
        self._note("warned", message)


def run(out: Path, *callbacks: Callback, **changes: Any) -> Record:
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return fedmate.run(set={**SETTINGS, **changes}, out=out, callbacks=callbacks)


def outcome(record: Record) -> list[Any]:
    """Return all of a record but for clocks."""
    metrics = [{**row, "seconds": None} for row in record.metrics]
    (server,) = (record.folder / "checkpoint").glob("server-*")
    state = {name: tensor.tolist() for name, tensor in load_file(server).items()}
    tables = [(record.folder / name).read_bytes() for name in ("rounds.csv", "clients.csv")]
    return [{**record.summary, "seconds": None}, metrics, *tables, server.name, state]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return fedmate.run(set={**SETTINGS, **STUCK}, out=tmp_path_factory.mktemp("stuck") / "run")


# -------------------- what is called, and when


def test_a_callback_hears_all_that_the_record_holds_and_changes_nothing(tmp_path: Path, plain: Record) -> None:
    live, replayed = Listener(), Listener()
    record = run(tmp_path / "run", live)
    assert outcome(record) == outcome(plain)
    assert [event for event, _ in live.calls if event != "warned"] == [
        "run_started",
        *["round_ended"] * ROUNDS,
        "run_ended",
    ]
    assert live.of("run_ended") == [record.summary]
    (begun,) = live.of("run_started")
    assert (begun.done, begun.config, begun.primary) == (0, record.config, ("pre", "balanced"))
    rounds = live.of("round_ended")
    assert [one.metrics["round"] if one.metrics else None for one in rounds] == [None, 2, None, 4, None, 6]
    assert [one.metrics for one in rounds if one.metrics] == record.metrics
    assert rounds[-1].bytes == {way: record.summary[f"bytes_{way}"] for way in ("up", "down")}
    assert all(one.result is not None for one in rounds)
    replay(record, replayed)
    assert replayed.of("round_ended") == [one._replace(result=None) for one in rounds]
    assert replayed.of("run_ended") == [record.summary]


def test_scalars_are_the_single_numbers_of_a_round() -> None:
    clients = [
        {"round": 2, "client": 0, "valid": 1, "loss_before": 3.0, "loss_after": 1.0, "up_extractor": 4},
        {"round": 2, "client": 4, "valid": 0, "loss_before": float("nan"), "loss_after": 9.0, "up_extractor": 4},
    ]
    view = {"balanced": {"mean": 50.0, "std": 1.0, "worst_tenth": None, "per_class": [1.0], "clients": [50.0]}}
    metrics = {"round": 2, "accuracy": {"pre": view, "post": None}, "loss": {"before": 3.0, "after": 1.0}, "seconds": 7}
    summary = RoundSummary(2, clients, {**metrics, "bytes": {"up": {"extractor": 8}}}, 50.0, {"up": 8, "down": 0})
    assert summary.dropped == [4]
    assert summary.scalars() == {
        "accuracy/pre/balanced/mean": 50.0,
        "accuracy/pre/balanced/std": 1.0,
        "loss/before": 3.0,
        "loss/after": 1.0,
        "seconds": 7,
        "bytes/up": 8,
        "bytes/down": 0,
        "clients/dropped": 1,
    }


@pytest.mark.parametrize("event", ["run_started", "round_ended", "run_ended"])
def test_a_callback_that_fails_is_one_warning_and_no_more(tmp_path: Path, plain: Record, event: str) -> None:
    failing, listener = Listener(fails_at=event), Listener()
    assert outcome(run(tmp_path / "run", failing, listener)) == outcome(plain)
    assert len(failing.of(event)) == 1
    (warning,) = (message for message in listener.of("warned") if "failed" in message)
    assert warning == "the callback `Listener` failed and is left out from here (ValueError: no connection)."
    assert len(listener.of("round_ended")) == ROUNDS


def test_callbacks_that_cannot_be_warned_do_not_stop_a_run_either(tmp_path: Path) -> None:
    listeners = [Listener(fails_at="warned") for _ in range(2)]
    record = run(tmp_path / "run", Listener(fails_at="run_started"), *listeners, rounds=1)
    assert record.finished


def test_an_interrupted_run_ends_for_its_callbacks(tmp_path: Path, plain: Record) -> None:
    listener, after = Listener(crashes_after=3), Listener()
    with pytest.raises(Crash):
        run(tmp_path / "run", listener)
    assert listener.of("run_ended") == [None]
    record = fedmate.run(resume=tmp_path / "run", callbacks=[after])
    (begun,) = after.of("run_started")
    assert begun.done == Checkpoint(tmp_path / "run").state.round - len(after.of("round_ended")) == 2
    assert [one.round for one in begun.history()] == [1, 2]
    assert outcome(record) == outcome(plain)


# -------------------- early stopping


@pytest.mark.parametrize(
    ("options", "figures", "ends"),
    [
        ({"patience": 2}, [50, 60, 60, 59, 70], 4),
        ({"patience": 2}, [50, 60, 59, 61, 60, 60], 6),
        ({"patience": 1, "min_delta": 5.0}, [50, 56, 61], 3),
        ({"patience": 2}, [None, None, 10], 2),
        ({"patience": 2}, [None, 10, None, None], 4),
        ({"patience": 1, "metric": "loss"}, [3, 2, 2.5], 3),
        ({"patience": 1, "metric": "calibration_error", "min_delta": 0.5}, [3, 2, 1.6], 3),
        ({"patience": 1, "metric": "calibration_error", "mode": "max"}, [3, 2], 2),
        ({"patience": 1, "view": "global", "test": "own"}, [50, 60], None),
    ],
)
def test_when_early_stopping_ends_a_run(
    tmp_path: Path, options: dict[str, Any], figures: list[float | None], ends: int | None
) -> None:
    callback, started = EarlyStopping(**options), Run(tmp_path, 0, ("post", "balanced"))
    vars(started)["config"] = {"evaluation": {"metrics": ["calibration_error"]}}
    (tmp_path / "config.toml").touch()
    # The second time tells whether a new run begins anew.
    for _ in range(2):
        assert not callback.run_started(started)
        found = None
        for number, value in enumerate(figures, 1):
            tests = {test: {"mean": value} for test in ("balanced", "own")}
            views = {"post": {"balanced": {"mean": 0.0}}} | {(callback.view or "post"): tests}
            metrics = dict.fromkeys(("accuracy", "calibration_error"), views) | {"loss": {"after": value}}
            if callback.round_ended(RoundSummary(number, [], metrics, None, {})) and found is None:
                found = number
            assert callback.round_ended(RoundSummary(number, [], None, None, {})) == (found is not None)
            if found is not None:
                break
        assert found == ends


def test_a_run_that_ends_early_says_so(stuck: Record) -> None:
    assert stuck.summary["stopped_after_round"] == len(stuck.metrics) == Checkpoint(stuck.folder).state.round == 4
    assert stuck.summary["accuracy"]["post"]["own"]["mean"] == stuck.metrics[-1]["accuracy"]["post"]["own"]["mean"]
    assert fedmate.export(stuck.folder, global_=True).predict([[0.0] * 64]).probabilities.shape == (1, 10)


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("after", [2, 4])
def test_a_killed_run_ends_after_the_same_round(tmp_path: Path, stuck: Record, after: int, every: int) -> None:
    """Also if it was killed when it was about to end."""
    with pytest.raises(Crash):
        fedmate.run(
            set={**SETTINGS, **STUCK, "checkpoint_every": every},
            out=tmp_path / "run",
            callbacks=[Listener(crashes_after=after)],
        )
    assert outcome(fedmate.run(resume=tmp_path / "run")) == outcome(stuck)


def test_a_wrong_figure_is_found_before_the_first_round_or_in_the_record(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`callbacks.early_stopping.metric` is `auroc`; did you mean|known are"):
        run(tmp_path / "run", EarlyStopping(metric="auroc"))
    listener = Listener()
    run(tmp_path / "other", EarlyStopping(view="pots", patience=1), listener, eval_every=1, rounds=2)
    assert any("did you mean `post`" in message for message in listener.of("warned"))


# -------------------- by name


def test_callbacks_are_named_by_files_and_settings_and_go_on_with_a_run(tmp_path: Path, stuck: Record) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text("[callbacks.early_stopping]\npatience = 1\nmin_delta = 0.5\n[callbacks.missing]\n")
    settings = {**SETTINGS, **STUCK, "callbacks.missing": False}
    with pytest.raises(Crash):
        fedmate.run(file, set=settings, out=tmp_path / "run", callbacks=[Listener(crashes_after=1)])
    kept = (tmp_path / "run" / "callbacks.toml").read_text()
    assert kept == "[callbacks.early_stopping]\npatience = 3\nmin_delta = 0.5\n"
    assert "callbacks" not in Record(tmp_path / "run").config
    # Other callbacks are no other experiment.
    record = fedmate.run(resume=tmp_path / "run", set={"callbacks.early_stopping": False})
    assert len(record.metrics) == ROUNDS
    assert "stopped_after_round" not in record.summary


@pytest.mark.parametrize(
    ("given", "phrase"),
    [
        ({"callbacks.erly_stopping": True}, "`callbacks.erly_stopping`: .* did you mean `early_stopping`"),
        ({"callbacks.early_stopping": 3}, "`callbacks.early_stopping` in set is 3; write"),
        ({"callbacks.early_stopping": {"patiance": 3}}, "not an option of `early_stopping`; did you mean `patience`"),
        ({"callbacks.early_stopping": {"patience": 0}}, "`callbacks.early_stopping.patience` is 0; set it to"),
        ({"callbacks": True}, "`callbacks` in set is true; it is a section"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(tmp_path: Path, given: dict[str, Any], phrase: str) -> None:
    with pytest.raises(UserError, match=phrase):
        fedmate.run(set={**SETTINGS, **given}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_object_of_another_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`callbacks` holds 3; give objects of classes that derive from `Callback`"):
        fedmate.run(out=tmp_path / "run", callbacks=[3])  # type: ignore[list-item]


def test_the_callback_of_the_page_works_by_name_and_as_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len([line for line in source.splitlines() if line.strip()]) <= 15
    (tmp_path / "page.py").write_text(source)
    info = tmp_path / "page-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: page\nVersion: 1.0\n")
    (name,) = re.findall(r"(\w+) = \"my_package:TimeBudget\"", PAGE)
    (info / "entry_points.txt").write_text(f"[fedmate.callbacks]\n{name} = page:TimeBudget\n")
    monkeypatch.syspath_prepend(tmp_path)
    named = run(tmp_path / "named", callbacks__time_budget={"minutes": 0.0})
    assert named.summary["stopped_after_round"] == 1
    assert name in CALLBACKS.names()
    module = __import__("page")
    assert run(tmp_path / "long", module.TimeBudget(minutes=5.0), rounds=2).summary.get("stopped_after_round") is None


# -------------------- trackers


class Stand:
    """Stands in for a tracker's package: remembers the calls of its functions."""

    def __init__(self) -> None:
        self.calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]()

    def module(self, name: str, functions: str) -> ModuleType:
        module = ModuleType(name)
        for function in functions.split():
            setattr(module, function, lambda *args, _f=function, **named: self.calls.append((_f, args, named)))
        return module


TRACKERS = {
    "wandb": ("init log finish", "init", "log", "finish"),
    "trackio": ("init log finish", "init", "log", "finish"),
    "mlflow": ("set_experiment start_run log_params log_metrics end_run", "start_run", "log_metrics", "end_run"),
}
"""By name: what a package's documentation names, and of it what begins a run, logs, and ends it."""


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_gets_every_round_once_and_the_same_from_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    functions, begins, logs, ends = TRACKERS[name]
    stand = Stand()
    monkeypatch.setitem(sys.modules, name, stand.module(name, functions))
    record = run(tmp_path / "run", **{f"callbacks__{name}": {"project": "hospitals"}})
    live, stand.calls = stand.calls, []
    assert [function for function, _, _ in live][-1] == ends
    assert [function for function, _, _ in live].count(begins) == 1
    assert "hospitals" in [*live[0][1], *live[0][2].values()]
    logged = [(args[0], named["step"]) for function, args, named in live if function == logs]
    assert [step for _, step in logged] == list(range(1, ROUNDS + 1))
    assert logged[-1][0]["accuracy/post/own/mean"] == record.accuracy("post", "own")
    assert "accuracy/post/own/mean" not in logged[0][0]
    assert json.dumps(live)
    monkeypatch.setattr(sys, "argv", ["fedmate", "track", str(tmp_path / "run"), "--to", name])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--set", "project=hospitals"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code in (0, None)
    assert stand.calls == live


def test_a_tracker_of_a_run_that_goes_on_gets_the_rounds_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand()
    monkeypatch.setitem(sys.modules, "wandb", stand.module("wandb", TRACKERS["wandb"][0]))
    with pytest.raises(Crash):
        run(tmp_path / "run", Listener(crashes_after=5), callbacks__wandb=True)
    assert stand.calls[-1][0] == "finish"
    stand.calls.clear()
    fedmate.run(resume=tmp_path / "run")
    assert [named["step"] for function, _, named in stand.calls if function == "log"] == list(range(1, ROUNDS + 1))


def test_a_missing_package_is_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match=r"needs a package that is missing .*`pip install 'fedmate\[mlflow\]'`"):
        run(tmp_path / "run", callbacks__mlflow=True)
    assert not (tmp_path / "run").exists()


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read TensorBoard's event files back: step and value by name."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    read = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_tensorboards_files_hold_the_record_whatever_happened(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    with pytest.raises(Crash):
        run(tmp_path / "run", Listener(crashes_after=5), callbacks__tensorboard=True)
    record = fedmate.run(resume=tmp_path / "run")
    assert len([*(tmp_path / "run" / "tensorboard").iterdir()]) == 2
    found = events(tmp_path / "run" / "tensorboard")
    wanted = {row["round"]: row["accuracy"]["post"]["balanced"]["mean"] for row in record.metrics}
    assert dict(found["accuracy/post/balanced/mean"]) == pytest.approx(wanted)
    assert len(found["accuracy/post/balanced/mean"]) == len(wanted)
    assert [step for step, _ in found["loss/after"]] == list(range(1, ROUNDS + 1))
    assert found["bytes/up"][-1] == (ROUNDS, record.summary["bytes_up"])
    replay(record, TensorBoard())
    assert events(tmp_path / "run" / "tensorboard") == found


@pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb")
def test_weights_and_biases_keeps_a_run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", os.fspath(tmp_path))
    assert run(tmp_path / "run", callbacks__wandb=True).finished
    assert [path.stat().st_size > 0 for path in tmp_path.glob("wandb/offline-run-*/*.wandb")] == [True]
