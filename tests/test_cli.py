"""The command, in this process: what it does, and the one sentence that bad input gets."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fedmate import cli
from fedmate.catalogue import catalogue

SMALL = (
    *("--set", "rounds=2"),
    *("--set", "partition.clients=3"),
    *("--set", "partition.examples=10"),
    *("--set", "training.epochs=1"),
)


class Answer:
    """What a command left behind: exit status and both streams."""

    def __init__(self, status: object, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


Fedmate = Callable[..., Answer]


@pytest.fixture
def fedmate_(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Fedmate:
    """Run `fedmate ARGUMENTS...` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def command(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["fedmate", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return Answer(caught.value.code, captured.out, captured.err)

    return command


def snapshot(folder: Path) -> list[tuple[str, bytes | None]]:
    """Return everything below a folder, with the contents of files."""
    return sorted(
        (str(path.relative_to(folder)), path.read_bytes() if path.is_file() else None) for path in folder.rglob("*")
    )


def refuse(command: Fedmate, folder: Path, *arguments: str) -> str:
    """Run what must be refused: status 2, one sentence, nothing written. Return the sentence."""
    before = snapshot(folder)
    answer = command(*arguments)
    assert answer.status == 2
    assert all(line.startswith("Note: ") for line in answer.out.splitlines())
    assert snapshot(folder) == before
    lines = answer.err.splitlines()
    assert len(lines) == 1, answer.err
    assert lines[0].startswith("Error: `")
    assert re.search(r"; .+[.?]$", lines[0]), f"what was found, then what to do: {lines[0]}"
    assert "Traceback" not in answer.err
    return lines[0]


def lacking(sentence: str, fragments: list[str]) -> list[str]:
    return [fragment for fragment in fragments if fragment not in sentence]


# What works.


def test_one_method_makes_the_folder_the_record(fedmate_: Fedmate, tmp_path: Path) -> None:
    answer = fedmate_("run", "--method", "fedper", *SMALL, "--out", "a/record")
    assert (answer.status, answer.err) == (0, "")
    folder = tmp_path / "a" / "record"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint",
        "clients.csv",
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "partition.json",
        "rounds.csv",
        "summary.json",
    ]
    assert "\x1b" not in answer.out
    lines = answer.out.splitlines()
    assert any(line.startswith("Note: `training.batch_size` is 50, but") for line in lines)
    assert any(re.match(r"fedper: round 2/2  accuracy [\d.]+ %  0 s left$", line) for line in lines)
    assert lines[-1] == "Records: a/record"
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    (row,) = [line.split() for line in lines if line.split()[:1] == ["fedper"] and "*" in line]
    assert row[1] == f"*{summary['headline']['mean']:.2f}"
    assert tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))["rounds"] == 2


def test_several_methods_print_one_table_and_keep_a_folder_each(fedmate_: Fedmate, tmp_path: Path) -> None:
    answer = fedmate_("run", "--method", "local", "--method", "fedper", *SMALL, "--out", "both")
    assert (answer.status, answer.err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["comparison.json", "fedper", "local"]
    assert re.findall(r"^ *(\w+) .*\*\d", answer.out, flags=re.MULTILINE) == ["local", "fedper"]
    assert [line.split() for line in answer.out.splitlines()].count(["balanced", "own", "MB", "MB", "time"]) == 1
    assert answer.out.count("Note: `training.batch_size`") == 1
    assert answer.out.splitlines()[-1] == "Records: both/local, both/fedper"


@pytest.mark.parametrize("kind", [None, "datasets"])
def test_the_list_is_the_catalogue(fedmate_: Fedmate, kind: str | None) -> None:
    answer = fedmate_("list", *([kind] if kind else []))
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.splitlines() == list(catalogue(kind))


def test_the_help_of_a_run_says_what_is_run_by_default(fedmate_: Fedmate) -> None:
    words = " ".join(fedmate_("run", "--help").out.split())
    assert "[default: the file's, or fedrep]" in words
    assert "[default: the file's, or digits]" in words


# What bad arguments get.

BAD_ARGUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "last method unknown": (
        ["--method", "fedavg", "--method", "local", "--method", "fedrpe"],
        ["`method.name`", "`fedrpe`", "did you mean `fedrep`?"],
    ),
    "method twice": (["--method", "local", "--method", "local"], ["`--method`", "`local`", "twice", "once"]),
    "method chosen twice": (
        ["--method", "local", "--set", "method.name=fedavg"],
        ["the setting `method.name`", "`--method`"],
    ),
    "unknown key": (["--set", "rnds=1"], ["`rnds`", "did you mean `rounds`?"]),
    "more clients than samples": (
        ["--set", "partition.clients=1798"],
        ["`partition.clients`", "1798", "1797 samples", "at most"],
    ),
    "wrong type": (["--set", "rounds=ten"], ["`rounds`", "--set", "'ten'", "a whole number"]),
    "missing file": (["nowhere.toml"], ["`nowhere.toml`", "does not exist", "TOML file"]),
    "directory as file": (["."], ["`.`", "directory", "TOML file"]),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_get_one_sentence(fedmate_: Fedmate, tmp_path: Path, case: str) -> None:
    arguments, fragments = BAD_ARGUMENTS[case]
    assert lacking(refuse(fedmate_, tmp_path, "run", *arguments), fragments) == []
    assert list(tmp_path.iterdir()) == []


# What a bad output folder gets.


def test_a_finished_record_is_never_overwritten(fedmate_: Fedmate, tmp_path: Path) -> None:
    arguments = ("run", "--method", "local", *SMALL, "--set", "rounds=1", "--out", "record")
    assert fedmate_(*arguments).status == 0
    sentence = refuse(fedmate_, tmp_path, *arguments)
    assert lacking(sentence, ["`--out`", "`record`", "exists already"]) == []


# What divergence gets.


def test_a_method_that_diverges_does_not_stop_the_comparison(fedmate_: Fedmate, tmp_path: Path) -> None:
    settings = ("--set", "method.classifier_learning_rate=1e30", "--set", "rounds=2")
    answer = fedmate_("run", "--method", "fedrep", "--method", "local", *SMALL, *settings, "--out", "record")
    assert answer.status == 3
    (sentence,) = answer.err.splitlines()
    assert lacking(sentence, ["fedrep: every client that took part diverged", "record/fedrep"]) == []
    assert (tmp_path / "record" / "local" / "summary.json").exists()
    rows = [line for line in answer.out.splitlines() if line.strip().startswith("local ")]
    assert len(rows) == 1
