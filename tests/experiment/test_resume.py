"""A run that was interrupted and goes on leaves the record of one that nobody touched; only clocks differ."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from fedmate import storage
from fedmate.backends import BACKENDS, Backend
from fedmate.backends.base import Round
from fedmate.core import Tree
from fedmate.core.options import options_of
from fedmate.core.tree import digest, unpack
from fedmate.data import DATASETS, Arrays, Dataset, Samples
from fedmate.data.mnist import Digits
from fedmate.errors import UserError
from fedmate.experiment import prepare
from fedmate.experiment.callback import Callback, RoundSummary, Run
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import parse_set
from fedmate.experiment.prepare import Request, new_runs, resumed_runs, run_all
from fedmate.experiment.record import Record
from fedmate.methods import METHODS

IN_PROCESS = [name for name in BACKENDS.names() if name != "flower"]
ROUNDS = 6
SETTINGS = (
    f"rounds={ROUNDS}",
    "partition.clients=5",
    "partition.name=iid",
    "partition.examples=8",
    "participation=0.4",
    "eval_every=2",
    "training.epochs=1",
    "training.learning_rate=0.1",
    "model.width=8",
)
"""Small, and with everything there is: clients that sit out, and rounds that are not evaluated."""


@dataclass(frozen=True, kw_only=True)
class Tiny(Dataset):
    """A few digits: what is tried here is not learning."""

    def load(self, folder: Path) -> Arrays:
        everything = Digits().load(Path())
        return everything._replace(train=Samples(everything.train.x[:80], everything.train.y[:80]))


@dataclass(frozen=True, kw_only=True)
class Poisoned(Dataset):
    """The same, with a sample on which a client diverges in every round it takes part in."""

    def load(self, folder: Path) -> Arrays:
        arrays = Tiny().load(folder)
        x = arrays.train.x.astype(np.float32)
        x[POISON] = np.inf
        return arrays._replace(train=arrays.train._replace(x=x))


POISON = 34
"""A sample that a client holds."""


@pytest.fixture(autouse=True, scope="module")
def _laboratory() -> Iterator[None]:
    """Add the data sets, let nobody's commit in the meantime be a change of the environment, spare the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS._rows, "tiny", Tiny)
        patch.setitem(DATASETS._rows, "poisoned", Poisoned)
        patch.setattr(prepare, "_commit", lambda: "a" * 40)
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


NOTHING = Request()
"""What `--resume` alone asks for."""


class Crash(BaseException):
    """Ends a process in the midst of a run; no callback may do so by an `Exception`."""


class Diary(Callback):
    """Writes down what it hears, and raises an error once a round is done."""

    def __init__(self, after: int | None = None, error: type[BaseException] = Crash) -> None:
        self.after, self.error = after, error
        self.begun_after: int | None = None
        self.rounds: list[int] = []
        self.sentences: list[str] = []

    def run_started(self, run: Run) -> None:
        self.begun_after = run.done
        if self.after == 0:
            raise self.error("interrupted")

    def round_ended(self, summary: RoundSummary) -> None:
        self.rounds.append(summary.round)
        if summary.round == self.after:
            raise self.error("interrupted")

    def warned(self, message: str) -> None:
        self.sentences.append(message)


def ask(*methods: str, settings: tuple[str, ...] = (), dataset: str = "tiny") -> Request:
    """Ask for the small experiment."""
    known = {name for method in methods for name in options_of(METHODS[method])}
    # A view that tunes a copy of the classifier takes most of the time.
    shorter = ["method.tuning_epochs=1"] if "tuning_epochs" in known else []
    return Request(None, methods, dataset, parse_set([*SETTINGS, *shorter, *settings]))


def go(request: Request, folder: Path, diary: Diary | None = None) -> list[str]:
    """Begin runs and run them; return what diverged."""
    with new_runs(request, folder) as jobs:
        return run_all(jobs, diary or Diary())


def go_on(folder: Path, diary: Diary | None = None) -> list[str]:
    """Go on with runs."""
    with resumed_runs(NOTHING, folder) as jobs:
        return run_all(jobs, diary or Diary())


def interrupt(request: Request, folder: Path, after: int, error: type[BaseException] = Crash) -> None:
    """Begin a run that is interrupted."""
    with pytest.raises(error, match="interrupted"):
        go(request, folder, Diary(after, error))


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "seconds"}


