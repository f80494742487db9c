"""FedPAC: rounds by hand, its reduction to FedRep, and whose classifier goes where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.components.test_classifier_collaboration import by_supports
from tests.methods.small import (
    Array,
    Labels,
    Params,
    as_clients,
    descend,
    linear_setup,
    mean,
    normed,
    run,
    sequences,
    slopes,
)
from torch.testing import assert_close

from fedmate.components.classifier_collaboration import VARIANCE_FLOOR
from fedmate.core import tree_map
from fedmate.methods import fedpac
from fedmate.methods.fedpac import FedPAC
from fedmate.methods.fedrep import FedRep

WEIGHT, THRESHOLD, K = 1.5, 0.05, 3
BEGIN: Params = {"w": np.array([[0.8], [-0.4]]), "v": np.array([[0.5, 0.2], [-0.3, 0.4], [0.1, -0.6]])}
SAMPLES = [
    (np.array(x)[:, None], np.array(y))
    for x, y in (([1.0], [0]), ([1.3, 0.9, 1.1], [0, 1, 1]), ([0.8, -0.5, 1.2], [2, 0, 2]), ([1.2, 1.0], [1, 0]))
]
COHORTS = ((0, 1, 3), (3, 1, 2))


def means(z: Array, y: Labels) -> Array:
    return np.stack([z[y == k].mean(0) if (y == k).any() else np.zeros(2) for k in range(K)])


def train_by_hand(p: Params, x: Array, y: Labels, prototypes: Array, known: Labels) -> Params:
    """Return what a client sends: two steps on v, two on w towards prototypes, own ones for classes not known."""
    z, counts = x @ p["w"].T, np.bincount(y, minlength=K)
    own, share = means(z, y), counts / len(y)
    square = sum(share[k] * (z[y == k] ** 2).sum(1).mean() for k in range(K) if counts[k])
    variance = (square - (share[:, None] ** 2 * own**2).sum()) / len(y)
    centres = np.where(known[:, None], prototypes, own)[y]

    def slope(p: Params) -> Params:
        found = slopes(p, x, y)
        if known.any():
            # The distance is averaged over samples and over the width, 2, which cancels the 2 of the square.
            found["w"] = found["w"] + WEIGHT * (x @ p["w"].T - centres).T @ x / len(y)
        return found

    p = descend(descend(p, slope, "v", rate=0.4), slope, "w")
    statistics = {"shares": share[:, None] * own, "variance": np.array(variance), "counts": counts}
    return {"w": p["w"], "v": p["v"], "prototypes": means(x @ p["w"].T, y), **statistics}


def weights_by_hand(sent: list[Params]) -> Array:
    """Return the weights of each, from differences of statistics and by trying every set of clients."""
    rows = []
    for mine in sent:
        differences = np.stack([(mine["shares"] - other["shares"]).ravel() for other in sent])
        variances, risk = np.array([other["variance"] for other in sent]), differences @ differences.T
        floor = VARIANCE_FLOOR * (risk.diagonal() + variances).mean()
        weights = by_supports(risk + np.diag(np.maximum(variances, floor)))
        weights[weights < THRESHOLD] = 0
        rows.append(weights / weights.sum())
    return np.stack(rows)


def rounds_by_hand() -> list[tuple[Any, ...]]:
    """Return after each round: w, the average v, everybody's v, prototypes, which are known, all weights."""
    common, v = BEGIN, np.stack([BEGIN["v"]] * 4)
    prototypes, known, states = np.zeros((K, 2)), np.zeros(K, dtype=bool), list[tuple[Any, ...]]()
    for cohort in COHORTS:
        sent = [train_by_hand({**common, "v": v[i]}, *SAMPLES[i], prototypes, known) for i in cohort]
        sizes = np.array([len(SAMPLES[i][1]) for i in cohort])
        common = mean([{name: p[name] for name in "wv"} for p in sent], [*(sizes / sizes.sum())])
        weights, everyone, v = weights_by_hand(sent), np.zeros((4, 4)), v.copy()
        everyone[np.ix_(cohort, cohort)] = weights
        v[list(cohort)] = np.tensordot(weights, np.stack([p["v"] for p in sent]), 1)
        held = np.sum([p["counts"] for p in sent], 0)
        total = np.sum([p["counts"][:, None] * p["prototypes"] for p in sent], 0)
        prototypes = np.where((held > 0)[:, None], total / np.maximum(held, 1)[:, None], prototypes)
        known = known | (held > 0)
        states.append((common["w"], common["v"], v, prototypes, known, everyone))
    return states


def test_two_rounds_by_hand() -> None:
    """Client 0 has one sample, and so no variance; it keeps the classifier of the first round.

    Client 2 alone holds class 2, of which there is no prototype when its turn comes. The second cohort is listed in
    another order.
    """
    method = FedPAC(
        setup=linear_setup(BEGIN),
        classifier_epochs=2,
        classifier_learning_rate=0.4,
        alignment_weight=WEIGHT,
        threshold=THRESHOLD,
    )
    _, results = run(method, as_clients(SAMPLES), COHORTS, evaluate=False)
    for result, expected in zip(results, rounds_by_hand(), strict=True):
        server = result.server
        found = (
            server["extractor"]["0.weight"],
            server["classifier"]["weight"],
            server["classifiers"]["weight"],
            server["prototypes"],
            server["known"],
            server["diagnostics"]["weights"],
        )
        assert_close(found, tuple(map(torch.from_numpy, expected)), rtol=0, atol=1e-9)
        for i, own in enumerate(expected[2]):
            sent = method.download(server, torch.tensor(i))["classifier"]["weight"]
            assert_close(sent, torch.from_numpy(own), rtol=0, atol=1e-9)


def test_with_classifiers_of_their_own_and_no_alignment_it_is_fedrep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpac, "combining_weights", lambda shares, *_: torch.eye(len(shares), dtype=torch.float64))
    clients = [sequences(i, labels) for i, labels in enumerate(([0, 1, 2, 0, 1], [1, 1], [0, 2, 2, 1], [2]))]
    _, ours = run(FedPAC(setup=normed(classes=4), alignment_weight=0.0), clients, [(0, 1, 2, 3)] * 3)
    theirs, expected = run(FedRep(setup=normed(classes=4)), clients, [(0, 1, 2, 3)] * 3)
    for mine, other in zip(ours, expected, strict=True):
        assert_close(mine.server["extractor"], other.server["extractor"], rtol=0, atol=1e-12)
        assert_close(mine.views["pre"], other.views["pre"], rtol=0, atol=0, equal_nan=True)
    for i, client in enumerate(theirs.clients):
        own = tree_map(lambda leaf, i=i: leaf[i], ours[-1].server["classifiers"])
        assert_close(own, client["classifier"], rtol=0, atol=1e-12)
