"""A site's private state: repeated messages, servers that went back, damage, and the log of what left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from fedmate.core import Tree
from fedmate.core.tree import pack
from fedmate.errors import UserError
from fedmate.flower.client import ClientState
from fedmate.flower.messages import PublicError

EXPERIMENT = "0123456789abcdef" * 4


def state(value: float) -> Tree:
    return {"classifier": {"weight": torch.full((2, 3), value)}, "empty": {}, "count": torch.tensor(3)}


@pytest.fixture
def store(tmp_path: Path) -> ClientState:
    return ClientState(tmp_path, EXPERIMENT, 4)


def test_a_round_starts_from_the_state_after_the_last_and_again_where_it_did_before(
    store: ClientState, tmp_path: Path
) -> None:
    assert_close(store.begin(0, state(0)), state(0))
    store.save(3, state(3), state(4))
    again = ClientState(tmp_path, EXPERIMENT, 4)
    for later in (4, 7):
        assert_close(again.begin(later, state(0)), state(4))
    # A message that comes again gets the same answer.
    for _ in range(2):
        found = store.begin(3, state(0))
        assert_close(found, state(3))
        store.save(3, found, state(4))
    with pytest.raises(PublicError, match="client 4 is asked for round 3, but has done round 4"):
        store.begin(2, state(0))


def test_experiments_and_clients_do_not_meet(store: ClientState, tmp_path: Path) -> None:
    store.save(0, state(0), state(1))
    assert_close(ClientState(tmp_path, EXPERIMENT, 5).begin(1, state(0)), state(0))
    # Two experiments whose tokens begin alike share a folder, but not a state.
    with pytest.raises(UserError, match="that of another client"):
        ClientState(tmp_path, EXPERIMENT[:-1] + "0", 4).begin(1, state(0))
    with pytest.raises(ValueError, match="is no token"):
        ClientState(tmp_path, "../../secret", 0)


def test_a_damaged_state_is_refused_and_left_alone(store: ClientState) -> None:
    store.save(0, state(0), state(1))
    path = store.folder / "state.safetensors"
    undone = pack({"before": state(0)}, {"experiment": EXPERIMENT, "partition": 4, "round": 0})
    for damaged in (path.read_bytes()[:-1], b"", undone):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="cannot be used"):
            store.begin(1, state(0))
        assert path.read_bytes() == damaged


def test_the_log_has_what_left_and_when(store: ClientState) -> None:
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
