"""Natural takes clients as the data set has them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.partitions.checks import balanced, check_rows, input_of, refusal, split

from fedmate.data.partitions.natural import Natural

OWNERS = np.array([2, 0, 2, 2, 5, 0, 2, 5, 2, 2], dtype=np.int64)
"""Client 2 has six samples, 0 and 5 have two; 1, 3 and 4 have none."""

LABELS = balanced(10)


def test_everybody_holds_their_own_in_the_order_of_the_data_set() -> None:
    client_rows = split(Natural(), LABELS, clients=OWNERS)
    assert [rows.tolist() for rows in client_rows] == [[1, 5], [0, 2, 3, 6, 8, 9], [4, 7]]


@settings(max_examples=60)
@given(
    owners=st.lists(st.integers(0, 12) | st.just(10**12), min_size=1, max_size=80),
    minimum=st.integers(1, 6),
    examples=st.none() | st.integers(1, 5),
    choices=st.data(),
)
def test_whoever_has_enough_takes_part(
    owners: list[int], minimum: int, examples: int | None, choices: st.DataObject
) -> None:
    sizes = [owners.count(one) for one in sorted({*owners}) if owners.count(one) >= minimum]
    clients = choices.draw(st.none() | st.integers(1, len(sizes) + 1))
    data = input_of(balanced(len(owners)), clients=np.array(owners, dtype=np.int64))
    partition = Natural(clients=clients, minimum=minimum, examples=examples)
    sentence = refusal(partition, data)
    assert (sentence is not None) == (not sizes or (clients or 0) > len(sizes))
    if sentence is None:
        client_rows = partition.split(data)
        check_rows(partition, client_rows, data, disjoint=True)
        assert len(client_rows) == (clients or len(sizes))
        assert all(len({owners[row] for row in rows}) == 1 for rows in client_rows)
        if clients is None:
            assert [len(rows) for rows in client_rows] == [min(size, examples or size) for size in sizes]


@pytest.mark.parametrize(("minimum", "found"), [(1, "3 clients"), (3, "1 clients with 3 samples or more")])
def test_more_clients_than_there_are(minimum: int, found: str) -> None:
    assert refusal(Natural(clients=4, minimum=minimum), input_of(LABELS, clients=OWNERS)) == (
        f"`partition.clients` is 4, but the data set has {found}; use at most that many."
    )
