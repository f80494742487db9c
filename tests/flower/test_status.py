"""How far a site and a server have come, read from their folders and from nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

import fedmate
from fedmate import cli
from fedmate.errors import UserError
from fedmate.flower.client_state import ClientState
from fedmate.flower.status import ClientStatus, SiteStatus, is_run, server_status, site_status

FIRST, SECOND = "ab" * 16, "cd" * 16


def taken_part(folder: Path, experiment: str, partition: int, rounds: int) -> Path:
    store, state = ClientState(folder, experiment, partition), {"w": torch.zeros(3)}
    for t in range(rounds):
        store.keep(t, state, state)
        store.log(f"2026-01-0{t + 1}T10:00:00", t, {"extractor": 100, "num_samples": 8})
    return store.folder


def everything(folder: Path) -> dict[str, tuple[bytes | None, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def test_a_site_tells_each_client_it_has_been_the_latest_last(tmp_path: Path) -> None:
    taken_part(tmp_path, SECOND, 1, 3)
    taken_part(tmp_path, FIRST, 1, 2)
    with ClientState(tmp_path, FIRST, 4).claim():
        pass
    before = everything(tmp_path)
    found = site_status(tmp_path)
    assert sorted(found) == [
        SiteStatus(FIRST[:16], 1, 2, "2026-01-02T10:00:00", 216),
        SiteStatus(FIRST[:16], 4, 0, "", 0),
        SiteStatus(SECOND[:16], 1, 3, "2026-01-03T10:00:00", 324),
    ]
    assert found.index(sorted(found)[2]) < found.index(sorted(found)[0])
    assert everything(tmp_path) == before


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    place = taken_part(tmp_path, FIRST, 0, 1)
    with (place / "audit.csv").open("a") as audit:
        audit.write("2026-01-02T10:00:00,2,extr")
    assert site_status(tmp_path)[0].sent == 108


def test_a_site_at_work_is_not_disturbed(tmp_path: Path) -> None:
    taken_part(tmp_path, FIRST, 0, 1)
    with ClientState(tmp_path, FIRST, 0).claim():
        assert site_status(tmp_path)[0].round == 1


def test_what_is_damaged_is_said(tmp_path: Path) -> None:
    place = taken_part(tmp_path, FIRST, 0, 1)
    (place / "state.safetensors").write_bytes(b"torn")
    found = site_status(tmp_path)[0]
    assert (found.round, found.sent) == (0, 108)
    assert "its state is damaged" in found.damage
    with (place / "audit.csv").open("a") as audit:
        # A line that is none counts for nothing, and hides nothing.
        audit.write("x,y\n")
    assert site_status(tmp_path)[0].sent == 108


@pytest.mark.parametrize("kind", ["empty", "missing", "file"])
def test_a_folder_of_nobody_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "file":
        (tmp_path / "x").touch()
    with pytest.raises(UserError, match="state"):
        site_status(tmp_path if kind == "empty" else tmp_path / "x")


# -------------------- a server


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("status") / "run"
    settings = {"rounds": 3, "partition.clients": 3, "partition.examples": 10, "training.epochs": 1}
    fedmate.run(method="fedavg", set=settings, out=folder)
    # A record of a federation in which client 1 was away twice, and client 2 never answered.
    path = folder / "rounds.csv"
    head, *rows = path.read_text().splitlines()
    assert head.startswith("round,client,valid,")
    cells = [row.split(",") for row in rows]
    for row in cells:
        row[2] = "0" if row[1] == "2" or (row[1], row[0]) in {("1", "2"), ("1", "3")} else "1"
    path.write_text("\n".join([head, *map(",".join, cells)]) + "\n")
    os.utime(folder / "checkpoint" / "checkpoint.json", (86400.0, 86400.0))
    return folder


def test_a_server_tells_who_answered(run: Path) -> None:
    before = everything(run)
    assert is_run(run)
    found = server_status(run)
    assert found.when == "1970-01-02T00:00:00Z"
    assert (found.round, found.rounds, found.is_finished) == (3, 3, True)
    assert found.clients == [ClientStatus(0, 3, 3, 3), ClientStatus(1, 3, 1, 1), ClientStatus(2, 3, 0, 0)]
    assert everything(run) == before


def test_the_command_tells_both(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(*folder: Path) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["fedmate", "deploy", "status", *map(str, folder)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert caught.value.code == 0
        return capsys.readouterr().out.splitlines()

    head, *clients = lines(run)
    assert head == f"{run}: round 3 of 3 done, 1970-01-02T00:00:00Z, finished"
    assert clients == [
        "  client 0: last answered in round 3",
        "  client 1: last answered in round 1; left out 2 of 3 times",
        "  client 2: has not answered; left out 3 of 3 times",
    ]
    taken_part(tmp_path / "state", FIRST, 5, 2)
    told = ["experiment abababababababab, client 5: round 2 done, 2026-01-02T10:00:00; 216 bytes sent in all"]
    assert lines(tmp_path / "state") == told
    (tmp_path / "site.toml").write_text('[data]\nloader = "npz"\npath = "x.npz"\n')
    assert lines(tmp_path / "site.toml") == told
    monkeypatch.setenv("FEDMATE_STATE", str(tmp_path / "state"))
    assert lines() == told
