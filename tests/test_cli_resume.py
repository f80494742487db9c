"""The command that goes on with interrupted runs: what it says, what it refuses."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import test_cli
from tests.test_cli import Fedmate, lacking, refuse

from fedmate import cli, storage
from fedmate.experiment.callback import RoundSummary
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.record import Record
from fedmate.progress import RunProgress

fedmate_ = test_cli.fedmate_

SMALL = (
    "rounds=4",
    "partition.clients=3",
    "partition.examples=10",
    "training.epochs=1",
    "model.width=8",
    "eval_every=2",
)


def settings(*assignments: str) -> list[str]:
    return [word for assignment in assignments for word in ("--set", assignment)]


RUN = ("run", "--method", "local", *settings(*SMALL))


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Put back what the command does with signals; whoever runs the tests may have told them to ignore some."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Let something happen, once, when a round is done: `after(2, happens)`."""

    def arrange(number: int, happens: Callable[[], object]) -> None:
        original = RunProgress.round_ended

        def round_ended(self: RunProgress, summary: RoundSummary) -> None:
            original(self, summary)
            if summary.round == number:
                monkeypatch.setattr(RunProgress, "round_ended", original)
                happens()

        monkeypatch.setattr(RunProgress, "round_ended", round_ended)

    return arrange


After = Callable[[int, Callable[[], object]], None]


def strike(number: signal.Signals) -> Callable[[], object]:
    return lambda: signal.raise_signal(number)


def same_record(one: Path, other: Path) -> bool:
    names = ("config.toml", "rounds.csv", "clients.csv")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


# -------------------- stopping and going on


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_the_run_and_says_how_to_go_on(
    fedmate_: Fedmate, tmp_path: Path, after: After, number: signal.Signals, status: int
) -> None:
    after(3, strike(number))
    answer = fedmate_(*RUN, "--out", "a record")
    assert answer.status == status
    assert answer.err == (
        "Stopped. a record is saved after round 3 of 4. Continue with: fedmate run --resume 'a record'\n"
    )
    assert "Records" not in answer.out
    assert not Record(tmp_path / "a record").finished
    again = fedmate_("run", "--resume", "a record", "--method", "local", "--set", "rounds=4", "--set", "backend=auto")
    assert (again.status, again.err) == (0, "")
    lines = again.out.splitlines()
    assert "local: continuing after round 3/4" in lines
    assert any(re.match(r"local: round 4/4  accuracy [\d.]+ %  0 s left$", line) for line in lines)
    assert lines[-1] == "Records: a record"
    assert fedmate_(*RUN, "--out", "untouched").status == 0
    assert same_record(tmp_path / "a record", tmp_path / "untouched")


def test_a_full_disk_says_what_is_saved_and_how_to_go_on(
    fedmate_: Fedmate, tmp_path: Path, after: After, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_up() -> None:
        monkeypatch.setattr(storage, "append", fail)

    def fail(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    append = storage.append
    after(3, fill_up)
    answer = fedmate_(*RUN, "--set", "checkpoint_every=2", "--out", "record")
    assert answer.status == 1
    (sentence,) = answer.err.splitlines()
    assert sentence == (
        "Error: [Errno 28] No space left on device. record is saved after round 2 of 4. Continue with: "
        "fedmate run --resume record"
    )
    monkeypatch.setattr(storage, "append", append)
    assert fedmate_("run", "--resume", "record").status == 0
    assert Record(tmp_path / "record").summary["rounds"] == 4


def test_a_stopped_comparison_goes_on_and_prints_one_table(fedmate_: Fedmate, tmp_path: Path, after: After) -> None:
    both = ("run", "--method", "local", "--method", "fedper", *settings(*SMALL))
    # The first method is done, the second is not.
    after(4, lambda: after(1, strike(signal.SIGINT)))
    answer = fedmate_(*both, "--out", "both")
    assert answer.status == 130
    assert answer.err == (
        "Stopped. both/fedper is saved after round 1 of 4. Continue with: fedmate run --resume both\n"
    )
    # What is finished is shown.
    assert answer.out.count("*") == 2
    again = fedmate_("run", "--resume", "both")
    assert (again.status, again.err) == (0, "")
    lines = again.out.splitlines()
    assert lines[0] == "both/local is finished already: nothing to do."
    assert re.findall(r"^ *(\w+) .*\*\d", again.out, flags=re.MULTILINE) == ["local", "fedper"]
    assert lines[-1] == "Records: both/local, both/fedper"


def test_a_signal_that_was_ignored_stays_ignored(fedmate_: Fedmate) -> None:
    """As `nohup` asks for."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert fedmate_("--version").status == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


# -------------------- what is refused


def another_seed(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"seed = 0", b"seed = 1"))


Case = tuple[list[str], Callable[[Path], object], list[str]]

REFUSED: dict[str, Case] = {
    "out and resume": (["--resume", "record", "--out", "new"], lambda _: None, ["`--out`", "`--resume`", "give one"]),
    "nowhere": (["--resume", "nowhere"], lambda _: None, ["`nowhere` holds no record", "it does not exist"]),
    "another method": (["--resume", "record", "--method", "fedper"], lambda _: None, ["a run of local, not of fedper"]),
    "another file": (["e.toml", "--resume", "record"], lambda _: None, ["`rounds` 4, not 9"]),
    "edited configuration": (
        ["--resume", "record"],
        lambda p: another_seed(p / "config.toml"),
        ["`record` has a `config.toml` and a `checkpoint` of different configurations", "put the original back"],
    ),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after round 2, to be copied."""
    folder = tmp_path_factory.mktemp("stopped") / "record"
    with pytest.MonkeyPatch.context() as patch:
        original = RunProgress.round_ended

        def round_ended(self: RunProgress, summary: RoundSummary) -> None:
            original(self, summary)
            if summary.round == 2:
                raise KeyboardInterrupt

        patch.setattr(RunProgress, "round_ended", round_ended)
        patch.setattr(sys, "argv", ["fedmate", *RUN, "--out", str(folder)])
        with pytest.raises(SystemExit):
            cli.main()
    assert Checkpoint(folder).state.round == 2
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_continued_gets_one_sentence(
    fedmate_: Fedmate, tmp_path: Path, stopped: Path, case: str
) -> None:
    shutil.copytree(stopped, tmp_path / "record")
    (tmp_path / "e.toml").write_text('rounds = 9\n[method]\nname = "local"\n', encoding="utf-8")
    arguments, damage, fragments = REFUSED[case]
    damage(tmp_path / "record")
    assert lacking(refuse(fedmate_, tmp_path, "run", *arguments), fragments) == []


def test_a_folder_that_is_moved_while_it_is_being_run_goes_on_in_its_new_place(
    fedmate_: Fedmate, tmp_path: Path, after: After
) -> None:
    after(2, lambda: os.rename("record", "moved"))
    answer = fedmate_(*RUN, "--out", "record")
    assert answer.status == 2
    (sentence,) = answer.err.splitlines()
    assert sentence.startswith("Error: `record` holds no record: it does not exist")
    assert fedmate_("run", "--resume", "moved").status == 0
    assert Record(tmp_path / "moved").finished
