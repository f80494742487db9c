"""A sweep runs what is missing, once, whatever happens to single cells."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fedmate.studies.grid import Grid, Wanted
from fedmate.studies.reading import load_grid
from fedmate.studies.store import Store
from fedmate.studies.sweep import Watcher, Work, sweep, sweep_in_processes

from fedmate.errors import UserError
from fedmate.experiment.build import Built
from fedmate.experiment.record import Record
from fedmate.experiment.run import Observer
from fedmate.experiment.user_inputs import UserInputs
from fedmate.progress import Silence
from fedmate.studies import kept, measures

GRID = """
[base]
rounds = 2
eval_every = 1
backend = "sequential"
model.width = 8
partition = { clients = 3, examples = 20 }
training = { epochs = 1 }
[columns.skewed]
partition.share = 10
[columns.even]
partition.share = 70
[rows.fedavg]
method.name = "fedavg"
[rows.global]
view = "global"
method.name = "fedavg"
[rows.local]
method.name = "local"
"""


class Listener(Watcher):
    def __init__(self, observer: Observer | None = None) -> None:
        self.observer = observer or Silence()
        self.began_cells: list[str] = []
        self.ended_cells: list[str] = []
        self.failures: dict[str, str] = {}
        self.sentences: list[str] = []

    def began(self, cell: str) -> Observer:
        self.began_cells.append(cell)
        return self.observer

    def ended(self, cell: str, seconds: float) -> None:
        self.ended_cells.append(cell)

    def failed(self, cell: str, sentence: str) -> None:
        self.failures[cell] = sentence

    def warned(self, sentence: str) -> None:
        self.sentences.append(sentence)


class StopAfterOneRound(Observer):
    """What a user who presses Ctrl-C does."""

    def started(self, built: Built, done: int) -> None:
        pass

    def round_done(self, done: int, primary: float | None) -> None:
        raise KeyboardInterrupt

    def warned(self, sentence: str) -> None:
        pass


def grid_of(folder: Path, text: str = GRID) -> Grid:
    path = folder / "small.toml"
    path.write_text(text)
    return load_grid(str(path))


def work_of(grid: Grid, folder: Path, measures: tuple[str, ...] = ()) -> Work:
    return Work(grid.cells(Wanted()), measures, Store(folder / "store"), UserInputs())


def test_each_run_is_run_once_and_never_again(tmp_path: Path) -> None:
    work, first, second = work_of(grid_of(tmp_path), tmp_path), Listener(), Listener()
    assert len(work.cells) == 6
    assert [cell.key for cell in work.left()] == ["skewed/fedavg", "skewed/local", "even/fedavg", "even/local"]
    sweep(work, first)
    assert first.ended_cells == ["skewed/fedavg", "skewed/local", "even/fedavg", "even/local"]
    assert not work.left()
    sweep(work, second)
    assert not second.began_cells
    kept = work.store.find(work.cells[0].name)
    assert kept is not None
    assert kept.accuracy("pre", "own") == pytest.approx(
        Record(work.store.run_folder(work.cells[0].name)).accuracy("pre", "own"), abs=1e-3
    )


def test_an_interrupted_cell_goes_on_where_it_stood(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    whole, torn = work_of(grid, tmp_path / "a"), work_of(grid, tmp_path / "b")
    sweep(whole, Listener())
    with pytest.raises(KeyboardInterrupt):
        sweep(torn, Listener(StopAfterOneRound()))
    name = torn.cells[0].name
    assert not torn.store.has(name)
    assert len(torn.left()) == 4
    stood = (torn.store.run_folder(name) / "metrics.jsonl").read_text().splitlines()
    assert len(stood) == 1
    sweep(torn, Listener())
    assert (torn.store.run_folder(name) / "metrics.jsonl").read_text().splitlines()[0] == stood[0]
    for cell in whole.cells:
        a, b = whole.store.find(cell.name), torn.store.find(cell.name)
        assert a is not None
        assert b is not None
        assert a.summary["accuracy"] == b.summary["accuracy"]


def test_a_cell_that_fails_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    text = f"{GRID}\n[rows.impossible]\nmethod.name = 'local'\npartition.examples = 100000\n"
    text += "[rows.last]\nmethod.name = 'fedper'\n"
    work, listener = work_of(grid_of(tmp_path, text), tmp_path), Listener()
    sweep(work, listener)
    assert set(listener.failures) == {"skewed/impossible", "even/impossible"}
    assert "examples" in listener.failures["skewed/impossible"]
    assert "skewed/last" in listener.ended_cells
    assert {cell.row.key for cell in work.left()} == {"impossible"}


def test_a_fault_of_the_program_is_one_cells_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr("fedmate.studies.sweep.run_all", break_down)
    listener = Listener()
    sweep(work_of(grid_of(tmp_path), tmp_path), listener)
    assert len(listener.failures) == 4
    assert "illegal memory access" in listener.failures["even/local"]


def test_cells_that_others_have_claimed_are_left_to_them(tmp_path: Path) -> None:
    work, listener = work_of(grid_of(tmp_path), tmp_path), Listener()
    with work.store.claim(work.cells[0].name):
        sweep(work, listener)
    assert "skewed/fedavg" not in listener.began_cells
    assert [cell.key for cell in work.left()] == ["skewed/fedavg"]


def test_what_others_let_go_of_unfinished_is_taken_up(tmp_path: Path) -> None:
    """Another process has the first cell when we come by, and is stopped while we run the second."""
    work = work_of(grid_of(tmp_path), tmp_path)
    other_process = ExitStack()
    other_process.enter_context(work.store.claim(work.cells[0].name))

    class Killer(Listener):
        def began(self, cell: str) -> Observer:
            other_process.close()
            return super().began(cell)

    listener = Killer()
    sweep(work, listener)
    assert not work.left()
    assert listener.ended_cells[-1] == work.cells[0].label


def test_a_cell_that_diverges_is_finished_and_says_so(tmp_path: Path) -> None:
    text = GRID.replace("epochs = 1", "epochs = 1, learning_rate = 1e30")
    work = work_of(grid_of(tmp_path, text), tmp_path)
    sweep(work, Listener())
    assert not work.left()
    kept = work.store.find(work.cells[0].name)
    assert kept is not None
    assert kept.diverged_in == 1
    assert kept.accuracy("pre", "own") is None


def test_several_processes_divide_the_cells(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    alone, shared, listener = work_of(grid, tmp_path / "a"), work_of(grid, tmp_path / "b"), Listener()
    sweep(alone, Listener())
    sweep_in_processes(shared, listener, 2)
    assert sorted(listener.ended_cells) == sorted(["skewed/fedavg", "skewed/local", "even/fedavg", "even/local"])
    assert not shared.left()
    for cell in alone.cells:
        a, b = alone.store.find(cell.name), shared.store.find(cell.name)
        assert a is not None
        assert b is not None
        assert a.summary["accuracy"] == b.summary["accuracy"]


def test_where_nothing_is_trained_samples_are_dealt(tmp_path: Path) -> None:
    work = work_of(grid_of(tmp_path, "trains = false\n" + GRID), tmp_path)
    sweep(work, Listener())
    kept = work.store.find(work.cells[0].name)
    assert kept is not None
    assert [sum(row) for row in kept.content["holdings"]] == [20, 20, 20]
    assert len(kept.content["class_names"]) == 10
    assert not (tmp_path / "store" / "runs").exists()
    assert kept.content["command"].startswith("fedmate partition ")


def test_cells_of_other_folders_are_merged_by_name(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    theirs, ours = work_of(grid, tmp_path / "a"), work_of(grid, tmp_path / "b")
    sweep(theirs, Listener())
    merged = ours.store.merge(theirs.store.folder)
    assert len(merged.new) == 4
    assert not ours.left()
    assert len(ours.store.merge(theirs.store.cells).same) == 4
    path = theirs.store.cells / f"{theirs.cells[0].name}.json"
    content = json.loads(path.read_text())
    content["summary"]["accuracy"]["pre"]["own"]["mean"] = 1.5
    path.write_text(json.dumps(content))
    before = (ours.store.cells / path.name).read_bytes()
    assert ours.store.merge(theirs.store.folder).unlike == [theirs.cells[0].name]
    assert (ours.store.cells / path.name).read_bytes() == before
    with pytest.raises(UserError, match="no cells"):
        ours.store.merge(tmp_path / "nowhere")
    path.write_text("{")
    merged = ours.store.merge(theirs.store.folder)
    assert len(merged.same) == 3
    assert [sentence.split("`")[1] for sentence in merged.refused] == [str(path)]


def test_what_is_measured_later_is_added_to_a_cell_that_is_finished(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, GRID.replace('"fedavg"', '"fedproto"'))
    before, after = work_of(grid, tmp_path), work_of(grid, tmp_path, ("flops",))
    before = before._replace(cells=before.cells[:1])
    after = after._replace(cells=after.cells[:1])
    sweep(before, Listener())
    name = before.cells[0].name
    old = before.store.find(name)
    assert old is not None
    assert not before.left()
    assert after.left()
    sweep(after, Listener())
    new = after.store.find(name)
    assert new is not None
    assert not after.left()
    assert new.content["flops_per_round"] > 0
    assert {key: value for key, value in new.content.items() if key not in ("flops_per_round", "measures")} == {
        key: value for key, value in old.content.items() if key != "measures"
    }
    arrays = after._replace(measures=("prototypes",))
    sweep(arrays, Listener())
    assert not arrays.left()
    assert not after.left()
    held = arrays.store.arrays(name)
    assert held is not None
    assert held["prototypes"].shape[:2] == (3, 10)


def test_what_can_be_counted_needs_no_run(tmp_path: Path) -> None:
    """A cell that came from elsewhere, without its record, gets its operations; the run is not repeated."""
    grid = grid_of(tmp_path)
    work, fresh = work_of(grid, tmp_path), work_of(grid, tmp_path / "again", ("flops",))
    work, fresh = (one._replace(cells=one.cells[:1]) for one in (work, fresh))
    name = work.cells[0].name
    sweep(work, Listener())
    sweep(fresh, Listener())
    shutil.rmtree(work.store.run_folder(name))
    later, listener = work._replace(measures=("flops",)), Listener()
    sweep(later, listener)
    assert listener.ended_cells == ["skewed/fedavg"]
    assert not work.store.run_folder(name).exists()
    counted, run = later.store.find(name), fresh.store.find(name)
    assert counted is not None
    assert run is not None
    assert counted.content["flops_per_round"] == run.content["flops_per_round"] > 0
    assert counted.measures == ["flops"]


def test_nothing_is_counted_on_other_samples(tmp_path: Path) -> None:
    work, listener = work_of(grid_of(tmp_path), tmp_path), Listener()
    work = work._replace(cells=work.cells[:1])
    sweep(work, listener)
    path = work.store.cells / f"{work.cells[0].name}.json"
    content = json.loads(path.read_text())
    content["summary"]["partition_sha256"] = "0" * 64
    path.write_text(json.dumps(content))
    before = path.read_bytes()
    sweep(work._replace(measures=("flops",)), listener)
    assert "was dealt from other samples" in listener.failures["skewed/fedavg"]
    assert path.read_bytes() == before


def test_operations_of_a_run_elsewhere_are_counted_here(tmp_path: Path) -> None:
    """Nothing is computed, so that neither its device nor its back end need be there."""
    work = work_of(grid_of(tmp_path), tmp_path, ("flops",))
    here = work._replace(cells=work.cells[:1])
    sweep(here, Listener())
    cell, path = here.cells[0], here.store.cells / f"{here.cells[0].name}.json"
    content = json.loads(path.read_text())
    flops = content.pop("flops_per_round")
    path.write_text(json.dumps({**content, "measures": []}))
    there = replace(cell, experiment=cell.experiment.with_general(device="cuda", backend="vectorised"))
    assert there.name == cell.name
    listener = Listener()
    sweep(here._replace(cells=[there]), listener)
    assert not listener.failures
    assert json.loads(path.read_text())["flops_per_round"] == flops


@pytest.mark.parametrize("fault", [RuntimeError, TypeError])
def test_what_cannot_be_counted_is_said_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    monkeypatch.setattr(measures, "flops_of_update", Mock(side_effect=fault("cannot be looked at")))
    work, listener = work_of(grid_of(tmp_path), tmp_path, ("flops",)), Listener()
    sweep(work._replace(cells=work.cells[:1]), listener)
    assert listener.failures["skewed/fedavg"] == (
        "`measures` has `flops`, but those of `fedavg` cannot be counted from shapes alone (cannot be looked at); "
        "leave it out."
    )
    assert not work.store.run_folder(work.cells[0].name).exists()


@pytest.mark.parametrize("fault", [RuntimeError, TypeError])
def test_prototypes_of_an_update_that_cannot_be_followed_are_taken_when_it_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: type[Exception]
) -> None:
    monkeypatch.setattr(measures, "trace_update", Mock(side_effect=fault("cannot be looked at")))
    work = work_of(grid_of(tmp_path, GRID.replace('"fedavg"', '"fedproto"')), tmp_path, ("prototypes",))
    work, listener = work._replace(cells=work.cells[:1]), Listener()
    sweep(work, listener)
    assert not listener.failures
    assert not work.left()


def test_a_view_that_a_run_does_not_have_is_named_unless_it_could_not_have_any(tmp_path: Path) -> None:
    work = work_of(grid_of(tmp_path), tmp_path)
    cell = replace(work.cells[0], row=replace(work.cells[0].row, view="best"))
    work = work._replace(cells=[cell])
    assert not work.unknown_views(cell.name), "it has not run"
    sweep(work, Listener())
    assert ["`best`" in sentence for sentence in work.unknown_views(cell.name)] == [True]
    path = work.store.cells / f"{cell.name}.json"
    content = json.loads(path.read_text())
    changes: list[dict[str, Any]] = [{"diverged_in_round": 2}, {"accuracy": {}}]
    for change in changes:
        path.write_text(json.dumps({**content, "summary": {**content["summary"], **change}}))
        assert not work.unknown_views(cell.name)


def test_cells_that_others_are_running_are_known(tmp_path: Path) -> None:
    work = work_of(grid_of(tmp_path), tmp_path)
    assert not work.of_others()
    with work.store.claim(work.cells[0].name):
        assert [cell.key for cell in work.of_others()] == ["skewed/fedavg"]
    assert not work.of_others()


def test_a_method_whose_file_has_changed_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_of(grid_of(tmp_path), tmp_path)
    work = work._replace(cells=[cell for cell in work.cells if cell.key in ("skewed/local", "skewed/fedavg")])
    sweep(work, Listener())
    assert not work.outdated()
    digest = kept.source_digest
    monkeypatch.setattr(kept, "source_digest", lambda name: digest(name) if name != "local" else "x")
    assert work.outdated() == ["local"]


def test_a_lock_that_cannot_be_taken_stops_its_cell_only(tmp_path: Path) -> None:
    work, listener = work_of(grid_of(tmp_path), tmp_path), Listener()
    (tmp_path / "store" / "locks" / work.cells[0].name).mkdir(parents=True)
    sweep(work, listener)
    assert list(listener.failures) == ["skewed/fedavg"]
    assert len(listener.ended_cells) == 3


def test_a_cell_that_lost_its_arrays_is_measured_again(tmp_path: Path) -> None:
    work = work_of(grid_of(tmp_path, GRID.replace('"fedavg"', '"fedproto"')), tmp_path, ("prototypes",))
    work = work._replace(cells=work.cells[:1])
    sweep(work, Listener())
    name, listener = work.cells[0].name, Listener()
    before, path = work.store.arrays(name), work.store.cells / f"{name}.safetensors"
    path.unlink()
    assert [cell.name for cell in work.left()] == [name]
    assert not work._replace(measures=("flops",)).is_finished(name)
    assert work._replace(measures=()).is_finished(name)
    sweep(work, listener)
    after = work.store.arrays(name)
    assert listener.ended_cells == ["skewed/fedavg"]
    assert not work.left()
    assert before is not None
    assert after is not None
    assert after["prototypes"].equal(before["prototypes"])


def test_what_a_method_does_not_record_is_said_before_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: object) -> None:
        raise AssertionError("it is not trained")

    monkeypatch.setattr("fedmate.studies.sweep.run_all", train)
    work, listener = work_of(grid_of(tmp_path), tmp_path, ("prototypes",)), Listener()
    sweep(work, listener)
    assert list(listener.failures) == ["skewed/fedavg", "skewed/local", "even/fedavg", "even/local"]
    assert listener.failures["even/fedavg"].startswith("`measures` has `prototypes`, but `fedavg` records none;")


def test_a_view_that_there_is_not_is_said_when_the_first_run_has_ended(tmp_path: Path) -> None:
    text = GRID.replace('view = "global"', 'view = "globl"')
    work, listener = work_of(grid_of(tmp_path, text), tmp_path), Listener()
    sweep(work._replace(cells=work.cells[:3]), listener)
    assert listener.sentences == [
        "global: there is no view `globl`; its runs have pre, post, global, classifier_tuned",
    ]
