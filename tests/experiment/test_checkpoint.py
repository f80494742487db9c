"""Checkpoints: what is saved comes back, only what changed is written, and damage is found."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedmate.core import Tree
from fedmate.core.tree import DamagedError, pack
from fedmate.errors import UserError
from fedmate.experiment.checkpoint import Checkpoint, Manifest, RunState

CONFIG = "rounds = 9\n"
INITIAL: Tree = {"extractor": {"w": torch.arange(4.0)}, "buffers": {}}
CLIENTS = 50


def client_state(client: int, version: int) -> Tree:
    """Return a client's state, from which the client and the round can be told."""
    return {"own": {"w": torch.full((3,), client + version / 64), "none": {}}, "seen": torch.tensor(version)}


def server_state(version: int) -> Tree:
    return {"mean": torch.full((2, 2), float(version), dtype=torch.float64), "diagnostics": {}}


def state_after(done: int) -> RunState:
    files = {"rounds.csv": {"bytes": 100 * done, "sha256": "00"}, "metrics.jsonl": {"bytes": 10 * done, "sha256": "ff"}}
    return RunState(done, done / 4, {"extractor": done}, {}, {"left_out": 0, "diverged_in_round": None}, files)


def create(folder: Path, config: str = CONFIG) -> Checkpoint:
    folder.mkdir()
    (folder / "config.toml").write_text(config, encoding="utf-8")
    Checkpoint.create(folder, config, CLIENTS, INITIAL, {"input_shape": [2]})
    return Checkpoint(folder)


def save(checkpoint: Checkpoint, done: int, touched: list[int]) -> None:
    """Save round `done`, after which the clients that took part since the last one have new states."""
    versions = [done if i in touched else version for i, version in enumerate(checkpoint.versions)]
    clients = {i: (versions[i], client_state(i, versions[i])) for i in touched}
    checkpoint.save(state_after(done), server_state(done), clients)


def check_holds(folder: Path, done: int, versions: dict[int, int]) -> None:
    """Check that a folder holds the states after round `done`; `versions` names the clients that took part."""
    found = Checkpoint(folder)
    found.check_all()
    assert found.state == (state_after(done) if done else RunState())
    assert found.clients() == sorted(versions)
    assert pack(found.server(server_state(0)), {}) == pack(server_state(done), {})
    for i in range(CLIENTS):
        assert pack(found.client(i, client_state(i, 0)), {}) == pack(client_state(i, versions.get(i, 0)), {}), i


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the files of a checkpoint, with what tells whether they were written again."""
    files = [path for path in (folder / "checkpoint").rglob("*") if path.is_file()]
    return {
        path.relative_to(folder / "checkpoint").as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in files
    }


def expected_files(versions: dict[int, int], done: int) -> set[str]:
    states = {f"clients/{client:06d}-{version:06d}.safetensors" for client, version in versions.items()}
    return states | {"checkpoint.json", "initial.safetensors", f"server-{done:06d}.safetensors"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run after round 2, in which clients 3, 7 and 11 took part in round 1 and 3 again in round 2."""
    checkpoint = create(tmp_path / "run")
    save(checkpoint, 1, [3, 7, 11])
    save(checkpoint, 2, [3])
    return tmp_path / "run"


BEFORE = {3: 2, 7: 1, 11: 1}
"""Who took part, and when they did last."""

AFTER = {3: 2, 7: 4, 11: 1, 20: 4}
"""The same after round 4, in which 7 and 20 took part."""

# -------------------- what is saved comes back


def test_cleaning_up_leaves_other_files_alone(folder: Path) -> None:
    left_over = folder / "checkpoint" / "clients" / "000003-000001.safetensors"
    for path in (left_over, *(folder / "checkpoint" / name for name in OWN_FILES)):
        path.write_text("mine", encoding="utf-8")
    Checkpoint(folder).clean()
    assert set(listing(folder)) == expected_files(BEFORE, 2) | {*OWN_FILES}
    check_holds(folder, 2, BEFORE)


def test_before_the_first_round_everybody_is_where_they_start(tmp_path: Path) -> None:
    create(tmp_path / "run")
    assert set(listing(tmp_path / "run")) == {"checkpoint.json", "initial.safetensors"}
    check_holds(tmp_path / "run", 0, {})
    tensors, note = Checkpoint(tmp_path / "run").initial()
    assert list(tensors) == ["extractor/w"]
    assert torch.equal(tensors["extractor/w"], INITIAL["extractor"]["w"])
    assert note == {"input_shape": [2]}


# -------------------- only what changed is written


def test_only_the_clients_that_took_part_are_written(folder: Path) -> None:
    before = listing(folder)
    save(Checkpoint(folder), 4, [7, 20])
    after = listing(folder)
    assert set(after) == expected_files(AFTER, 4)
    untouched = set(before) & set(after) - {"checkpoint.json"}
    assert len(untouched) == 3
    assert all(after[name] == before[name] for name in untouched)
    check_holds(folder, 4, AFTER)
    for touched in ([], [3], [20]):
        save(Checkpoint(folder), 4, touched)
    assert listing(folder) == after


