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
import torch
from torch import nn

from fedmate import storage
from fedmate.backends import BACKENDS, Backend, in_process
from fedmate.backends.base import Round
from fedmate.core import Tree
from fedmate.core.options import options_of
from fedmate.core.serialise import digest, unpack
from fedmate.data import DATASETS, Arrays, Dataset, Samples
from fedmate.data.arrays import Pool
from fedmate.data.digits import Digits
from fedmate.errors import UserError
from fedmate.experiment import recorder as recorder_module
from fedmate.experiment.build import Built
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import load_file, parse_set
from fedmate.experiment.prepare import PreparedRun, Request, new_runs, resumed_runs, run_all
from fedmate.experiment.record import Record
from fedmate.experiment.recorder import environment
from fedmate.experiment.run import Observer
from fedmate.experiment.user_inputs import UserInputs
from fedmate.methods import METHODS

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
        patch.setattr(recorder_module, "_commit", lambda: "a" * 40)
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


NOTHING = Request()
"""What `--resume` alone asks for."""


class Diary(Observer):
    """Writes down what it hears, and raises an error once a round is done."""

    def __init__(self, after: int | None = None, error: type[BaseException] = RuntimeError) -> None:
        self.after, self.error = after, error
        self.begun_after: int | None = None
        self.rounds: list[int] = []
        self.sentences: list[str] = []

    def started(self, built: Built, done: int) -> None:
        self.begun_after = done
        if self.after == 0:
            raise self.error("interrupted")

    def round_done(self, done: int, primary: float | None) -> None:
        self.rounds.append(done)
        if done == self.after:
            raise self.error("interrupted")

    def warned(self, sentence: str) -> None:
        self.sentences.append(sentence)


def ask(*methods: str, settings: tuple[str, ...] = (), dataset: str = "tiny") -> Request:
    """Ask for the small experiment."""
    known = {name for method in methods for name in options_of(METHODS[method])}
    # A view that tunes a copy of the classifier takes most of the time.
    shorter = ["method.tuning_epochs=1"] if "tuning_epochs" in known else []
    return Request(None, methods, dataset, parse_set([*SETTINGS, *shorter, *settings]))


def go(request: Request, folder: Path, *diaries: Diary) -> list[str]:
    """Begin runs and run them, one diary each; return what diverged."""
    each = iter(diaries or [Diary()])
    with new_runs(request, folder) as jobs:
        return run_all(jobs, lambda: next(each, Diary()))


def go_on(folder: Path, diary: Diary | None = None, request: Request = NOTHING) -> list[str]:
    """Go on with runs."""
    with resumed_runs(request, folder) as jobs:
        return run_all(jobs, lambda: diary or Diary())


def interrupt(request: Request, folder: Path, after: int, error: type[BaseException] = RuntimeError) -> None:
    """Begin a run that is interrupted."""
    with pytest.raises(error, match="interrupted"):
        go(request, folder, Diary(after, error))


