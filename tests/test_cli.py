"""The command, in this process: what it does, and the one sentence that bad input gets."""

from __future__ import annotations

import csv
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import fedmate
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


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Keep small operations from waiting for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def test_a_comparison_whose_methods_are_not_trained_alike_says_so(fedmate_: Fedmate, tmp_path: Path) -> None:
    asked = ["run", "--method", "fedprox", "--method", "fedavg", "--set", "method.preset=authors", *SMALL]
    answer = fedmate_(*asked, "--set", "training.epochs=1", "--out", "unlike")
    assert answer.status == 0
    (note,) = [line for line in answer.out.splitlines() if "not trained alike" in line]
    assert "fedprox batch_size 10, learning_rate 0.01" in note
    assert "fedavg batch_size 50, learning_rate 0.02" in note
    assert "epochs" not in note


def test_several_methods_print_one_table_and_keep_a_folder_each(fedmate_: Fedmate, tmp_path: Path) -> None:
    answer = fedmate_("run", "--method", "local", "--method", "fedper", *SMALL, "--out", "both")
    assert (answer.status, answer.err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["comparison.json", "fedper", "local"]
    rows = [line.split()[0] for line in answer.out.splitlines() if "*" in line and "headline" not in line]
    assert rows == ["local", "fedper"]
    assert [line.split() for line in answer.out.splitlines()].count(["balanced", "own", "MB", "MB", "time"]) == 1
    assert answer.out.count("Note: `training.batch_size`") == 1
    assert answer.out.splitlines()[-1] == "Records: both/local, both/fedper"
    for name in ("local", "fedper"):
        summary = json.loads((tmp_path / "both" / name / "summary.json").read_text(encoding="utf-8"))
        assert summary["method"] == name


def test_records_have_a_place_of_their_own_by_default(
    fedmate_: Fedmate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmate.experiment.prepare.time.strftime", lambda _: "now")
    quick = ("run", *SMALL, "--set", "rounds=1")
    for _ in range(2):
        assert fedmate_(*quick, "--method", "local").status == 0
    assert fedmate_(*quick, "--method", "local", "--method", "fedper").status == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "digits-comparison-now",
        "digits-local-now",
        "digits-local-now-2",
    ]
    assert (tmp_path / "runs" / "digits-local-now-2" / "summary.json").exists()


def test_file_options_and_settings_come_together(fedmate_: Fedmate, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('rounds = 9\nseed = 4\n[method]\nname = "fedrep"\n', encoding="utf-8")
    answer = fedmate_("run", "e.toml", "--dataset", "digits", "--method", "local", *SMALL, "--out", "record")
    assert answer.status == 0
    summary = json.loads((tmp_path / "record" / "summary.json").read_text(encoding="utf-8"))
    found = [summary[key] for key in ("method", "dataset", "seed", "rounds", "clients")]
    assert found == ["local", "digits", 4, 2, 3]


def test_a_path_is_printed_as_it_is(fedmate_: Fedmate, tmp_path: Path) -> None:
    name = "[bold]:smile:" + "x" * 150
    answer = fedmate_("run", "--method", "local", *SMALL, "--set", "rounds=1", "--out", name)
    assert answer.out.splitlines()[-1] == f"Records: {name}"
    assert (tmp_path / name / "summary.json").exists()


def test_the_version_is_the_packages(fedmate_: Fedmate) -> None:
    answer = fedmate_("--version")
    assert (answer.status, answer.out, answer.err) == (0, f"fedmate {fedmate.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list", "--help"]])
def test_help_names_what_there_is(fedmate_: Fedmate, arguments: list[str]) -> None:
    answer = fedmate_(*arguments)
    assert answer.status == 0
    words = {1: ["run", "list"], 2: ["--method", "--dataset", "--set", "--out", "--resume"]}[len(arguments)]
    if arguments[0] == "list":
        words = ["methods", "datasets", "partitions", "models", "backends"]
    assert lacking(answer.out, words) == []


@pytest.mark.parametrize("kind", [None, "methods", "datasets", "partitions", "models", "backends"])
def test_the_list_is_the_catalogue(fedmate_: Fedmate, kind: str | None) -> None:
    answer = fedmate_("list", *([kind] if kind else []))
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.splitlines() == list(catalogue(kind))


def test_an_unknown_list_is_refused(fedmate_: Fedmate, tmp_path: Path) -> None:
    sentence = refuse(fedmate_, tmp_path, "list", "partition")
    assert lacking(sentence, ["`partition`", "did you mean `partitions`?"]) == []