def outcome(folder: Path) -> dict[str, Any]:
    """Return all that a finished run leaves behind but for clocks, and for how often it was saved on the way."""
    record, checkpoint = Record(folder), Checkpoint(folder)
    # Texts, so that the order of keys counts.
    found: dict[str, Any] = {
        "summary": json.dumps(timeless(record.summary)),
        "metrics": [json.dumps(timeless(row)) for row in record.metrics],
        "config": {key: value for key, value in record.config.items() if key != "checkpoint_every"},
        "standing": {key: value for key, value in timeless(asdict(checkpoint.state)).items() if key != "files"},
        "rounds.csv, as long as the checkpoint says": checkpoint.state.files["rounds.csv"],
    }
    for name in ("rounds.csv", "clients.csv", "environment.json"):
        found[name] = (folder / name).read_bytes()
    for path in sorted(folder.glob("diagnostics/*")):
        found[path.name] = path.read_bytes()
    for path in sorted((folder / "checkpoint").rglob("*.safetensors")):
        # Its name tells since which round a client's state has not changed.
        found[path.name] = digest(unpack(path.read_bytes())[0])
    assert {path.name for path in folder.iterdir()} <= {
        *("checkpoint", "clients.csv", "config.toml", "diagnostics", "environment.json"),
        *("metrics.jsonl", "partition.json", "rounds.csv", "summary.json"),
    }
    return found


Untouched = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Untouched:
    """The outcome of a run that nobody touches; each is run once."""
    known = dict[tuple[Any, ...], dict[str, Any]]()

    def find(method: str, *settings: str, dataset: str = "tiny") -> dict[str, Any]:
        key = (method, settings, dataset)
        if key not in known:
            folder = tmp_path_factory.mktemp("untouched") / "run"
            go(ask(method, settings=settings, dataset=dataset), folder)
            known[key] = outcome(folder)
        return known[key]

    return find


# -------------------- the same record


@pytest.mark.parametrize(
    ("method", "backend", "every"),
    [
        ("fedmate", "vectorised", 1),
        ("fedpac", "sequential", 2),
        ("moon", "sequential", 10),
        ("scaffold", "vectorised", 2),
    ],
)
def test_an_interrupted_run_that_goes_on_leaves_the_same_record(
    tmp_path: Path, untouched: Untouched, method: str, backend: str, every: int
) -> None:
    folder, request = tmp_path / "run", ask(method, settings=(f"backend={backend}", f"checkpoint_every={every}"))
    interrupt(request, folder, 1)
    before = Record(folder).config
    # An error leaves the last checkpoint, an interruption saves the rounds done.
    assert Checkpoint(folder).state.round == (1 if every == 1 else 0)
    with pytest.raises(KeyboardInterrupt):
        go_on(folder, Diary(3, KeyboardInterrupt))
    assert Checkpoint(folder).state.round == 3
    diary = Diary(5)
    with pytest.raises(Crash):
        go_on(folder, diary)
    assert (diary.begun_after, diary.rounds) == (3, [4, 5])
    assert Checkpoint(folder).state.round == {1: 5, 2: 4, 10: 3}[every]
    assert not Record(folder).finished
    last = Diary()
    assert go_on(folder, last) == []
    assert last.rounds == list(range((last.begun_after or 0) + 1, ROUNDS + 1))
    assert outcome(folder) == untouched(method, f"backend={backend}")
    assert Record(folder).config == before
    assert before["checkpoint_every"] == every


def test_clients_that_are_left_out_and_newcomers_are_as_they_were(tmp_path: Path, untouched: Untouched) -> None:
    settings = ("backend=vectorised", "holdout_clients=0.2", "participation=0.75")
    expected = untouched("fedrep", *settings, dataset="poisoned")
    summary = json.loads(expected["summary"])
    # Three of four take part, and one of the four diverges whenever it does.
    assert 0 < summary["left_out"] < ROUNDS + 1
    assert summary["newcomers"]["clients"] == 1
    folder, first, second = tmp_path / "run", Diary(3), Diary()
    with pytest.raises(Crash):
        go(ask("fedrep", settings=(*settings, "checkpoint_every=2"), dataset="poisoned"), folder, first)
    go_on(folder, second)
    assert outcome(folder) == expected
    # Round 3 was run twice, and so its sentence was said twice.
    assert len({*first.sentences, *second.sentences}) == summary["left_out"]


GROWING = ("training.learning_rate=1e-3", "training.weight_decay=1e4", "training.momentum=0", "rounds=20")
"""A step a round, each of which multiplies the parameters by 9: finite at first, then not."""


def test_a_run_that_diverges_does_so_in_the_same_round(tmp_path: Path, untouched: Untouched) -> None:
    settings = (*GROWING, "participation=1.0", "eval_every=1")
    expected = untouched("local", *settings)
    diverged = json.loads(expected["summary"])["diverged_in_round"]
    assert diverged > 4
    folder = tmp_path / "run"
    interrupt(ask("local", settings=(*settings, "checkpoint_every=3")), folder, 4)
    (sentence,) = go_on(folder)
    assert f"diverged in round {diverged} " in sentence
    assert outcome(folder) == expected
    assert Checkpoint(folder).state.round == diverged - 1


# -------------------- interruptions anywhere


TRACED = (
    *("fedmate/storage.py", "fedmate/core/tree.py", "fedmate/backends/base.py", "fedmate/backends/sequential.py"),
    *(f"fedmate/experiment/{name}.py" for name in ("run", "record", "checkpoint", "evaluate")),
)
"""Where an interruption may strike: between any two lines of these."""


