"""Classifier collaboration: combining weights are optimal, whoever takes part."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedmate.components.classifier_collaboration import VARIANCE_FLOOR, combining_weights
from fedmate.core import make_key, normal, uniform

Numbers = npt.NDArray[np.float64]

CLASSES, WIDTH = 3, 4


def random(seed: int, *shape: int) -> Tensor:
    return normal(make_key(seed), shape, torch.float64)


def everybody(clients: int) -> Tensor:
    return torch.ones(clients, dtype=torch.bool)


def risk(shares: Tensor, variances: Tensor, i: int) -> Tensor:
    """Return diag(V) + D of client `i`, V raised to its floor, from differences: nothing is expanded or centred."""
    differences = (shares[i] - shares).flatten(1).double()
    bias, variances = differences @ differences.T, variances.double()
    scale = float((bias.diagonal() + variances).mean()) or 1.0
    return bias + torch.diag(variances.clamp(min=VARIANCE_FLOOR * scale))


def violation(matrix: Tensor, weights: Tensor) -> float:
    """Return by how much optimality is missed, relative to the risk.

    With g = Q alpha and lambda = alpha^T Q alpha: every g_j >= lambda, and g_j = lambda wherever alpha_j > 0.
    """
    slope = matrix @ weights
    level = weights @ slope
    missed = torch.maximum(level - slope, weights * (slope - level).abs())
    return float(missed.max() / level)


def check_weights(weights: Tensor) -> None:
    assert weights.dtype == torch.float64
    assert float(weights.min()) >= 0
    assert_close(weights.sum(1), torch.ones_like(weights[0]), rtol=0, atol=1e-12)


# -------------------- weights are optimal


def hard_case(clients: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Clients between each other in few dimensions, some of them alike; next to no variance, or none."""
    shares = random(seed, clients, 1, width)
    shares[: clients // 4] = shares[clients // 4 : 2 * (clients // 4)]
    shares[-clients // 4 :] = shares[0] + 1e-4 * random(seed + 1, clients // 4 + bool(clients % 4), 1, width)
    variances = 10 ** (-8 * uniform(make_key(seed), (clients,), torch.float64))
    variances[seed % 3 :: 3] = 1e-8
    variances[seed % 5 :: 5] = 0
    return shares, variances


HARD = [(60, 1), (60, 2), (60, 3), (60, 20), (33, 1), (20, 2), (20, 100), (7, 1), (2, 1)]


@pytest.mark.parametrize(("clients", "width"), HARD)
def test_hard_problems_are_solved(clients: int, width: int) -> None:
    for seed in (10, 11):
        shares, variances = hard_case(clients, width, seed)
        weights = combining_weights(shares, variances, everybody(clients))
        check_weights(weights)
        for i in range(clients):
            assert violation(risk(shares, variances, i), weights[i]) < 1e-6


def by_supports(matrix: Numbers) -> Numbers:
    """Return the optimum by trying every set of clients: on the right one, Q z = 1 and alpha = z / sum z."""
    size, best, lowest = len(matrix), np.zeros(len(matrix)), np.inf
    for chosen in itertools.product([False, True], repeat=size):
        on = np.array(chosen)
        if not on.any():
            continue
        z = np.linalg.solve(matrix[np.ix_(on, on)], np.ones(on.sum()))
        if (z > 0).all() and 1 / z.sum() < lowest:
            lowest, best = 1 / z.sum(), np.zeros(size)
            best[on] = z / z.sum()
    return best


@pytest.mark.parametrize("clients", [1, 2, 3, 5, 8])
def test_weights_are_those_found_by_trying_everything(clients: int) -> None:
    for seed in range(3):
        shares, variances = random(20 + seed, clients, CLASSES, WIDTH), 2 * uniform(make_key(seed), (clients,)).double()
        weights = combining_weights(shares, variances, everybody(clients))
        for i in range(clients):
            expected = by_supports(risk(shares, variances, i).numpy())
            assert_close(weights[i], torch.from_numpy(expected), rtol=0, atol=1e-9)