# What bad arguments get.

BAD_ARGUMENTS: dict[str, tuple[list[str], list[str]]] = {
    "unknown method": (["--method", "fedavgg"], ["`method.name`", "`fedavgg`", "did you mean `fedavg`?"]),
    "unknown method, set": (["--set", "method.name=fedrap"], ["`method.name`", "`fedrap`", "did you mean `fedrep`?"]),
    "strange method": (["--method", "zzz"], ["`method.name`", "`zzz`", "known are `ditto`, "]),
    "unknown method, two lines": (["--method", "fed\nrep"], ["`method.name`"]),
    "empty method": (["--method", ""], ["`method.name`", "known are `ditto`, "]),
    "last method unknown": (
        ["--method", "fedavg", "--method", "local", "--method", "fedrpe"],
        ["`method.name`", "`fedrpe`", "did you mean `fedrep`?"],
    ),
    "unknown method with a setting": (
        ["--method", "fedrpe", "--set", "method.classifier_epochs=2"],
        ["`method.name`", "`fedrpe`", "did you mean `fedrep`?"],
    ),
    "method twice": (["--method", "local", "--method", "local"], ["`--method`", "`local`", "twice", "once"]),
    "method chosen twice": (
        ["--method", "local", "--set", "method.name=fedavg"],
        ["`--set method.name`", "`--method`"],
    ),
    "last method's setting wrong": (
        ["--method", "fedavg", "--method", "fedrep", "--set", "method.classifier_epochs=-1"],
        ["`method.classifier_epochs`", "-1", "at least 0"],
    ),
    "unknown data set": (["--dataset", "digit"], ["`dataset.name`", "`digit`", "did you mean `digits`?"]),
    "unknown data set, set": (["--set", "dataset.name=digts"], ["`dataset.name`", "`digts`", "`digits`"]),
    "unknown section": (["--set", "trainig.epochs=1"], ["`[trainig]`", "did you mean `training`?"]),
    "unknown key": (["--set", "rnds=1"], ["`rnds`", "did you mean `rounds`?"]),
    "unknown key of a section": (["--set", "training.epoch=1"], ["`training.epoch`", "did you mean `epochs`?"]),
    "unknown key of a method": (
        ["--set", "method.clasifier_epochs=1"],
        ["`method.clasifier_epochs`", "did you mean `classifier_epochs`?"],
    ),
    "key of no compared method": (
        ["--method", "fedavg", "--method", "local", "--set", "method.personal_layers=1"],
        ["`method.personal_layers`"],
    ),
    "key of another partition": (
        ["--set", "partition.alpha=1"],
        ["`partition.alpha` in --set is not an option of `share`; it is one of `dirichlet`: leave"],
    ),
    "unknown partition": (["--set", "partition.name=shard"], ["`partition.name`", "`shard`", "did you mean `share`?"]),
    "unknown model": (["--set", "model.name=digit_cnn"], ["`model.name`", "`digit_cnn`", "`digits_cnn`"]),
    "unknown back end": (["--set", "backend=sequentail"], ["`backend`", "`sequentail`", "`sequential`"]),
    "unknown preset": (["--set", "method.preset=autors"], ["`method.preset`", "'autors'", "`authors`"]),
    "preset of the wrong type": (["--set", "method.preset=[1]"], ["`method.preset`", "[1]"]),
    "unknown precision": (["--set", "dtype=float16"], ["`dtype`", "'float16'", "`float64`"]),
    "section as a value": (["--set", "method=fedavg"], ["`method`", "'fedavg'", "section"]),
    "section as a value beside a method": (
        ["--method", "local", "--set", "method=fedavg"],
        ["`method`", "'fedavg'", "section"],
    ),
    "wrong type": (["--set", "rounds=ten"], ["`rounds`", "--set", "'ten'", "a whole number"]),
    "fractional rounds": (["--set", "rounds=1.5"], ["`rounds`", "--set", "1.5", "a whole number"]),
    "empty value": (["--set", "rounds="], ["`rounds`", "--set", "''", "a whole number"]),
    "malformed setting": (["--set", "rounds"], ["`--set`", "`rounds`", "`key=value`"]),
    "setting without key": (["--set", "=3"], ["`--set`", "`=3`", "`section.key=value`"]),
    "setting too deep": (["--set", "a.b.c=3"], ["`--set`", "`a.b.c=3`", "`section.key=value`"]),
    "no clients": (["--set", "partition.clients=0"], ["`partition.clients`", "0", "at least 1"]),
    "minus one client": (["--set", "partition.clients=-1"], ["`partition.clients`", "-1", "at least 1"]),
    "more clients than samples": (
        ["--set", "partition.clients=1798"],
        ["`partition.clients`", "1798", "1797 samples", "at most"],
    ),
    "more clients than samples, iid": (
        ["--set", "partition.clients=100000", "--set", "partition.name=iid"],
        ["`partition.clients`", "100000", "1797 samples", "at most"],
    ),
    "no sample left": (
        ["--set", "partition.name=iid", "--set", "partition.clients=3", "--set", "partition.examples=599"],
        ["`partition.examples`", "test split", "lower"],
    ),
    "no examples": (["--set", "partition.examples=0"], ["`partition.examples`", "0", "at least 1"]),
    "more examples than there are": (["--set", "partition.examples=90"], ["`partition.examples`", "at most"]),
    "more classes than there are": (
        ["--set", "partition.name=pathological", "--set", "partition.classes_per_client=11"],
        ["`partition.classes_per_client`", "11", "10 classes", "at most"],
    ),
    "no class": (
        ["--set", "partition.name=pathological", "--set", "partition.classes_per_client=0"],
        ["`partition.classes_per_client`", "0", "at least 1"],
    ),
    "share below": (["--set", "partition.share=-1"], ["`partition.share`", "-1", "at least 0 and at most 100"]),
    "share above": (["--set", "partition.share=101"], ["`partition.share`", "101", "at least 0 and at most 100"]),
    "participation 0": (["--set", "participation=0"], ["`participation`", "0", "above 0 and at most 1"]),
    "participation 1.5": (["--set", "participation=1.5"], ["`participation`", "1.5", "above 0 and at most 1"]),
    "participation -0.5": (["--set", "participation=-0.5"], ["`participation`", "-0.5", "above 0 and at most 1"]),
    "participation nan": (["--set", "participation=nan"], ["`participation`", "nan", "above 0 and at most 1"]),
    "no rounds": (["--set", "rounds=0"], ["`rounds`", "0", "at least 1"]),
    "no evaluation": (["--set", "eval_every=0"], ["`eval_every`", "0", "at least 1"]),
    "no checkpoint": (["--set", "checkpoint_every=0"], ["`checkpoint_every`", "0", "at least 1"]),
    "data set of Python's": (["--dataset", "given"], ["`dataset.name`", "`given`", "`fedmate.run(..., data=...)`"]),
    "model of Python's": (["--set", "model.name=given"], ["`model.name`", "`given`", "`fedmate.run(..., model=...)`"]),
    "partition of Python's": (["--set", "partition.name=given"], ["`partition.name`", "`given`", "fedmate.Sites"]),
    "too many rounds": (["--set", f"rounds={'9' * 400}"], ["`rounds`"]),
    "far too many rounds": (["--set", f"rounds={'9' * 5000}"], ["`rounds`"]),
    "infinite step": (["--set", "training.learning_rate=inf"], ["`training.learning_rate`", "inf", "finite"]),
    "no such device": (["--set", "device=nonsense"], ["`device`", "`nonsense`", "use `cpu`"]),
    "strange device": (["--set", "device=meta"], ["`device`", "`meta`", "use `cpu`"]),
    "missing device": (["--set", "device=cuda:99"], ["`device`", "`cuda:99`", "use `cpu`"]),
    "missing device, large number": (["--set", "device=cuda:128"], ["`device`", "`cuda:128`", "use `cpu`"]),
    "missing file": (["nowhere.toml"], ["`nowhere.toml`", "does not exist", "TOML file"]),
    "directory as file": (["."], ["`.`", "directory", "TOML file"]),
}