def snapshot(folder: Path) -> dict[str, tuple[int, bytes] | None]:
    """Return everything below a folder: which file it is, when it was written and what it holds."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


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
        who = path.name.split("-")[0] if path.parent.name == "clients" else path.name
        assert who not in found, "a client has one state"
        found[who] = digest(unpack(path.read_bytes())[0])
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


TELLING = ("fedavg", "fedmate", "fedpac", "local", "moon", "scaffold")
"""Methods that differ in what is kept where: nothing, a part, by client at the server, all, a flag, trees in trees."""

EVERY = (1, 2, 3, 10)
CASES = [
    (method, backend, EVERY[(i + j) % 4]) for i, method in enumerate(TELLING) for j, backend in enumerate(in_process())
] + [("fedmate", "vectorised", every) for every in EVERY if every != EVERY[(TELLING.index("fedmate") + 1) % 4]]
CASES += [("fedmate_plus", "sequential", 2)]
"""Each on every back end, and every distance of checkpoints with one of them."""


# -------------------- the same record


@pytest.mark.parametrize(("method", "backend", "every"), CASES)
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
    with pytest.raises(RuntimeError):
        go_on(folder, diary)
    assert (diary.begun_after, diary.rounds) == (3, [4, 5])
    assert Checkpoint(folder).state.round == {1: 5, 2: 4, 3: 3, 10: 3}[every]
    assert not Record(folder).finished
    last = Diary()
    assert go_on(folder, last) == []
    assert last.rounds == list(range((last.begun_after or 0) + 1, ROUNDS + 1))
    assert outcome(folder) == untouched(method, f"backend={backend}")
    assert Record(folder).config == before
    assert before["checkpoint_every"] == every


@pytest.mark.parametrize("after", range(ROUNDS + 1))
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_it_may_be_interrupted_after_any_round(
    tmp_path: Path, untouched: Untouched, after: int, error: type[BaseException]
) -> None:
    folder, settings = tmp_path / "run", ("backend=sequential",)
    interrupt(ask("fedper", settings=(*settings, "checkpoint_every=4")), folder, after, error)
    saved = after if error is KeyboardInterrupt else {4: 4, 5: 4, 6: 6}.get(after, 0)
    assert Checkpoint(folder).state.round == saved
    diary = Diary()
    go_on(folder, diary)
    assert diary.rounds == list(range(saved + 1, ROUNDS + 1))
    assert outcome(folder) == untouched("fedper", *settings)


@pytest.mark.parametrize("backend", in_process())
def test_clients_that_are_left_out_and_newcomers_are_as_they_were(
    tmp_path: Path, untouched: Untouched, backend: str
) -> None:
    settings = (f"backend={backend}", "holdout_clients=0.2", "participation=0.75")
    expected = untouched("fedrep", *settings, dataset="poisoned")
    summary = json.loads(expected["summary"])
    # Three of four take part, and one of the four diverges whenever it does.
    assert 0 < summary["left_out"] < ROUNDS + 1
    assert summary["newcomers"]["clients"] == 1
    folder, request = tmp_path / "run", ask("fedrep", settings=(*settings, "checkpoint_every=2"), dataset="poisoned")
    first, second, third = Diary(3), Diary(4, KeyboardInterrupt), Diary()
    with pytest.raises(RuntimeError):
        go(request, folder, first)
    with pytest.raises(KeyboardInterrupt):
        go_on(folder, second)
    go_on(folder, third)
    assert outcome(folder) == expected
    # Round 3 was run twice, and so its sentence was said twice.
    said = [*first.sentences, *second.sentences, *third.sentences]
    assert len(set(said)) == summary["left_out"]


GROWING = ("training.learning_rate=1e-3", "training.weight_decay=1e4", "training.momentum=0", "rounds=20")
"""A step a round, each of which multiplies the parameters by 9: finite at first, then not."""


@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_run_that_diverges_does_so_in_the_same_round(tmp_path: Path, untouched: Untouched, after: int) -> None:
    settings = (*GROWING, "participation=1.0", "eval_every=1")
    expected = untouched("local", *settings)
    diverged = json.loads(expected["summary"])["diverged_in_round"]
    assert diverged > 4
    folder = tmp_path / "run"
    interrupt(ask("local", settings=(*settings, "checkpoint_every=3")), folder, after)
    (sentence,) = go_on(folder)
    assert f"diverged in round {diverged} " in sentence
    assert outcome(folder) == expected
    assert Checkpoint(folder).state.round == diverged - 1


def test_a_run_that_stops_before_its_summary_has_no_round_left(
    tmp_path: Path, untouched: Untouched, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    for name in ("clients.csv", "summary.json"):
        with monkeypatch.context() as patch:
            _fail_to_replace(patch, name)
            with pytest.raises(OSError, match="no room"):
                _ = go_on(folder) if folder.exists() else go(ask("fedper", settings=("backend=sequential",)), folder)
        assert not Record(folder).finished
    diary = Diary()
    go_on(folder, diary)
    assert (diary.begun_after, diary.rounds) == (ROUNDS, [])
    assert outcome(folder) == untouched("fedper", "backend=sequential")


def _fail_to_replace(patch: pytest.MonkeyPatch, name: str) -> None:
    replace = storage.replace

    def fail(path: Path, data: bytes) -> None:
        if path.name == name:
            raise OSError("no room")
        replace(path, data)

    patch.setattr(storage, "replace", fail)


def test_time_goes_on_from_where_it_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    interrupt(ask("local", settings=("eval_every=1",)), folder, 3, KeyboardInterrupt)
    before = Checkpoint(folder).state.seconds
    go_on(folder)
    times = [row["seconds"] for row in Record(folder).metrics]
    assert times == sorted(times)
    assert times[2] <= before < times[3]
    assert Record(folder).summary["seconds"] >= times[-1]


class Network(nn.Module):
    """Reads digits; with buffers and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.body(x))
        return answer


