"""`fedmate reproduce` as a user meets it: what it says, what it leaves behind, and what it does not do twice."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmate.cli.app import app
from fedmate.errors import UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.studies.grid import Wanted
from fedmate.studies.outcome import OTHER_VERSION
from fedmate.studies.reading import load_grid
from fedmate.studies.store import Store

GRID = """
title = "Small: two methods"
source = "nowhere, Table 7"
shows = ["accuracy", "ranking", "curves"]
[base]
rounds = 4
eval_every = 2
backend = "sequential"
partition = { clients = 3, examples = 20 }
training = { epochs = 1 }
[quick]
rounds = 2
[columns.skewed]
partition.share = 10
[columns.pictures]
dataset.name = "cinic10"
partition.share = 70
stand_ins = [{ name = "cifar10" }]
[rows.fedavg]
name = "FedAvg"
view = "post"
method.name = "fedavg"
paper = { skewed = 50.0, pictures = 40.0 }
[rows.local]
method.name = "local"
"""


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("FEDMATE_DATA", str(tmp_path / "data"))
    path = tmp_path / "small.toml"
    path.write_text(GRID)
    return path


def call(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["reproduce", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def test_without_a_name_the_experiments_are_listed() -> None:
    text = call()
    assert len(text.splitlines()) >= 14
    assert "generalization" in text
    assert "; )" not in text, "some were published nowhere"


def test_a_sweep_leaves_tables_and_pictures_and_is_not_run_twice(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = call(str(grid), "--out", str(out))
    assert "`pictures` is left out" in text
    assert "cinic10" in text
    assert "2 cells, 0 of them finished" in text
    assert "2/2 skewed/local" in text
    made = sorted(path.name for path in (out / "small").iterdir())
    assert [f"accuracy{suffix}" for suffix in (".csv", ".md", ".tex")] == [n for n in made if n.startswith("accuracy")]
    assert [n for n in made if n.startswith("curves")] == ["curves.pdf", "curves.png", "curves.svg"]
    table = (out / "small" / "accuracy.md").read_text()
    assert "50.00" in table
    assert "40.00" not in table
    cells = {path.name: path.read_bytes() for path in (out / "cells").iterdir()}
    assert len(cells) == 2
    again = call(str(grid), "--out", str(out))
    assert "2 cells, 2 of them finished" in again
    assert "1/2" not in again
    assert {path.name: path.read_bytes() for path in (out / "cells").iterdir()} == cells


def test_quick_says_so_in_every_output(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = call(str(grid), "--out", str(out), "--quick")
    assert "--quick" in text
    assert "`digits` stands in for `cinic10`" in text
    assert not (out / "small").exists()
    for path in (out / "small-quick").iterdir():
        if path.suffix in (".md", ".tex", ".svg"):
            assert "quick" in path.read_text(), path.name
    assert "difference" not in (out / "small-quick" / "accuracy.md").read_text()
    rows = (out / "small-quick" / "figures.csv").read_text().splitlines()
    column = rows[0].split(",").index("quick")
    assert {row.split(",")[column] for row in rows[1:] if row.count(",") > 5} == {"yes"}


def test_cells_and_seeds_are_chosen(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = call(str(grid), "--out", str(out), "--cells", "*/local", "--seeds", "2", "--quick")
    assert "4 cells" in text
    assert "4/4 pictures/local, seed 1: " in text
    found = [json.loads(path.read_text())["config"] for path in (out / "cells").iterdir()]
    assert {config["seed"] for config in found} == {0, 1}
    assert {config["method"]["name"] for config in found} == {"local"}
    assert "±" in (out / "small-quick" / "accuracy.md").read_text()


def test_show_runs_nothing(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no finished cell"):
        call(str(grid), "--out", str(out), "--show", "--quick")
    assert not out.exists()
    call(str(grid), "--out", str(out), "--quick", "--cells", "skewed/*")
    text = call(str(grid), "--out", str(out), "--show", "--quick")
    assert "FedAvg" in text
    assert len(list((out / "cells").iterdir())) == 2
    with pytest.raises(UserError, match="or ask with the `--quick`, `--settings` and `--cells` that it was run with"):
        call(str(grid), "--out", str(out), "--show")


def test_cells_of_another_machine_are_taken_over(grid: Path, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    call(str(grid), "--out", str(theirs), "--cells", "skewed/fedavg")
    text = call(str(grid), "--out", str(ours), "--merge", str(theirs), "--cells", "skewed/*")
    assert "new here 1, here already 0" in text
    assert "2 cells, 1 of them finished" in text
    assert "1/1 skewed/local" in text


def test_what_cannot_be_taken_over_is_said_before_the_night_and_below_the_tables(grid: Path, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    call(str(grid), "--out", str(theirs), "--cells", "skewed/fedavg")
    (theirs / "cells" / "broken.json").write_text("{")
    words = [str(grid), "--out", str(ours), "--merge", str(theirs), "--cells", "skewed/fedavg"]
    said = f"Left out: `{theirs / 'cells' / 'broken.json'}` cannot be read"
    text = call(*words)
    assert text.index(said) < text.index("1 cell, 1 of them finished") < text.rindex(said)
    text = call(*words, "--show")
    assert text.index("Saved: ") < text.index(said) == text.rindex(said)


def test_a_run_is_no_store_of_cells(grid: Path, tmp_path: Path) -> None:
    """Nor is a file of it one that should be removed."""
    call(str(grid), "--out", str(tmp_path / "out"), "--cells", "skewed/fedavg")
    (run,) = (tmp_path / "out" / "runs").iterdir()
    with pytest.raises(UserError, match="where no cells are; name a folder that `fedmate reproduce` made"):
        call(str(grid), "--out", str(tmp_path / "ours"), "--merge", str(run))
    assert not (tmp_path / "ours").exists()


def test_one_cell_that_fails_ends_in_status_1_with_the_rest_shown(grid: Path, tmp_path: Path) -> None:
    grid.write_text(GRID + "\n[rows.impossible]\nmethod.name = 'local'\npartition.examples = 100000\n")
    text = call(str(grid), "--out", str(tmp_path / "out"), "--cells", "skewed/*", status=1)
    assert "skewed/impossible: failed:" in text
    assert (tmp_path / "out" / "small" / "accuracy.md").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["generalisation"], "did you mean `generalization`"),
        (["small.toml", "--settings", "best"], "`--settings` is `best`"),
        (["small.toml", "--cells", "skew/fedavg"], "`--cells` got `skew/fedavg`"),
        (["small.toml", "--merge", "nowhere"], "`--merge` got `nowhere`"),
        (["other.toml"], "`other.toml` does not exist"),
        (["small.toml", "--cells", "pictures/*"], "no cell to run here"),
        (["small.toml", "--settings", "tuned", "--cells", "pictures/*", "--quick"], None),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    grid: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str | None
) -> None:
    monkeypatch.chdir(grid.parent)
    if sentence is None:
        call(*words)
        return
    with pytest.raises(UserError, match=sentence.replace("`", ".")):
        call(*words)


def test_what_cannot_be_shown_is_refused_before_anything_runs(grid: Path, tmp_path: Path) -> None:
    grid.write_text(GRID.replace('"curves"', '"curvs"'))
    with pytest.raises(UserError, match="did you mean `curves`"):
        call(str(grid), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_sweep_that_is_stopped_continues_with_the_same_command(grid: Path, tmp_path: Path) -> None:
    grid.write_text(GRID.replace("rounds = 4", "rounds = 4000"))
    words = ["reproduce", str(grid), "--out", str(tmp_path / "out"), "--jobs", "2"]
    command = [sys.executable, "-c", "from fedmate.cli import main; main()", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    runs = tmp_path / "out" / "runs"
    while process.poll() is None and len(list(runs.glob("*/rounds.csv"))) < 2:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "0 of 2 cells are finished; the same command continues" in errors
    standings = [Checkpoint(folder).state.round for folder in runs.iterdir()]
    assert len(standings) == 2
    assert all(standing > 0 for standing in standings)


def test_cells_that_another_process_runs_are_waited_for(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    cells = load_grid(str(grid)).cells(Wanted(patterns=("skewed/fedavg",)))
    claims = [Store(out).claim(cells[0].name)]
    # The other one is stopped while we wait, so that its cell is left to us.
    monkeypatch.setattr("fedmate.cli.reproduce.time.sleep", lambda _: claims.pop().__exit__(None, None, None))
    text = call(str(grid), "--out", str(out), "--cells", "skewed/*")
    assert "waiting for 1 of the cells" in text
    assert not claims
    assert len(list((out / "cells").iterdir())) == 2


def test_what_will_be_missing_is_said_first(grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "matplotlib" else find(name))
    text = call(str(grid), "--out", str(tmp_path / "out"), "--cells", "skewed/local", "--quick")
    assert text.index("there will be no pictures") < text.index("1/1 skewed/local")
    assert not list((tmp_path / "out" / "small-quick").glob("*.svg"))
    assert (tmp_path / "out" / "small-quick" / "accuracy.tex").exists()


def test_what_is_in_the_way_is_not_overwritten(grid: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "small"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(UserError, match="in the way"):
        call(str(grid), "--out", str(tmp_path / "out"))
    assert mine.read_text() == "mine"
    assert not (tmp_path / "out" / "runs").exists()
    with pytest.raises(UserError, match="no folder can be made"):
        call(str(grid), "--out", str(mine))


def test_what_cannot_be_written_is_named_and_what_can_is_saved(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [str(grid), "--out", str(out), "--cells", "skewed/*", "--quick"]
    folder = out / "small-quick"
    folder.mkdir(parents=True)
    (folder / "accuracy.md").write_text("mine")
    (folder / "figures.csv").mkdir()
    text = call(*words, status=1)
    assert f"not everything is saved, for `{folder / 'figures.csv'}` cannot be written (Is a directory)." in text
    assert "(accuracy" in text[text.index("Saved: ") :]
    assert (folder / "accuracy.yours.md").read_text() == "mine"
    (folder / "figures.csv").rmdir()
    assert "cannot be written" not in call(*words)


def test_a_table_that_somebody_changed_is_kept_beside_the_new_one(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call(str(grid), "--out", str(out))
    table = out / "small" / "accuracy.tex"
    table.write_text("what I made of it")
    text = call(str(grid), "--out", str(out), "--show")
    assert "it is now `accuracy.yours.tex`" in text
    assert (out / "small" / "accuracy.yours.tex").read_text() == "what I made of it"
    assert "tabular" in table.read_text()


def test_what_an_earlier_call_made_and_this_one_does_not_is_named(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call(str(grid), "--out", str(out))
    grid.write_text(grid.read_text().replace(', "curves"', ""))
    assert "still there, made by an earlier call of other cells: curves" in call(str(grid), "--out", str(out))


def test_a_run_is_no_place_for_tables(grid: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    with pytest.raises(UserError, match="holds a run or a comparison"):
        call(str(grid), "--out", str(tmp_path / "run"))


def test_tables_that_cannot_be_saved_are_shown(grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    words = [str(grid), "--out", str(out), "--cells", "skewed/*", "--quick"]
    call(*words)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("fedmate.storage.replace_by_parts", refuse)
    text = call(*words, "--show")
    assert "FedAvg" in text
    assert (
        f"nothing is saved, for `{out / 'small-quick' / 'accuracy.md'}` cannot be written (Read-only file system)."
        in text
    )
    assert "Saved:" not in text
    assert "FedAvg" in call(*words, status=1)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, out = tmp_path / "theirs", tmp_path / "out"
    call(str(grid), "--out", str(theirs), "--cells", "skewed/local", "--quick")
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    told = r"`--out` is `.*out`, but into `.*{}` nothing can be written; name another place, or {}\.$"
    look, leave = "only look at it with `--show`", "leave out `--merge`"
    for more, advice in ((["--merge", str(theirs), "--show"], leave), ([], look)):
        with pytest.raises(UserError, match=told.format("out", advice)):
            call(str(grid), "--out", str(out), "--quick", *more)
    assert not any(out.iterdir())
    (out / "cells").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK or Path(path).name != "cells")
    with pytest.raises(UserError, match=told.format("cells", look)):
        call(str(grid), "--out", str(out), "--quick")
    assert [path.name for path in out.iterdir()] == ["cells"]


def test_a_file_that_cannot_be_written_does_not_hide_those_that_were(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [str(grid), "--out", str(out), "--cells", "skewed/*", "--quick"]
    grid.write_text(GRID.replace(', "ranking"', ""))
    call(*words)
    for path in (out / "small-quick").glob("curves.*"):
        path.unlink()
    (out / "small-quick" / "curves.svg").mkdir()
    text = " ".join(call(*words, status=1).split())
    assert f"not everything is saved, for `{out / 'small-quick' / 'curves.svg'}` cannot be written (" in text
    assert "small-quick (accuracy, views_skewed, figures)" in text


def test_cells_without_what_cannot_be_counted_are_shown(grid: Path, tmp_path: Path) -> None:
    words = [str(grid), "--out", str(tmp_path / "out"), "--cells", "skewed/*", "--quick"]
    call(*words)
    for path in (tmp_path / "out" / "cells").glob("*.json"):
        content = json.loads(path.read_text())
        content["summary"]["partition_sha256"] = "0" * 64
        path.write_text(json.dumps(content))
    grid.write_text('measures = ["flops"]\n' + GRID)
    text = call(*words, status=1)
    assert "was dealt from other samples" in text
    assert "without `flops`, which is not there" in text


def test_measures_without_runs_are_refused(grid: Path, tmp_path: Path) -> None:
    grid.write_text('measures = ["flops"]\ntrains = false\n' + GRID)
    with pytest.raises(UserError, match="has `measures`, but `trains` is false: there is no run to measure; leave one"):
        call(str(grid), "--out", str(tmp_path / "out"))


def test_what_is_missing_from_a_comparison_stands_in_its_files(
    grid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = tmp_path / "tuned.toml"
    tuned.write_text("[fedavg.digits]\ntraining = { learning_rate = 0.2 }\n", encoding="utf-8")
    monkeypatch.setattr("fedmate.experiment.tuned.FILE", tuned)
    words = [str(grid), "--out", str(tmp_path / "out"), "--cells", "skewed/*", "--quick", "--settings", "tuned"]
    call(*words)
    sentence = "left out, for `fedmate tune` has not been there: local"
    for path in (tmp_path / "out" / "cells").iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"method_sha256": "of another"}))
    text = call(*words, "--show")
    table = (tmp_path / "out" / "small-tuned-quick" / "accuracy.md").read_text()
    for said in (sentence, f"{OTHER_VERSION}: `fedavg`"):
        assert f"Note: {said}" in text
        assert said in table
