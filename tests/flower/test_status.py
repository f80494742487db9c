"""How far a site and a server have come, read from their folders and from nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fedmate
from fedmate.cli.deploy import deploy
from fedmate.errors import UserError
from fedmate.flower.client_state import ClientState
from fedmate.flower.status import status

FIRST, SECOND = "ab" * 16, "cd" * 16


def taken_part(folder: Path, experiment: str, client: int, rounds: int) -> Path:
    own, state = ClientState(folder, experiment, client), {"w": torch.zeros(3)}
    for t in range(rounds):
        own.save(t, state, state)
        own.log(t, {"extractor": 100, "num_samples": 8})
    return own.folder


def everything(folder: Path) -> dict[str, tuple[bytes | None, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def test_a_site_has_a_line_for_each_client_it_has_been_the_latest_last(tmp_path: Path) -> None:
    os.utime(taken_part(tmp_path, SECOND, 1, 3), (2e9, 2e9))
    os.utime(taken_part(tmp_path, FIRST, 1, 2), (1e9, 1e9))
    before = everything(tmp_path)
    # A client at work is not disturbed.
    with ClientState(tmp_path, FIRST, 1).lock():
        lines = list(status(tmp_path))
    (tmp_path / FIRST[:16] / "1" / "lock").unlink()
    assert [line.partition(" done, ")[0] for line in lines] == [
        f"experiment {FIRST[:16]}, client 1: round 2",
        f"experiment {SECOND[:16]}, client 1: round 3",
    ]
    assert lines[1].endswith("Z; 324 bytes sent in all")
    after = everything(tmp_path)
    assert {path for path in before if before[path][0] != after[path][0]} == set()


def test_torn_lines_and_damaged_states_hide_nothing(tmp_path: Path) -> None:
    place = taken_part(tmp_path, FIRST, 0, 1)
    (place / "state.safetensors").write_bytes(b"torn")
    with (place / "audit.csv").open("a") as audit:
        audit.write("x,y\n2026-01-02T10:00:00,2,extr")
    line, damage = status(tmp_path)
    assert line.endswith("client 0: no round done; 108 bytes sent in all")
    assert "its state is damaged" in damage


@pytest.mark.parametrize("kind", ["empty", "missing", "file"])
def test_another_folder_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "file":
        (tmp_path / "x").touch()
    with pytest.raises(UserError, match="state"):
        list(status(tmp_path if kind == "empty" else tmp_path / "x"))


def test_the_command_reads_a_run_a_site_file_and_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    settings = {"rounds": 3, "partition.clients": 3, "partition.examples": 10, "training.epochs": 1}
    fedmate.run(method="fedavg", set=settings, out=run)
    # A record of a federation in which client 1 was away twice, and client 2 never answered.
    head, *rows = (run / "rounds.csv").read_text().splitlines()
    cells = [row.split(",") for row in rows]
    for row in cells:
        row[2] = "0" if row[1] == "2" or (row[1], row[0]) in {("1", "2"), ("1", "3")} else "1"
    (run / "rounds.csv").write_text("\n".join([head, *map(",".join, cells)]) + "\n")
    os.utime(run / "checkpoint" / "checkpoint.json", (86400.0, 86400.0))

    def lines(*folder: Path) -> list[str]:
        return CliRunner().invoke(deploy, ["status", *map(str, folder)]).output.splitlines()

    assert lines(run) == [
        f"{run}: round 3 of 3 done, 1970-01-02T00:00:00Z, finished",
        "  client 0: last answered in round 3",
        "  client 1: last answered in round 1; left out 2 of 3 times",
        "  client 2: has not answered; left out 3 of 3 times",
    ]
    taken_part(tmp_path / "state", FIRST, 5, 2)
    (tmp_path / "site.toml").write_text('[data]\nloader = "npz"\npath = "x.npz"\n')
    monkeypatch.setenv("FEDMATE_STATE", str(tmp_path / "state"))
    assert len(lines()) == 1
    assert lines() == lines(tmp_path / "state") == lines(tmp_path / "site.toml")
