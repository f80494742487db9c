"""FedRoD: two rounds by hand."""

from __future__ import annotations

import numpy as np
import torch
from tests.methods.small import (
    Array,
    Labels,
    Params,
    as_clients,
    as_tree,
    descend,
    errors,
    linear_setup,
    mean,
    run,
)
from torch.testing import assert_close

from fedmate.core import select
from fedmate.methods.fedrod import FedRoD

BEGIN: Params = {"w": np.array([[0.8]]), "v": np.array([[0.5], [-0.3], [0.2]])}
SAMPLES = ((np.array([[-0.7], [2.0], [0.4]]), np.array([0, 1, 0])), (np.array([[1.5]]), np.array([2])))


def train_by_hand(p: Params, x: Array, y: Labels) -> Params:
    """The generic logits have the logarithm of the counts added; the personal ones, v + u, train u alone."""
    with np.errstate(divide="ignore"):
        prior = np.log(np.bincount(y, minlength=3))

    def slope(p: Params) -> Params:
        z = x @ p["w"].T
        e, own = errors(z @ p["v"].T + prior, y) / len(y), errors(z @ (p["v"] + p["u"]).T, y) / len(y)
        return {"w": (e @ p["v"]).T @ x, "v": e.T @ z, "u": own.T @ z}

    return descend(p, slope, ("w", "v", "u"))


def test_two_rounds_by_hand() -> None:
    """Sizes 3 and 1; u starts at 0 and stays with the client; the second client holds one class."""
    sent = [{**BEGIN, "u": np.zeros((3, 1))}] * 2
    for _ in range(2):
        common = {**mean(sent, (0.75, 0.25))}
        sent = [train_by_hand({**common, "u": p["u"]}, *data) for p, data in zip(sent, SAMPLES, strict=True)]
    backend, results = run(FedRoD(setup=linear_setup(BEGIN)), as_clients(SAMPLES), [(0, 1)] * 2, evaluate=False)
    found = select(results[-1].server, ("extractor", "classifier"))
    assert_close(found, as_tree(mean(sent, (0.75, 0.25))), rtol=0, atol=1e-12)
    for client, p in zip(backend.clients, sent, strict=True):
        assert_close(client["personal_classifier"]["weight"], torch.from_numpy(p["u"]), rtol=0, atol=1e-12)
