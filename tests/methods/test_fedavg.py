"""FedAvg: two rounds by hand."""

from __future__ import annotations

from functools import partial

from tests.methods.small import DATA, START, as_clients, as_tree, descend, linear_setup, mean, run, slopes
from torch.testing import assert_close

from fedmate.methods.fedavg import FedAvg


def test_two_rounds_by_hand() -> None:
    """Clients with 1 and 3 samples train from the same model; the server takes 1/4 and 3/4 of what they send."""
    expected = START
    _, results = run(FedAvg(setup=linear_setup()), as_clients(), [(0, 1)] * 2, evaluate=False)
    for result in results:
        expected = mean([descend(expected, partial(slopes, x=x, y=y)) for x, y in DATA])
        assert_close(result.server, {**as_tree(expected), "buffers": {}}, rtol=0, atol=1e-12)