OWN_FILES = (
    "clients/notes.txt",
    "server-final.safetensors",
    "clients/000003-000001.safetensors~",
    "checkpoint.json.old",
)
"""A user's own, whose names look like ours."""


# -------------------- damage


def read_all(folder: Path) -> None:
    """Read a checkpoint as a run does that goes on."""
    found = Checkpoint(folder)
    found.initial()
    found.check_all()
    found.server(server_state(0))
    for i in found.clients():
        found.client(i, client_state(i, 0))


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(path: Path) -> None:
    """Claim that a run is a round further than it is."""
    text = path.read_text(encoding="utf-8")
    assert text.count('"round": 2') == 1
    path.write_text(text.replace('"round": 2', '"round": 3'), encoding="utf-8")


def cut(path: Path) -> None:
    """Lose the last byte of a file."""
    path.write_bytes(path.read_bytes()[:-1])


def swap(one: Path, other: Path) -> None:
    """Exchange two files."""
    mine, theirs = one.read_bytes(), other.read_bytes()
    one.write_bytes(theirs)
    other.write_bytes(mine)


def of_another_run(name: str) -> Callable[[Path], None]:
    """Bring a file from a run of another experiment, in which as much happened."""

    def damage(path: Path) -> None:
        other = path / "other"
        checkpoint = create(other, CONFIG + "seed = 1\n")
        save(checkpoint, 1, [3, 7, 11])
        save(checkpoint, 2, [3])
        shutil.copy(other / "checkpoint" / name, path / "checkpoint" / name)

    return damage


SEVEN, ELEVEN, SERVER = (
    "clients/000007-000001.safetensors",
    "clients/000011-000001.safetensors",
    "server-000002.safetensors",
)
INITIAL_FILE = "initial.safetensors"


def mistype(path: Path) -> None:
    """Write a manifest with values of a wrong type, under a right digest."""
    values = json.loads(path.read_bytes())["checkpoint"]
    values["standing"]["round"] = "2"
    right = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"digest": right, "checkpoint": values}), encoding="utf-8")


def misshape(folder: Path) -> None:
    """Write an intact file of this run, with a state of another shape."""
    experiment = hashlib.sha256(CONFIG.encode()).hexdigest()
    tree = {**client_state(7, 1), "seen": torch.ones(2, dtype=torch.int64)}
    (folder / "checkpoint" / SEVEN).write_bytes(pack(tree, {"experiment": experiment, "file": SEVEN, "round": 1}))


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no manifest": (lambda p: (p / "checkpoint/checkpoint.json").unlink(), "checkpoint.json", "it is missing"),
    "manifest edited": (lambda p: edit(p / "checkpoint/checkpoint.json"), "checkpoint.json", "its content has changed"),
    "manifest of wrong types": (lambda p: mistype(p / "checkpoint/checkpoint.json"), "checkpoint.json", ""),
    "no initial": (lambda p: (p / "checkpoint" / INITIAL_FILE).unlink(), INITIAL_FILE, "it is missing"),
    "server cut": (lambda p: cut(p / "checkpoint" / SERVER), SERVER, "not a file of fedmate's"),
    "server of another run": (of_another_run(SERVER), SERVER, "it belongs to another run"),
    "no client": (lambda p: (p / "checkpoint" / SEVEN).unlink(), SEVEN, "it is missing"),
    "client flipped": (lambda p: flip(p / "checkpoint" / SEVEN), SEVEN, ""),
    "clients swapped": (lambda p: swap(p / "checkpoint" / SEVEN, p / "checkpoint" / ELEVEN), SEVEN, "another file"),
    "another shape": (misshape, SEVEN, "`seen` is int64 of shape (2,), not int64 of shape ()"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_found_and_the_file_is_named(folder: Path, case: str) -> None:
    read_all(folder)
    damage, name, reason = DAMAGE[case]
    damage(folder)
    with pytest.raises(UserError) as caught:
        read_all(folder)
    sentence = str(caught.value)
    assert sentence.startswith(f"`{folder / 'checkpoint' / name}` is damaged or foreign: ")
    assert reason in sentence
    assert sentence.endswith("; put the folder back from a copy, or start a new run.")
    assert "\n" not in sentence


def test_every_flipped_bit_and_every_truncation_of_a_manifest_is_found(folder: Path) -> None:
    data = (folder / "checkpoint" / "checkpoint.json").read_bytes()
    assert Manifest.from_json(data).state == state_after(2)
    for place in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(DamagedError):
            Manifest.from_json(bytes(damaged))
    # The last byte is a line's end.
    for size in range(len(data) - 1):
        with pytest.raises(DamagedError):
            Manifest.from_json(data[:size])
