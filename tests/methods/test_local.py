"""Local: two rounds by hand, and no client learns of another."""

from __future__ import annotations

from functools import partial

from tests.methods.small import DATA, START, as_clients, as_tree, descend, linear_setup, run, slopes
from torch.testing import assert_close

from fedmate.methods.local import Local


def test_two_rounds_by_hand() -> None:
    """Each round starts with velocity 0."""
    backend, results = run(Local(setup=linear_setup()), as_clients(), [(0, 1)] * 2, evaluate=False)
    assert [result.server for result in results] == [{}, {}]
    for client, (x, y) in zip(backend.clients, DATA, strict=True):
        slope = partial(slopes, x=x, y=y)
        expected = as_tree(descend(descend(START, slope), slope))
        assert_close(client, {**expected, "buffers": {}}, rtol=0, atol=1e-12)
