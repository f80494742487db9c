"""Averaging by size: the weights, and who is left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmate.core import Tree, mix_by_size

SERVER: Tree = {
    "extractor": {"w": torch.tensor([7.0, 7.0])},
    "classifier": {"v": torch.tensor([9.0])},
    "round": torch.tensor(4),
}


def uploads(values: list[list[float]], sizes: list[int]) -> Tree:
    return {"extractor": {"w": torch.tensor(values)}, "num_samples": torch.tensor(sizes)}


def mixed(values: list[list[float]], sizes: list[int], valid: list[bool]) -> list[float]:
    answer: list[float] = mix_by_size(SERVER, uploads(values, sizes), torch.tensor(valid))["extractor"]["w"].tolist()
    return answer


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
def test_who_is_not_valid_does_not_count_whatever_they_send(junk: float) -> None:
    assert mixed([[0.0, 4.0], [junk, junk], [1.0, 8.0]], [1, -(2**62), 3], [True, False, True]) == [0.75, 7.0]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.floats(-100, 100), st.integers(1, 10**6), st.booleans()),
        min_size=1,
        max_size=6,
    ).filter(lambda clients: any(valid for _, _, valid in clients))
)
def test_it_is_the_weighted_average_of_numpy(clients: list[tuple[float, int, bool]]) -> None:
    values, sizes, valid = zip(*clients, strict=True)
    message = {
        "extractor": {"w": torch.tensor(values, dtype=torch.float64)[:, None]},
        "num_samples": torch.tensor(sizes),
    }
    server = {"extractor": {"w": torch.zeros(1, dtype=torch.float64)}}
    answer = mix_by_size(server, message, torch.tensor(valid))["extractor"]["w"].item()
    expected = np.average(np.array(values)[list(valid)], weights=np.array(sizes)[list(valid)])
    assert answer == pytest.approx(float(expected), rel=1e-12, abs=1e-11)
