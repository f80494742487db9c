"""Averaging by size: the weights, and who is left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmate.core import mix_by_size


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.floats(-100, 100), st.integers(1, 10**6), st.booleans()),
        min_size=1,
        max_size=6,
    ).filter(lambda clients: any(valid for _, _, valid in clients))
)
def test_it_is_the_weighted_average_of_numpy(clients: list[tuple[float, int, bool]]) -> None:
    """Whoever is not valid may send anything."""
    values, sizes, valid = zip(*clients, strict=True)
    sent = torch.where(torch.tensor(valid), torch.tensor(values, dtype=torch.float64), torch.nan)
    message = {
        "extractor": {"w": sent[:, None]},
        "num_samples": torch.where(torch.tensor(valid), torch.tensor(sizes), -(2**62)),
    }
    server = {"extractor": {"w": torch.zeros(1, dtype=torch.float64)}}
    answer = mix_by_size(server, message, torch.tensor(valid))["extractor"]["w"].item()
    expected = np.average(np.array(values)[list(valid)], weights=np.array(sizes)[list(valid)])
    assert answer == pytest.approx(float(expected), rel=1e-12, abs=1e-11)
