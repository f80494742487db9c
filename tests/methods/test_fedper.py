"""FedPer: two rounds by hand, and what personal layers keep with the client."""

from __future__ import annotations

from functools import partial

import torch
from tests.methods.small import (
    DATA,
    START,
    TRAINING,
    as_clients,
    as_tree,
    descend,
    linear_setup,
    mean,
    run,
    slopes,
)
from torch import nn
from torch.testing import assert_close

from fedmate.core import Model, Setup
from fedmate.methods.fedper import FedPer


def test_two_rounds_by_hand() -> None:
    """The server averages w, 1 : 3; each client keeps its own v."""
    sent = [START, START]
    for _ in range(2):
        w = mean(sent)["w"]
        sent = [descend({**p, "w": w}, partial(slopes, x=x, y=y)) for p, (x, y) in zip(sent, DATA, strict=True)]
    backend, results = run(FedPer(setup=linear_setup()), as_clients(), [(0, 1)] * 2, evaluate=False)
    assert_close(results[-1].server, {**as_tree({"w": mean(sent)["w"]}), "buffers": {}}, rtol=0, atol=1e-12)
    for client, p in zip(backend.clients, sent, strict=True):
        assert_close(client["classifier"], as_tree(p)["classifier"], rtol=0, atol=1e-12)


def test_two_personal_layers_keep_the_last_layer_of_the_extractor_too() -> None:
    layers = [nn.Flatten(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)]
    setup = Setup(Model(nn.Sequential(*layers).double(), classifier="5"), 3, 3, TRAINING)
    backend, results = run(FedPer(setup=setup, personal_layers=2))
    for result in results:
        assert set(result.server["extractor"]) == {"1.weight", "1.bias"}
        assert [report.up["extractor"] for report in result.reports] == [8 * (4 * 8 + 4)] * 2
    own = [client["extractor"] for client in backend.clients]
    assert [set(tensors) for tensors in own] == [{"3.weight", "3.bias"}] * 3
    assert not torch.equal(own[0]["3.weight"], own[1]["3.weight"])