def network(seed: int) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Network()


def test_a_run_on_data_and_a_network_of_ones_own_goes_on_with_them(tmp_path: Path) -> None:
    train = Tiny().load(Path()).train
    pool, other = Pool(train.x, train.y), Pool(train.x + 1, train.y)
    # A partition has to be named again: that of `given` data is another by default.
    settings = ("method.classifier_epochs=1", "checkpoint_every=2")
    small = tuple(assignment for assignment in SETTINGS if not assignment.startswith("model"))

    def given(data: Pool, seed: int) -> UserInputs:
        return UserInputs(data, network(seed), "head")

    def asked(seed: int) -> Request:
        return Request(None, ["fedrep"], None, parse_set([*small, *settings]), given(pool, seed))

    go(asked(0), tmp_path / "untouched")
    interrupt(asked(0), tmp_path / "run", 3)
    for wrong, sentence in (
        (UserInputs(), "`dataset.name` is `given`"),
        (UserInputs(data=pool), "`model.name` is `given`"),
        (given(other, 0), "`data` holds other samples than the run began with"),
        (UserInputs(pool, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "1"), "`model` has another structure"),
    ):
        before = snapshot(tmp_path / "run")
        with pytest.raises(UserError) as caught:
            go_on(tmp_path / "run", request=Request(inputs=wrong))
        assert str(caught.value).startswith(sentence)
        assert snapshot(tmp_path / "run") == before
    # The weights it began with are in the folder; those that come now do not matter.
    go_on(tmp_path / "run", request=Request(inputs=given(pool, 1)))
    assert outcome(tmp_path / "run") == outcome(tmp_path / "untouched")
    go(asked(1), tmp_path / "other weights")
    assert outcome(tmp_path / "other weights") != outcome(tmp_path / "untouched")


# -------------------- what a kill leaves behind


def test_torn_lines_and_what_came_after_the_checkpoint_are_dropped(tmp_path: Path, untouched: Untouched) -> None:
    folder = tmp_path / "run"
    interrupt(ask("fedmate", settings=("backend=vectorised", "checkpoint_every=3")), folder, 5)
    assert Checkpoint(folder).state.round == 3
    assert len(Record(folder).metrics) == 2
    diagnostics = folder / "diagnostics"
    assert (diagnostics / "round_000004.safetensors").exists()
    for name, torn in (("metrics.jsonl", b'{"round": 6, "accur'), ("rounds.csv", b"6,2,1,0.3")):
        storage.append(folder / name, torn)
    (diagnostics / "round_000006.safetensors").write_bytes(b"torn")
    mine = [diagnostics / name for name in ("notes.txt", "round_last.safetensors", "round_000009.safetensors.bak")]
    for path in mine:
        path.write_text("mine", encoding="utf-8")
    go_on(folder)
    assert all(path.read_text(encoding="utf-8") == "mine" for path in mine)
    for path in mine:
        path.unlink()
    assert outcome(folder) == untouched("fedmate", "backend=vectorised")