@pytest.mark.parametrize("out", [["--out", "record"], []], ids=["out", "runs"])
@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_get_one_sentence(fedmate_: Fedmate, tmp_path: Path, case: str, out: list[str]) -> None:
    arguments, fragments = BAD_ARGUMENTS[case]
    assert lacking(refuse(fedmate_, tmp_path, "run", *arguments, *out), fragments) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it is there")
def test_a_gpu_that_is_not_there_is_refused(fedmate_: Fedmate, tmp_path: Path) -> None:
    sentence = refuse(fedmate_, tmp_path, "run", "--set", "device=cuda", "--out", "record")
    assert lacking(sentence, ["`device`", "`cuda`", "0 CUDA devices", "use `cpu` or `auto`"]) == []


# What bad files get.

BAD_FILES: dict[str, tuple[str, list[str]]] = {
    "unknown key": ("rnds = 3\n", ["`rnds`", "did you mean `rounds`?"]),
    "unknown section": ("[methods]\nname = 'local'\n", ["`[methods]`", "did you mean `method`?"]),
    "unknown key of a section": ("[training]\nmomentun = 0\n", ["`training.momentun`", "did you mean `momentum`?"]),
    "unknown name": ("[partition]\nname = 'dirichle'\n", ["`partition.name`", "`dirichle`", "`dirichlet`?"]),
    "unknown method": ("[method]\nname = 'fedper2'\n", ["`method.name`", "`fedper2`", "`fedper`?"]),
    "unknown data set": ("[dataset]\nname = 'digit'\n", ["`dataset.name`", "`digit`", "`digits`?"]),
    "unknown model": ("[model]\nname = 'cnn'\n", ["`model.name`", "`cnn`", "`digits_cnn`"]),
    "unknown back end": ("backend = 'parallel'\n", ["`backend`", "`parallel`", "`sequential`"]),
    "text for a whole number": ("rounds = 'ten'\n", ["experiment.toml", "`rounds`", "'ten'", "a whole number"]),
    "truth for a whole number": ("seed = true\n", ["experiment.toml", "`seed`", "true", "a whole number"]),
    "fraction for a whole number": (
        "[partition]\nclients = 2.5\n",
        ["experiment.toml", "`partition.clients`", "2.5", "a whole number"],
    ),
    "text for a number": (
        "[training]\nlearning_rate = 'fast'\n",
        ["experiment.toml", "`training.learning_rate`", "'fast'", "a number"],
    ),
    "list for a number": ("[partition]\nshare = [10]\n", ["experiment.toml", "`partition.share`", "[10]", "a number"]),
    "date for a number": ("participation = 2024-01-01\n", ["experiment.toml", "`participation`", "2024", "a number"]),
    "number for a word": ("backend = 1\n", ["experiment.toml", "`backend`", "1", "a string"]),
    "number for a name": ("[method]\nname = 3\n", ["experiment.toml", "`method.name`", "3", "a string"]),
    "word for a section": ("dataset = 'digits'\n", ["experiment.toml", "`dataset`", "'digits'", "`[dataset]`"]),
    "list of sections": ("[[method]]\nname = 'local'\n", ["experiment.toml", "`method`", "`[method]`"]),
    "section for a key": ("[rounds]\nx = 1\n", ["experiment.toml", "`[rounds]`", "not a section"]),
    "key with a line break": ('"rounds\\nseed" = 1\n', ["experiment.toml", "not a key"]),
    "method's value of the wrong type": (
        "[method]\nclassifier_epochs = 'one'\n",
        ["experiment.toml", "`method.classifier_epochs`", "'one'", "a whole number"],
    ),
    "malformed line": ("seed = 0\nrounds three\n", ["experiment.toml", "not valid TOML", "line 2"]),
    "malformed section": ("seed = 0\n\n[method\n", ["experiment.toml", "not valid TOML", "line 3"]),
    "key twice": ("seed = 0\nseed = 1\n", ["experiment.toml", "not valid TOML", "line 2"]),
    "unfinished": ("seed = 0\nrounds = ", ["experiment.toml", "not valid TOML", "line 2"]),
    "out of limits": ("participation = 1.5\n", ["`participation`", "1.5", "above 0 and at most 1"]),
    "no clients": ("[partition]\nclients = 0\n", ["`partition.clients`", "0", "at least 1"]),
    "no such device": ("device = 'gpu'\n", ["`device`", "`gpu`", "use `cpu`"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_get_one_sentence(fedmate_: Fedmate, tmp_path: Path, case: str) -> None:
    text, fragments = BAD_FILES[case]
    (tmp_path / "experiment.toml").write_text(text, encoding="utf-8")
    assert lacking(refuse(fedmate_, tmp_path, "run", "experiment.toml"), fragments) == []
    assert lacking(refuse(fedmate_, tmp_path, "run", "experiment.toml", "--out", "record"), fragments) == []


def test_a_typo_is_refused_though_the_command_changes_the_name(fedmate_: Fedmate, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('[method]\nname = "fedrep"\nclassifier_epoch = 3\n', encoding="utf-8")
    sentence = refuse(fedmate_, tmp_path, "run", "e.toml", "--method", "local")
    assert lacking(sentence, ["`method.classifier_epoch`", "e.toml", "did you mean `classifier_epochs`?"]) == []


def test_a_file_that_is_no_text_is_refused(fedmate_: Fedmate, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"\x80\x02\x8a\nl\xfc\x9c\x00\xff")
    sentence = refuse(fedmate_, tmp_path, "run", "model.pt")
    assert lacking(sentence, ["`model.pt`", "cannot be read as text", "TOML file"]) == []


# What a bad output folder gets.


@pytest.mark.parametrize("methods", [["local"], ["local", "fedper"]], ids=["one", "two"])
@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling link", "below a file", "too long"])
def test_an_output_folder_that_cannot_be_made_is_refused(
    fedmate_: Fedmate, tmp_path: Path, kind: str, methods: list[str]
) -> None:
    out, fragment = "record", "exists already; name a folder that does not"
    match kind:
        case "folder":
            (tmp_path / "record").mkdir()
        case "file":
            (tmp_path / "record").write_text("mine", encoding="utf-8")
        case "link":
            (tmp_path / "elsewhere").mkdir()
            (tmp_path / "record").symlink_to("elsewhere")
        case "dangling link":
            (tmp_path / "record").symlink_to("nowhere")
        case "below a file":
            (tmp_path / "file").write_text("mine", encoding="utf-8")
            out, fragment = "file/record", "cannot be created"
        case "too long":
            out, fragment = "x" * 300, "`--out`"
    chosen = [word for name in methods for word in ("--method", name)]
    sentence = refuse(fedmate_, tmp_path, "run", *chosen, *SMALL, "--out", out)
    assert lacking(sentence, ["`--out`", f"`{out}`", fragment]) == []
    assert not (tmp_path / "nowhere").exists()


def test_a_finished_record_is_never_overwritten(fedmate_: Fedmate, tmp_path: Path) -> None:
    arguments = ("run", "--method", "local", *SMALL, "--set", "rounds=1", "--out", "record")
    assert fedmate_(*arguments).status == 0
    sentence = refuse(fedmate_, tmp_path, *arguments)
    assert lacking(sentence, ["`--out`", "`record`", "exists already"]) == []


# What divergence gets.


def test_divergence_is_status_3_and_one_sentence(fedmate_: Fedmate, tmp_path: Path) -> None:
    answer = fedmate_("run", "--method", "fedavg", *SMALL, "--set", "training.learning_rate=1e30", "--out", "record")
    assert answer.status == 3
    (sentence,) = answer.err.splitlines()
    assert lacking(sentence, ["every client", "round 1 ", "lower the learning rates"]) == []
    assert "Traceback" not in answer.out
    config = tomllib.loads((tmp_path / "record" / "config.toml").read_text(encoding="utf-8"))
    assert config["training"]["learning_rate"] == 1e30
    summary = json.loads((tmp_path / "record" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["diverged_in_round"], summary["headline"]["mean"]) == (1, None)


def test_divergence_in_a_later_round_keeps_the_rounds_before_it(fedmate_: Fedmate, tmp_path: Path) -> None:
    # One step a round multiplies the parameters by 10,000.
    growing = ("training.learning_rate=1e-3", "training.weight_decay=1e7", "training.momentum=0")
    more = ("rounds=9", "eval_every=1", *growing)
    settings = [word for assignment in more for word in ("--set", assignment)]
    answer = fedmate_("run", "--method", "local", *SMALL, *settings, "--out", "record")
    assert answer.status == 3
    (sentence,) = answer.err.splitlines()
    folder = tmp_path / "record"
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["round"] for row in metrics] == list(range(1, len(metrics) + 1))
    assert metrics
    assert f"round {len(metrics) + 1} " in sentence
    with (folder / "rounds.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 3 * (len(metrics) + 1)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["diverged_in_round"] == len(metrics) + 1
    assert summary["left_out"] == 3
    assert summary["headline"]["mean"] == metrics[-1]["accuracy"]["post"]["balanced"]["mean"]


def test_a_method_that_diverges_does_not_stop_the_comparison(fedmate_: Fedmate, tmp_path: Path) -> None:
    settings = ("--set", "method.classifier_learning_rate=1e30", "--set", "rounds=2")
    answer = fedmate_("run", "--method", "fedrep", "--method", "local", *SMALL, *settings, "--out", "record")
    assert answer.status == 3
    (sentence,) = answer.err.splitlines()
    assert lacking(sentence, ["fedrep: every client that took part diverged", "record/fedrep"]) == []
    assert (tmp_path / "record" / "local" / "summary.json").exists()
    rows = [line for line in answer.out.splitlines() if line.strip().startswith("local ")]
    assert len(rows) == 1
