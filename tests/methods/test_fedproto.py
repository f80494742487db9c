"""FedProto: two rounds by hand, prototypes alone cross, and the nearest prototype as a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.small import (
    CLIENTS,
    Array,
    Labels,
    Params,
    as_clients,
    as_tree,
    descend,
    linear_setup,
    normed,
    run,
    slopes,
)
from torch.testing import assert_close

from fedmate.core import make_key, normal, uniform
from fedmate.methods.fedproto import FedProto

WEIGHT = 0.7
BEGIN: Params = {"w": np.array([[0.8], [-0.5]]), "v": np.array([[0.5, 0.1], [-0.3, 0.4]])}
SAMPLES = (
    (np.array([[1.5], [0.2], [-0.4]]), np.array([0, 0, 1])),
    (np.array([[-0.7], [2.0], [0.4]]), np.array([1, 0, 1])),
)


def train_by_hand(p: Params, x: Array, y: Labels, targets: Array | None) -> Params:
    """The mean over samples and both features of (z - P_y)^2 has the slope (z - P_y) / n in z."""

    def slope(p: Params) -> Params:
        found = slopes(p, x, y)
        if targets is not None:
            found["w"] = found["w"] + WEIGHT * (x @ p["w"].T - targets[y]).T @ x / len(y)
        return found

    return descend(p, slope)


@pytest.mark.parametrize(
    ("weighting", "shares"), [("size", [[2 / 3, 1 / 3], [1 / 3, 2 / 3]]), ("equal", [[1 / 2, 1 / 2]] * 2)]
)
def test_two_rounds_by_hand(weighting: Any, shares: list[list[float]]) -> None:
    """Prototypes are averaged over clients class by class, by counts 2 : 1 and 1 : 2, or alike."""
    models, targets, own = [BEGIN, BEGIN], None, np.zeros(())
    for _ in range(2):
        models = [train_by_hand(p, *data, targets) for p, data in zip(models, SAMPLES, strict=True)]
        own = np.array(
            [[(x[y == k] @ p["w"].T).mean(0) for k in (0, 1)] for p, (x, y) in zip(models, SAMPLES, strict=True)]
        )
        targets = np.einsum("ki,ikd->kd", np.array(shares), own)

    method = FedProto(setup=linear_setup(BEGIN), prototype_weight=WEIGHT, weighting=weighting)
    backend, results = run(method, as_clients(SAMPLES), [(0, 1)] * 2, evaluate=False)
    for client, p in zip(backend.clients, models, strict=True):
        assert_close(client, {**as_tree(p), "buffers": {}}, rtol=0, atol=1e-12)
    assert_close(results[-1].server["prototypes"], torch.from_numpy(targets), rtol=0, atol=1e-12)
    assert_close(results[-1].diagnostics["clients"]["prototypes"], torch.from_numpy(own), rtol=0, atol=1e-12)


def test_the_nearest_known_prototype_wins() -> None:
    """Class 2 has no prototype: it is never chosen, near as zero may be."""
    method = FedProto(setup=normed(classes=4))
    model = method.setup.model
    client = method.init_client(model.init_params(), make_key(0))
    prototypes, known = 2 * uniform(make_key(1), (4, 16), torch.float64) - 1, torch.arange(4) != 2
    prototypes[2] = 0.0
    view = method.extra_views(client, {"prototypes": prototypes, "known": known}, CLIENTS[0], make_key(0))
    x = 3 * normal(make_key(2), (200, 1, 8), torch.float64)
    distances = torch.cdist(model.features(client, x)[0], prototypes)
    distances[:, 2] = torch.inf
    chosen = model.logits(view["nearest_prototype"], x).argmax(-1)
    assert torch.equal(chosen, distances.argmin(-1))
    assert set(chosen.tolist()) == {0, 1, 3}