@pytest.mark.parametrize("name", ["rounds.csv", "metrics.jsonl"])
@pytest.mark.parametrize("damage", ["a byte short", "empty", "missing"])
def test_a_record_shorter_than_the_checkpoint_says_is_refused(tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "run"
    interrupt(ask("local"), folder, 4, KeyboardInterrupt)
    # What could be cut is left alone as well: first everything is checked.
    for each in ("rounds.csv", "metrics.jsonl"):
        if each != name:
            storage.append(folder / each, b"torn")
    path, size = folder / name, (folder / name).stat().st_size
    if damage == "missing":
        path.unlink()
    else:
        storage.truncate(path, size - 1 if damage == "a byte short" else 0)
    before = snapshot(folder)
    with pytest.raises(UserError) as caught:
        go_on(folder)
    assert str(caught.value) == (
        f"`{path}` is damaged: it does not begin with the {size} bytes that it had when the checkpoint was made; "
        "put it back from a copy, or start a new run."
    )
    assert snapshot(folder) == before


def test_a_damaged_state_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    interrupt(ask("local"), folder, 3, KeyboardInterrupt)
    storage.append(folder / "rounds.csv", b"torn")
    state = next((folder / "checkpoint" / "clients").iterdir())
    whole = state.read_bytes()
    state.write_bytes(whole[:-1])
    before = snapshot(folder)
    with pytest.raises(UserError, match=rf"`{state}` is damaged or foreign"):
        go_on(folder)
    assert snapshot(folder) == before
    state.write_bytes(whole)
    go_on(folder)
    assert Record(folder).finished


TRACED = (
    *("fedmate/storage.py", "fedmate/core/serialise.py", "fedmate/backends/base.py", "fedmate/backends/sequential.py"),
    *(f"fedmate/experiment/{name}.py" for name in ("run", "recorder", "record", "checkpoint", "ledger", "figures")),
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


STRIKES = 16


@pytest.fixture(scope="module")
def number_of_lines(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many lines a run passes in which it can be struck."""
    folder = tmp_path_factory.mktemp("lines") / "run"
    with new_runs(ask("fedmate", settings=STRUCK), folder) as jobs, Strike() as strike:
        run_all(jobs, Diary)
    assert strike.lines > 1000
    return strike.lines


STRUCK = ("backend=sequential", "checkpoint_every=2")


@pytest.mark.parametrize("number", range(STRIKES))
def test_an_interruption_between_any_two_lines_leaves_a_folder_that_goes_on(
    tmp_path: Path, untouched: Untouched, number_of_lines: int, number: int
) -> None:
    """One from each of as many equal parts of the run."""
    at = random.Random(number).randrange(number_of_lines * number, number_of_lines * (number + 1)) // STRIKES + 1
    folder, diary = tmp_path / "run", Diary()
    with new_runs(ask("fedmate", settings=STRUCK), folder) as jobs, Strike(at) as strike:
        with pytest.raises(KeyboardInterrupt):
            run_all(jobs, lambda: diary)
        assert strike.place
    # No round that was announced is lost.
    assert Checkpoint(folder).state.round >= len(diary.rounds), strike.place
    go_on(folder)
    assert outcome(folder) == untouched("fedmate", "backend=sequential"), strike.place


@pytest.mark.parametrize("backend", in_process())
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


def test_a_comparison_goes_on_where_it_stopped(tmp_path: Path, untouched: Untouched) -> None:
    folder, request = tmp_path / "all", ask("local", "fedper", "fedavg", settings=("checkpoint_every=2",))
    with pytest.raises(RuntimeError, match="interrupted"):
        go(request, folder, Diary(), Diary(3))
    rounds = [Checkpoint(folder / name).state.round for name in ("local", "fedper", "fedavg")]
    assert rounds == [ROUNDS, 2, 0]
    finished = snapshot(folder / "local")
    diaries = [Diary(), Diary()]
    with resumed_runs(NOTHING, folder) as jobs:
        assert [job.folder.name for job in jobs if job.built is not None] == ["fedper", "fedavg"]
        each = iter(diaries)
        assert run_all(jobs, lambda: next(each)) == []
    assert [diary.begun_after for diary in diaries] == [2, 0]
    assert snapshot(folder / "local") == finished
    for name in ("local", "fedper", "fedavg"):
        assert outcome(folder / name) == untouched(name)
    assert sorted(path.name for path in folder.iterdir()) == ["comparison.json", "fedavg", "fedper", "local"]


def test_two_processes_never_run_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    busy = rf"`{folder}/\w+` is being run by another process; wait for it, or stop it before you resume\."
    with new_runs(ask("local", "fedper"), folder), pytest.raises(UserError, match=busy):
        go_on(folder)
    before = snapshot(folder)
    with storage.Lock(folder / "fedper" / "checkpoint" / "lock"):
        with pytest.raises(UserError, match=busy):
            go_on(folder)
        assert snapshot(folder) == before
        # What was refused holds on to nothing.
        with storage.Lock(folder / "local" / "checkpoint" / "lock"):
            pass
    with resumed_runs(NOTHING, folder / "local"), pytest.raises(UserError, match=busy):
        go_on(folder)
    go_on(folder)
    assert Record(folder / "local").finished


def test_a_run_that_ends_while_one_waits_for_it_is_seen_to_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    interrupt(ask("local"), folder, 2)
    lock = storage.Lock

    class Late:
        """Takes the lock when the other process has just finished the run."""

        def __new__(cls, path: Path) -> storage.Lock:  # type: ignore[misc]
            monkeypatch.setattr(storage, "Lock", lock)
            go_on(folder)
            return lock(path)

    monkeypatch.setattr(storage, "Lock", Late)
    with resumed_runs(NOTHING, folder) as jobs:
        assert jobs == [PreparedRun(folder, None, [])]


# -------------------- another environment


def elsewhere(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """Let the environment be another one from now on."""
    found = environment() | changes
    monkeypatch.setattr(recorder_module, "environment", lambda: found)


def notes(folder: Path) -> list[str]:
    """Go on with a run, but not far, and return what the user is told first."""
    diary = Diary(Checkpoint(folder).state.round + 1, KeyboardInterrupt)
    with resumed_runs(NOTHING, folder) as jobs:
        with pytest.raises(KeyboardInterrupt):
            run_all(jobs, lambda: diary)
        return jobs[0].warnings


def test_an_environment_is_noted_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    interrupt(ask("local"), folder, 1, KeyboardInterrupt)
    first = (folder / "environment.json").read_bytes()
    usual = notes(folder)
    assert (folder / "environment.json").read_bytes() == first
    with monkeypatch.context() as patch:
        elsewhere(patch, torch="9.9", system="Plan 9")
        said = f"`{folder}` goes on with another system, torch than it began with: results may differ slightly."
        assert notes(folder) == [*usual, said]
        # The second time it is no news.
        assert notes(folder) == usual
    written = Record(folder).environment
    assert written.pop("resumed") == [{"round": 2, "torch": "9.9", "system": "Plan 9"}]
    assert written == json.loads(first)
    # Back again is a change, too.
    assert len(notes(folder)) == len(usual) + 1
    entries = Record(folder).environment["resumed"]
    assert [(entry["round"], entry["torch"]) for entry in entries] == [(2, "9.9"), (4, written["torch"])]


# -------------------- words beside the folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stopped run, a stopped comparison and the file of the run's experiment."""
    place = tmp_path_factory.mktemp("stopped")
    file = """
        seed = 3
        rounds = 6
        backend = "sequential"
        [dataset]
        name = "tiny"
        [partition]
        name = "iid"
        clients = 5
        examples = 8
        [training]
        epochs = 1
        [method]
        name = "fedrep"
        classifier_epochs = 2
        tuning_epochs = 1
        """
    (place / "experiment.toml").write_text(file, encoding="utf-8")
    interrupt(Request(load_file(place / "experiment.toml")), place / "run", 1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        go(ask("local", "fedrep", settings=("backend=sequential",)), place / "both", Diary(1, KeyboardInterrupt))
    return place


def words(place: Path, *arguments: str, file: str | None = None) -> Request:
    """Return what a command with these words asks for: `--method`, `--dataset` and `--set`, with their values."""
    pairs = list(zip(arguments[::2], arguments[1::2], strict=True))

    def values(option: str) -> list[str]:
        return [value for name, value in pairs if name == option]

    dataset = values("--dataset")
    base = None if file is None else load_file(place / file)
    return Request(base, values("--method"), dataset[-1] if dataset else None, parse_set(values("--set")))


AGREE: dict[str, tuple[str, str | None, list[str]]] = {
    "nothing": ("run", None, []),
    "the file": ("run", "experiment.toml", []),
    "the data set": ("run", None, ["--dataset", "tiny"]),
    "a setting": ("run", None, ["--set", "seed=3", "--set", "training.epochs=1"]),
    "what was decided": ("run", None, ["--set", "device=auto", "--set", "backend=auto"]),
    "everything": ("run", "experiment.toml", ["--method", "fedrep", "--dataset", "tiny", "--set", "rounds=6"]),
    "a comparison's methods": ("both", None, ["--method", "local", "--method", "fedrep"]),
    "a comparison's setting": ("both", None, ["--set", "rounds=6", "--set", "method.tuning_epochs=1"]),
}

DISAGREE: dict[str, tuple[str, str | None, list[str], str]] = {
    "another file": ("run", "both/local/config.toml", [], "is a run of fedrep, not of local;"),
    "another value in the file": ("run", "experiment.toml", ["--set", "seed=4"], "was run with `seed` 3, not 4;"),
    "another method, set": ("run", None, ["--set", "method.name=fedavg"], "is a run of fedrep, not of fedavg;"),
    "one method more": ("run", None, ["--method", "fedrep", "--method", "local"], "not of fedrep and local;"),
    "another data set": ("run", None, ["--dataset", "digits"], "was run with `dataset.name` 'tiny', not 'digits';"),
    "another back end": ("run", None, ["--set", "backend=vectorised"], "was run with `backend` 'sequential'"),
    "another setting of the method": (
        "run",
        None,
        ["--set", "method.classifier_epochs=1"],
        "was run with `method.classifier_epochs` 2, not 1;",
    ),
    "a setting of another partition": ("run", None, ["--set", "partition.alpha=1"], "`partition.alpha`"),
    "one method of a comparison with its file": (
        "both",
        "both/local/config.toml",
        [],
        "is a run of local and fedrep, not of local;",
    ),
}


@pytest.mark.parametrize("case", AGREE)
def test_words_that_agree_are_no_obstacle(stopped: Path, case: str) -> None:
    name, file, arguments = AGREE[case]
    before = snapshot(stopped / name)
    with resumed_runs(words(stopped, *arguments, file=file), stopped / name) as jobs:
        assert all(job.built is not None for job in jobs)
    assert snapshot(stopped / name) == before


@pytest.mark.parametrize("case", DISAGREE)
def test_words_that_disagree_are_refused(stopped: Path, case: str) -> None:
    name, file, arguments, fragment = DISAGREE[case]
    before = snapshot(stopped)
    with pytest.raises(UserError) as caught, resumed_runs(words(stopped, *arguments, file=file), stopped / name):
        pass
    assert fragment in str(caught.value)
    if fragment.endswith(";"):
        assert str(caught.value).startswith(f"`{stopped / name}` ")
        assert str(caught.value).endswith("; resume it without other settings, or start a new run.")
    assert snapshot(stopped) == before
    # What was refused holds on to nothing.
    for lock in (stopped / name).rglob("lock"):
        with storage.Lock(lock):
            pass
