"""A site's private state: repeated messages, servers that went back, damage, and the log of what left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from fedmate.core import Tree
from fedmate.core.serialise import pack
from fedmate.errors import UserError
from fedmate.flower.client_state import AheadError, ClientState
from fedmate.storage import BusyError

EXPERIMENT = "0123456789abcdef" * 4


def state(value: float) -> Tree:
    return {"classifier": {"weight": torch.full((2, 3), value)}, "empty": {}, "count": torch.tensor(3)}


@pytest.fixture
def store(tmp_path: Path) -> ClientState:
    return ClientState(tmp_path, EXPERIMENT, 4)


def test_a_client_begins_with_its_initial_state(store: ClientState) -> None:
    assert_close(store.begin(0, state(0)), state(0))


def test_a_later_round_goes_on_from_the_state_after_the_last(store: ClientState, tmp_path: Path) -> None:
    store.save(0, state(0), state(1))
    again = ClientState(tmp_path, EXPERIMENT, 4)
    for later in (1, 7):
        found = again.begin(later, state(0))
        assert_close(found, state(1))
    assert found["empty"] == {}


def test_a_message_that_comes_again_starts_where_it_did_before(store: ClientState) -> None:
    store.save(3, state(3), state(4))
    for _ in range(2):
        found = store.begin(3, state(0))
        assert_close(found, state(3))
        store.save(3, found, state(4))
    assert_close(store.begin(4, state(0)), state(4))


def test_a_server_that_went_back_further_is_told(store: ClientState) -> None:
    store.save(5, state(5), state(6))
    with pytest.raises(AheadError, match="client 4 is asked for round 5, but has done round 6"):
        store.begin(4, state(0))


def test_experiments_and_clients_do_not_meet(store: ClientState, tmp_path: Path) -> None:
    store.save(0, state(0), state(1))
    assert_close(ClientState(tmp_path, EXPERIMENT, 5).begin(1, state(0)), state(0))
    assert_close(ClientState(tmp_path, "f" * 64, 4).begin(1, state(0)), state(0))
    # Two experiments whose digests begin alike share a folder, but not a state.
    with pytest.raises(UserError, match="that of another client"):
        ClientState(tmp_path, EXPERIMENT[:-1] + "0", 4).begin(1, state(0))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
        lambda data: b"",
        lambda data: pack({"before": state(0)}, {"experiment": EXPERIMENT, "partition": 4, "round": 0}),
        lambda data: pack({"before": state(0), "after": state(0)}, {"experiment": EXPERIMENT, "partition": 4}),
    ],
)
def test_a_damaged_state_is_refused_and_left_alone(store: ClientState, damage: object) -> None:
    store.save(0, state(0), state(1))
    path = store.folder / "state.safetensors"
    assert callable(damage)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(UserError, match="cannot be used"):
        store.begin(1, state(0))
    assert path.read_bytes() == damaged


def test_another_network_is_refused(store: ClientState) -> None:
    store.save(0, state(0), state(1))
    with pytest.raises(UserError, match="classifier/weight"):
        store.begin(1, {**state(0), "classifier": {"weight": torch.zeros(4, 4)}})


def test_an_attempt_that_fails_leaves_what_was_there(store: ClientState, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(0, state(0), state(1))
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        store.save(1, state(1), state(2))
    assert_close(store.begin(1, state(0)), state(1))
    assert sorted(path.name for path in store.folder.iterdir()) == ["state.safetensors"]


def test_one_process_at_a_time(store: ClientState) -> None:
    with store.lock(), pytest.raises(BusyError):
        store.lock()
    with store.lock():
        pass


def test_the_log_says_what_left_and_when(store: ClientState) -> None:
    store.log(0, {"extractor": 425600, "classifier": 5160})
    path = store.folder / "audit.csv"
    # A line that a kill has torn spoils no other.
    path.write_bytes(path.read_bytes()[:-4])
    store.log(1, {"classifier": 5161})
    rows = [line.split(",") for line in path.read_text().splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row[0]) for row in rows[1:])
    assert [row[1:] for row in rows] == [
        ["round", "part", "bytes"],
        ["1", "extractor", "425600"],
        ["1", "classifier", "5"],
        ["2", "classifier", "5161"],
    ]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        ClientState(tmp_path / "file", EXPERIMENT, 0)
