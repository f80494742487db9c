"""LG-FedAvg: two rounds by hand, and BatchNorm's statistics stay with the extractor."""

from __future__ import annotations

from functools import partial

from tests.methods.small import DATA, START, as_clients, as_tree, descend, linear_setup, mean, run, slopes
from torch.testing import assert_close

from fedmate.methods.lg_fedavg import LGFedAvg


def test_two_rounds_by_hand() -> None:
    """The server averages v, 1 : 3; each client keeps its own w."""
    sent = [START, START]
    for _ in range(2):
        v = mean(sent)["v"]
        sent = [descend({**p, "v": v}, partial(slopes, x=x, y=y)) for p, (x, y) in zip(sent, DATA, strict=True)]
    backend, results = run(LGFedAvg(setup=linear_setup()), as_clients(), [(0, 1)] * 2, evaluate=False)
    assert_close(results[-1].server, as_tree({"v": mean(sent)["v"]}), rtol=0, atol=1e-12)
    for client, p in zip(backend.clients, sent, strict=True):
        assert_close(client, {**as_tree({"w": p["w"]}), "buffers": {}}, rtol=0, atol=1e-12)
