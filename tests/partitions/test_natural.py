"""Natural takes clients as the data set has them."""

from __future__ import annotations

from tomllib import loads

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.partitions.hands import balanced, check_hands, class_counts, deck_of, refusal, split

from fedmate.errors import UserError
from fedmate.experiment.config import Layer, parse_set, resolve
from fedmate.partitions.natural import Natural

OWNERS = np.array([2, 0, 2, 2, 5, 0, 2, 5, 2, 2], dtype=np.int64)
"""Client 2 has six samples, 0 and 5 have two; 1, 3 and 4 have none."""

LABELS = balanced(10)


def test_everybody_holds_their_own_in_the_order_of_the_data_set() -> None:
    hands = split(Natural(), LABELS, clients=OWNERS)
    assert [hand.tolist() for hand in hands] == [[1, 5], [0, 2, 3, 6, 8, 9], [4, 7]]


def test_some_are_chosen_at_random() -> None:
    owners = np.arange(400, dtype=np.int64) // 4
    labels = balanced(400)
    first, other = (split(Natural(clients=30), labels, seed, clients=owners) for seed in (0, 1))
    for hands in (first, other):
        chosen = [owners[hand[0]] for hand in hands]
        assert chosen == sorted({*chosen})
        assert len(chosen) == 30
        assert all((owners[hand] == one).all() and len(hand) == 4 for hand, one in zip(hands, chosen, strict=True))
        assert chosen[0] < 25
        assert chosen[-1] >= 75
    assert [hand.tolist() for hand in first] != [hand.tolist() for hand in other]


def test_small_clients_are_left_out() -> None:
    assert [hand.tolist() for hand in split(Natural(minimum=3), LABELS, clients=OWNERS)] == [[0, 2, 3, 6, 8, 9]]
    assert len(split(Natural(minimum=2), LABELS, clients=OWNERS)) == 3
    # Whom `minimum` leaves out is not chosen either.
    for seed in range(5):
        assert len(split(Natural(minimum=3, clients=1), LABELS, seed, clients=OWNERS)[0]) == 6


def test_a_cap_cuts_at_random() -> None:
    owners, labels = np.zeros(1000, dtype=np.int64), np.repeat(np.arange(10, dtype=np.int64), 100)
    first, other = (split(Natural(examples=200), labels, seed, clients=owners)[0] for seed in (0, 1))
    assert (len(first), len(other)) == (200, 200)
    assert first.tolist() != other.tolist()
    assert class_counts([first], labels).min() >= 5
    assert [len(hand) for hand in split(Natural(examples=2), LABELS, clients=OWNERS)] == [2, 2, 2]


@settings(max_examples=60)
@given(
    owners=st.lists(st.integers(0, 12) | st.just(10**12), min_size=1, max_size=80),
    minimum=st.integers(1, 6),
    examples=st.none() | st.integers(1, 5),
    data=st.data(),
)
def test_whoever_has_enough_takes_part(
    owners: list[int], minimum: int, examples: int | None, data: st.DataObject
) -> None:
    sizes = [owners.count(one) for one in sorted({*owners}) if owners.count(one) >= minimum]
    clients = data.draw(st.none() | st.integers(1, len(sizes) + 1))
    deck = deck_of(balanced(len(owners)), clients=np.array(owners, dtype=np.int64))
    partition = Natural(clients=clients, minimum=minimum, examples=examples)
    sentence = refusal(partition, deck)
    assert (sentence is not None) == (not sizes or (clients or 0) > len(sizes))
    if sentence is None:
        hands = partition.split(deck)
        check_hands(partition, hands, deck, disjoint=True)
        assert len(hands) == (clients or len(sizes))
        assert all(len({owners[row] for row in hand}) == 1 for hand in hands)
        if clients is None:
            assert [len(hand) for hand in hands] == [min(size, examples or size) for size in sizes]


def test_a_data_set_without_clients() -> None:
    assert refusal(Natural(), deck_of(LABELS)) == (
        "`partition.name` is `natural`, but the data set does not tell whose each sample is; use another partition, or "
        "the data set `npz` with a file that has an array `train_client`."
    )


@pytest.mark.parametrize(("minimum", "found"), [(1, "3 clients"), (3, "1 clients with 3 samples or more")])
def test_more_clients_than_there_are(minimum: int, found: str) -> None:
    assert refusal(Natural(clients=4, minimum=minimum), deck_of(LABELS, clients=OWNERS)) == (
        f"`partition.clients` is 4, but the data set has {found}; use at most that many."
    )


def test_nobody_has_enough() -> None:
    assert refusal(Natural(minimum=7), deck_of(LABELS, clients=OWNERS)) == (
        "`partition.minimum` is 7, but no client has more than 6 samples; set it to at most that."
    )


# -------------------- as a section of an experiment


def test_all_take_part_unless_a_number_is_given() -> None:
    assert resolve([parse_set(["partition.name=natural"])]).partition.options["clients"] is None
    said = Layer("file", {"partition": {"name": "share", "clients": 7, "share": 30}})
    options = resolve([said, parse_set(["partition.name=natural"])]).partition.options
    assert options["clients"] == 7
    assert "share" not in options


def test_without_a_number_the_experiment_survives_its_file() -> None:
    experiment = resolve([parse_set(["partition.name=natural", "partition.minimum=3"])])
    written = experiment.to_toml()
    assert loads(written)["partition"]["clients"] == "none"
    assert resolve([Layer("file", loads(written))]) == experiment


@pytest.mark.parametrize("assignment", ["partition.clients=0", "partition.minimum=0"])
def test_limits(assignment: str) -> None:
    with pytest.raises(UserError, match="at least 1"):
        resolve([parse_set(["partition.name=natural", assignment])])