class Strike:
    """Raises `KeyboardInterrupt` before the `at`-th line of the traced files, as Ctrl-C would."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.lines, self.place = at, 0, ""

    def __enter__(self) -> Strike:
        self._before = sys.gettrace()
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def enter(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        return self.line if frame.f_code.co_filename.endswith(TRACED) else None

    def line(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(self._before)
                raise KeyboardInterrupt
        return self.line


STRUCK = ("backend=sequential", "checkpoint_every=2")
STRIKES = 8


@pytest.fixture(scope="module")
def number_of_lines(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many lines a run passes in which it can be struck."""
    folder = tmp_path_factory.mktemp("lines") / "run"
    with new_runs(ask("fedmate", settings=STRUCK), folder) as jobs, Strike() as strike:
        run_all(jobs, Diary())
    assert strike.lines > 1000
    return strike.lines


@pytest.mark.parametrize("number", range(STRIKES))
def test_an_interruption_between_any_two_lines_leaves_a_folder_that_goes_on(
    tmp_path: Path, untouched: Untouched, number_of_lines: int, number: int
) -> None:
    """One from each of as many equal parts of the run."""
    at = random.Random(number).randrange(number_of_lines * number, number_of_lines * (number + 1)) // STRIKES + 1
    folder, diary = tmp_path / "run", Diary()
    with new_runs(ask("fedmate", settings=STRUCK), folder) as jobs, Strike(at) as strike:
        with pytest.raises(KeyboardInterrupt):
            run_all(jobs, diary)
        assert strike.place
    # No round that was announced is lost.
    assert Checkpoint(folder).state.round >= len(diary.rounds), strike.place
    go_on(folder)
    assert outcome(folder) == untouched("fedmate", "backend=sequential"), strike.place


@pytest.mark.parametrize("backend", IN_PROCESS)
def test_an_interruption_after_training_saves_what_clients_held_before_it(
    tmp_path: Path, untouched: Untouched, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Everybody took part in rounds that are not saved, and was trained once more when the evaluation is struck."""
    folder, settings = tmp_path / "run", (f"backend={backend}", "participation=1.0")
    cls, evaluated = BACKENDS[backend], list[int]()
    view = cls.view

    def struck(self: Backend, server: Tree, task: Round) -> Tree:
        evaluated.append(task.number)
        if task.number == 3:
            raise KeyboardInterrupt
        return view(self, server, task)

    with monkeypatch.context() as patch:
        patch.setattr(cls, "view", struck)
        with pytest.raises(KeyboardInterrupt):
            go(ask("fedper", settings=settings), folder)
    assert evaluated[-2:] == [1, 3]
    assert Checkpoint(folder).state.round == 3
    go_on(folder)
    assert outcome(folder) == untouched("fedper", *settings)


# -------------------- what can be continued, and what not


def test_two_processes_never_run_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    busy = rf"`{folder}/\w+` is being run by another process; wait for it, or stop it before you resume\."
    with new_runs(ask("local", "fedper"), folder), pytest.raises(UserError, match=busy):
        go_on(folder)
    with storage.lock(folder / "fedper" / "checkpoint" / "lock"):
        with pytest.raises(UserError, match=busy):
            go_on(folder)
        # What was refused holds on to nothing.
        with storage.lock(folder / "local" / "checkpoint" / "lock"):
            pass
    with resumed_runs(NOTHING, folder / "local"), pytest.raises(UserError, match=busy):
        go_on(folder)
    go_on(folder)
    assert Record(folder / "local").finished


def test_of_a_finished_run_only_the_summary_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    go(ask("local", settings=("rounds=1",)), folder)
    (folder / "config.toml").write_text("rounds = ", encoding="utf-8")
    (folder / "checkpoint" / "checkpoint.json").unlink()
    with resumed_runs(NOTHING, folder) as jobs:
        assert [job.built for job in jobs] == [None]
    (folder / "summary.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"summary\.json` cannot be read"), resumed_runs(NOTHING, folder):
        pass


def test_an_environment_is_noted_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    interrupt(ask("local"), folder, 1, KeyboardInterrupt)

    def warnings() -> list[str]:
        """Go on for a round."""
        with resumed_runs(NOTHING, folder) as jobs:
            with pytest.raises(KeyboardInterrupt):
                run_all(jobs, Diary(Checkpoint(folder).state.round + 1, KeyboardInterrupt))
            return jobs[0].warnings

    usual, began = warnings(), Record(folder).environment
    there = prepare.environment() | {"torch": "9.9", "system": "Plan 9"}
    monkeypatch.setattr(prepare, "environment", lambda: there)
    said = f"`{folder}` goes on with another system, torch than it began with: results may differ slightly."
    assert warnings() == [*usual, said]
    # The second time it is no news.
    assert warnings() == usual
    changed = [{"round": 2, "torch": "9.9", "system": "Plan 9"}]
    assert Record(folder).environment == {**began, "resumed": changed}
