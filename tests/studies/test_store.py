"""A store keeps what is put there, whoever puts it there, and one odd file is no reason to lose the others."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.reproduce.small import Run, column, grid_of, kept_of, row

from fedmate import storage
from fedmate.errors import UserError
from fedmate.studies.grid import Wanted
from fedmate.studies.kept import Kept
from fedmate.studies.store import Store

RUN = Run({"pre": (50.0, 60.0)}, curve=[(1, 2.5, {"pre": (40.0, 45.0)}), (2, 5.0, {"pre": (50.0, 60.0)})])
ARRAYS = {"prototypes": torch.ones(2, 3)}


@pytest.fixture(scope="module")
def cells() -> list[Kept]:
    """Three finished cells."""
    rows = [row("fedavg"), row("fedper"), row("local")]
    return [kept_of(cell, RUN) for cell in grid_of([column("s10")], rows).cells(Wanted())]


@pytest.fixture
def theirs(tmp_path: Path, cells: list[Kept]) -> Store:
    store = Store(tmp_path / "theirs")
    for kept in cells:
        store.keep(kept.name, kept.content)
    return store


@pytest.fixture
def ours(tmp_path: Path) -> Store:
    return Store(tmp_path / "ours")


def rewrite(store: Store, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = store.cells / f"{name}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -------------------- keeping


def test_a_cell_that_another_process_has_put_there_meanwhile_is_kept(
    ours: Store, cells: list[Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, write_new = cells[0], storage.write_new

    def late(path: Path, data: bytes) -> None:
        write_new(path, data)
        write_new(path, data)

    monkeypatch.setattr(storage, "write_new", late)
    ours.keep(kept.name, {**kept.content, "measures": ["flops"]})
    found = ours.find(kept.name)
    assert found is not None
    assert found.content == {**kept.content, "measures": ["flops"]}


def test_what_the_quicker_one_did_not_measure_is_added(
    ours: Store, cells: list[Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, write_new = cells[0], storage.write_new

    def late(path: Path, data: bytes) -> None:
        write_new(path, json.dumps(kept.content).encode())
        write_new(path, data)

    monkeypatch.setattr(storage, "write_new", late)
    ours.keep(kept.name, {"flops_per_round": 7, **kept.content, "measures": ["flops"]})
    found = ours.find(kept.name)
    assert found is not None
    assert (found.content["flops_per_round"], found.measures) == (7, ["flops"])
    # What is new comes last, so that two versions of a file differ where they do.
    assert list(found.content) == [*kept.content, "flops_per_round", "measures"]


def test_many_may_keep_the_same_at_once(ours: Store, cells: list[Kept]) -> None:
    ours.keep(cells[0].name, cells[0].content)

    def measure(number: int) -> None:
        name = f"measure{number}"
        ours.keep(cells[0].name, {**cells[0].content, "measures": [name]}, {name: torch.ones(1)})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(measure, range(40)))
    assert ours.find(cells[0].name) is not None
    assert ours.arrays(cells[0].name)
    assert len(tree(ours.folder)) == 2


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_has_the_place_of_a_cell_and_is_none_is_named(ours: Store, cells: list[Kept], kind: str) -> None:
    path = ours.cells / f"{cells[0].name}.json"
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(UserError, match="not a regular file"):
        ours.find(cells[0].name)
    with pytest.raises(UserError, match="not a regular file"):
        ours.keep(cells[0].name, cells[0].content)
    assert not ours.has(cells[0].name)


@pytest.mark.parametrize("kind", ["damaged", "pipe", "folder"])
def test_damaged_arrays_matter_to_those_who_ask_for_them(ours: Store, cells: list[Kept], kind: str) -> None:
    kept = cells[0]
    ours.keep(kept.name, kept.content)
    path = ours.cells / f"{kept.name}.safetensors"
    match kind:
        case "damaged":
            path.write_bytes(b"torn")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    ours.keep(kept.name, {**kept.content, "measures": ["flops"]})
    found = ours.find(kept.name)
    assert found is not None
    assert found.measures == ["flops"]
    with pytest.raises(UserError, match=r"safetensors. cannot be read"):
        ours.arrays(kept.name)
    with pytest.raises(UserError, match=r"safetensors. cannot be read"):
        ours.keep(kept.name, kept.content, ARRAYS)


# -------------------- claiming


def test_a_lock_that_cannot_be_opened_is_named(ours: Store) -> None:
    (ours.folder / "locks" / "cell").mkdir(parents=True)
    for ask in (ours.claim, ours.is_claimed):
        with pytest.raises(UserError, match=r"locks/cell. cannot be made or opened as a lock \(Is a directory\)"):
            ask("cell")
    with ours.claim("other"):
        assert ours.is_claimed("other")
        with pytest.raises(storage.BusyError):
            ours.claim("other")


def test_locks_that_cannot_be_made_are_named(ours: Store) -> None:
    ours.folder.mkdir()
    (ours.folder / "locks").touch()
    with pytest.raises(UserError, match="cannot be made or opened as a lock"):
        ours.claim("cell")


# -------------------- merging


def test_odd_files_are_named_and_do_not_stop_the_others(
    tmp_path: Path, theirs: Store, ours: Store, cells: list[Kept]
) -> None:
    first = theirs.cells / f"{cells[0].name}.json"
    (theirs.cells / "another.json").write_bytes(first.read_bytes())
    (theirs.cells / "folder.json").mkdir()
    os.mkfifo(theirs.cells / "pipe.json")
    (theirs.cells / "package.json").write_text('{"name": "x"}')
    (theirs.cells / f"{cells[1].name}.safetensors").write_bytes(b"torn")
    first.write_text("{")
    merged = ours.merge(theirs.folder)
    assert merged.new == [cells[2].name]
    assert (merged.same, merged.unlike) == ([], [])
    refused = ["another.json", first.name, f"{cells[1].name}.safetensors", "folder.json", "package.json", "pipe.json"]
    assert [sentence.split("`")[1] for sentence in merged.refused] == [str(theirs.cells / name) for name in refused]
    assert [*tree(ours.folder)] == [f"cells/{cells[2].name}.json"]


def test_a_damaged_cell_of_ours_is_named_and_left(theirs: Store, ours: Store, cells: list[Kept]) -> None:
    ours.merge(theirs.folder)
    path = ours.cells / f"{cells[0].name}.json"
    path.write_text("{")
    merged = ours.merge(theirs.folder)
    assert len(merged.same) == 2
    assert [sentence.split("`")[1] for sentence in merged.refused] == [str(path)]
    assert path.read_text() == "{"


@pytest.mark.parametrize("files", [[], ["package.json"]])
def test_a_folder_without_a_cell_is_refused(tmp_path: Path, ours: Store, files: list[str]) -> None:
    (tmp_path / "other").mkdir()
    for name in files:
        (tmp_path / "other" / name).write_text("{}")
    with pytest.raises(UserError, match=r"`--merge` got .*other., where no cells are"):
        ours.merge(tmp_path / "other")


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["summary"]["accuracy"]["pre"]["own"].update(mean=1.5),
        lambda content: content["summary"].update(partition_sha256="cd" * 32),
        lambda content: content.update(holdings=[[4, 0], [0, 4]]),
        lambda content: content["curve"].pop(0),
        lambda content: content["curve"][0]["accuracy"]["pre"].update(own=1.5),
    ],
    ids=["accuracy", "samples", "holdings", "rounds", "curve"],
)
def test_cells_with_other_figures_are_named_and_left_alone(
    theirs: Store, ours: Store, cells: list[Kept], change: Callable[[dict[str, Any]], object]
) -> None:
    ours.merge(theirs.folder)
    before = tree(ours.folder)
    rewrite(theirs, cells[1].name, change)
    theirs.keep(cells[1].name, cells[1].content, ARRAYS)
    merged = ours.merge(theirs.folder)
    assert merged.unlike == [cells[1].name]
    assert len(merged.same) == 2
    assert tree(ours.folder) == before


def test_how_long_and_where_it_took_does_not_make_it_another(theirs: Store, ours: Store, cells: list[Kept]) -> None:
    ours.merge(theirs.folder)
    before = tree(ours.folder)

    def elsewhere(content: dict[str, Any]) -> None:
        content["curve"][0]["seconds"] = 99.0
        content |= {"date": "2031-01-01", "environment": {"fedmate": "9"}}

    rewrite(theirs, cells[0].name, elsewhere)
    assert len(ours.merge(theirs.folder).same) == 3
    assert tree(ours.folder) == before


def test_arrays_that_are_missing_here_are_taken_over(theirs: Store, ours: Store, cells: list[Kept]) -> None:
    name, content = cells[0].name, {**copy.deepcopy(cells[0].content), "measures": ["prototypes"]}
    ours.merge(theirs.folder)
    ours.keep(cells[1].name, cells[1].content, {"prototypes": torch.zeros(1)})
    theirs.keep(name, content, ARRAYS)
    theirs.keep(cells[1].name, cells[1].content, {**ARRAYS, "more": torch.ones(1)})
    merged = ours.merge(theirs.folder)
    assert len(merged.same) == 3
    taken, held, kept = ours.arrays(name), ours.arrays(cells[1].name), ours.find(name)
    assert taken is not None
    assert held is not None
    assert kept is not None
    assert taken["prototypes"].equal(ARRAYS["prototypes"])
    assert kept.measures == ["prototypes"]
    assert held["prototypes"].tolist() == [0.0]
    assert held["more"].tolist() == [1.0]


def test_several_may_merge_at_once(
    theirs: Store, ours: Store, cells: list[Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process merges all of it while this one is at its first cell."""
    write_new, begun = storage.write_new, list[Path]()

    def interrupted(path: Path, data: bytes) -> None:
        begun.append(path)
        if len(begun) == 1:
            Store(ours.folder).merge(theirs.folder)
        write_new(path, data)

    monkeypatch.setattr(storage, "write_new", interrupted)
    merged = ours.merge(theirs.folder)
    assert not merged.refused
    assert sorted([*merged.new, *merged.same]) == sorted(kept.name for kept in cells)
    assert tree(ours.folder) == tree(theirs.folder)
