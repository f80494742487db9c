"""MOON: two rounds by hand, features of zeros, and the projection."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.small import (
    Array,
    Labels,
    Params,
    as_clients,
    as_tree,
    descend,
    linear_setup,
    mean,
    run,
    slopes,
)
from torch import Tensor
from torch.testing import assert_close

from fedmate.core import gradient, select, unmapped
from fedmate.methods.moon import MOON, _cosine

MU, TAU = 2.0, 0.4
BEGIN: Params = {"w": np.array([[0.8, -0.2], [0.3, 0.5]]), "v": np.array([[0.5, -0.4], [-0.3, 0.2]])}
SAMPLES = (
    (np.array([[1.5, 0.2]]), np.array([0])),
    (np.array([[-0.7, 0.9], [2.0, 0.1], [0.4, -1.2]]), np.array([1, 0, 1])),
    (np.array([[1.1, 0.0], [0.3, 2.0]]), np.array([1, 0])),
)


def pull(z: Array, other: Array) -> tuple[Array, Array]:
    """Return the cosine of each pair of rows and its slope in z: (o / |o| - cos z / |z|) / |z|."""
    length, unit = np.linalg.norm(z, axis=1, keepdims=True), other / np.linalg.norm(other, axis=1, keepdims=True)
    cosine = (z * unit).sum(1, keepdims=True) / length
    return cosine, (unit - cosine * z / length) / length


def train_by_hand(start: Params, x: Array, y: Labels, previous: Params | None) -> Params:
    """The loss of a sample is log(1 + exp((cos_p - cos_g) / TAU)).

    With q = sigmoid((cos_p - cos_g) / TAU) its slope in z is q / TAU (d cos_p - d cos_g).
    """

    def slope(p: Params) -> Params:
        found, z = slopes(p, x, y), x @ p["w"].T
        if previous is not None:
            (to_global, d_global), (to_previous, d_previous) = pull(z, x @ start["w"].T), pull(z, x @ previous["w"].T)
            q = 1 / (1 + np.exp((to_global - to_previous) / TAU))
            found["w"] = found["w"] + (MU * q / TAU * (d_previous - d_global)).T @ x / len(y)
        return found

    return descend(start, slope)


def test_two_rounds_by_hand() -> None:
    """Sizes 1, 3 and 2; the third client comes in the second round, and has no previous model to be kept away from."""
    first = [train_by_hand(BEGIN, *SAMPLES[i], None) for i in (0, 1)]
    middle = mean(first)
    second = [train_by_hand(middle, *data, known) for data, known in zip(SAMPLES, (*first, None), strict=True)]

    method = MOON(setup=linear_setup(BEGIN), contrastive_weight=MU, temperature=TAU)
    backend, results = run(method, as_clients(SAMPLES), [(0, 1), (0, 1, 2)], evaluate=False)
    for result, expected in zip(results, (middle, mean(second, (1 / 6, 3 / 6, 2 / 6))), strict=True):
        assert_close(select(result.server, ("extractor", "classifier")), as_tree(expected), rtol=0, atol=1e-12)
    for client, own in zip(backend.clients, second, strict=True):
        assert_close(client["previous_model"]["extractor"], as_tree(own)["extractor"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_feature_vector_of_zeros_has_no_direction_and_does_no_harm(mapped: bool) -> None:
    z = torch.stack([torch.zeros(3), torch.tensor([1.0, 2.0, 2.0]), torch.full((3,), 1e-30)])
    other = torch.tensor([[0.0, 3.0, 4.0]]).expand(3, 3)

    def slope(rows: Tensor) -> Tensor:
        found: Tensor = gradient(lambda v: (_cosine(v["z"], other[: len(v["z"])]).sum(), {}), {"z": rows})[0]["z"]
        return found

    assert_close(_cosine(z, other), torch.tensor([0.0, 14 / 15, 0.0]), rtol=0, atol=1e-6)
    if mapped:
        found = torch.func.vmap(slope)(z[:, None])[:, 0]
    else:
        with unmapped():
            found = slope(z)
    assert torch.isfinite(found).all()
    assert found.abs().max() <= 1
