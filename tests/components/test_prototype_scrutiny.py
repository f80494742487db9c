"""Multi-view prototype scrutiny: the three views are distributions over holders, and the odd one out counts less."""

from __future__ import annotations

import math
from typing import NamedTuple, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from fedmate.components.prototype_scrutiny import Beta, Scrutiny, Similarity, jensen_shannon, scrutinise, verdict_view
from fedmate.core import make_key, normal

BETAS: tuple[Beta, ...] = get_args(Beta)
SIMILARITIES: tuple[Similarity, ...] = get_args(Similarity)
PER_CLIENT = ("size", "closeness", "verdict", "weights")


class Case(NamedTuple):
    """What the server has of a round: prototypes, class counts and logits."""

    prototypes: Tensor
    counts: Tensor
    logits: Tensor

    def scrutinise(self, beta: Beta = "softmax", similarity: Similarity = "cosine") -> Scrutiny:
        return scrutinise(self.prototypes, self.counts, self.logits, beta=beta, similarity=similarity)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One to six clients, one to four classes, features of both signs, logits of every sign and size."""
    clients, classes = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    width, seed = draw(st.integers(1, 5)), draw(st.integers(0, 2**32))
    counts = draw(st.lists(st.integers(0, 9), min_size=clients * classes, max_size=clients * classes))
    scale = draw(st.sampled_from([0.0, 0.1, 3.0, 300.0]))
    shift = draw(st.sampled_from([-500.0, -5.0, 0.0, 5.0]))
    lean = draw(st.sampled_from([0.0, 1.0]))
    return Case(
        lean + normal(make_key(seed), (clients, classes, width), torch.float64),
        torch.tensor(counts).reshape(clients, classes),
        shift + scale * normal(make_key(seed + 1), (clients, classes, classes), torch.float64),
    )


every_mode = pytest.mark.parametrize(("beta", "similarity"), [(b, s) for b in BETAS for s in SIMILARITIES])


# -------------------- properties


@given(case=cases(), beta=st.sampled_from(BETAS), similarity=st.sampled_from(SIMILARITIES))
@settings(max_examples=150)
def test_views_and_weights_are_distributions_over_holders(case: Case, beta: Beta, similarity: Similarity) -> None:
    found = case.scrutinise(beta, similarity)
    held = (case.counts > 0).any(0).to(torch.float64)
    for name in PER_CLIENT:
        view = getattr(found, name)
        assert_close(view.sum(0), held, rtol=0, atol=1e-12, msg=name)
        assert ((view >= 0) & (view <= 1 + 1e-12)).all(), name
        assert (view[case.counts == 0] == 0).all(), name
    assert_close(found.mixing.sum(0), torch.ones_like(held), rtol=0, atol=1e-12)
    assert ((found.mixing > 0) & (found.mixing < 1)).all()
    assert ((found.divergence >= 0) & (found.divergence <= 2 * math.log(2) + 1e-12)).all()


# -------------------- divergence


@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float32, 1e-45), (torch.float64, 5e-324)])
def test_the_smallest_shares_do_not_make_divergence_infinite(dtype: torch.dtype, tiny: float) -> None:
    """Half of the smallest number is 0, and its logarithm is not finite."""
    p, q = torch.tensor([tiny, 1.0], dtype=dtype), torch.tensor([0.0, 1.0], dtype=dtype)
    assert jensen_shannon(p, q) == pytest.approx(0, abs=1e-6)
    assert jensen_shannon(q, p) == pytest.approx(0, abs=1e-6)


# -------------------- by hand


def hand_example() -> Case:
    """Two clients, one class of two, features of width 2; client 0 points along x, client 1 half-way up."""
    prototypes = torch.zeros(2, 2, 2, dtype=torch.float64)
    prototypes[0, 0], prototypes[1, 0] = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0])
    logits = torch.zeros(2, 2, 2, dtype=torch.float64)
    logits[0, 0], logits[1, 0] = torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0])
    return Case(prototypes, torch.tensor([[1, 0], [3, 0]]), logits)


def views_by_hand(beta: Beta, similarity: Similarity) -> np.ndarray:
    """Counts 1 : 3. The centroid is (1, 1/2), its cosines with the prototypes 2/sqrt 5 and 1/sqrt 5. Logits 3 and 1."""
    cosines = np.array([2.0, 1.0]) / math.sqrt(5)
    closeness = cosines if similarity == "cosine" else np.exp(60 * cosines)
    verdict = {
        "softmax": np.exp([3.0, 1.0]),
        "probability": np.array([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(1))]),
        "raw": np.array([3.0, 1.0]),
    }[beta]
    return np.stack([np.array([0.25, 0.75]), closeness / closeness.sum(), verdict / verdict.sum()])


@every_mode
def test_a_small_example_by_hand(beta: Beta, similarity: Similarity) -> None:
    views = views_by_hand(beta, similarity)

    def divergence(p: np.ndarray, q: np.ndarray) -> float:
        m = (p + q) / 2
        return sum(float(a * np.log(a / m[i])) for r in (p, q) for i, a in enumerate(r) if a > 0) / 2

    sums = np.array([sum(divergence(views[s], views[r]) for r in range(3) if r != s) for s in range(3)])
    mixing = np.exp(-sums) / np.exp(-sums).sum()
    found = hand_example().scrutinise(beta, similarity)
    for view, name in zip(views, ("size", "closeness", "verdict"), strict=True):
        assert_close(getattr(found, name)[:, 0], torch.from_numpy(view), rtol=0, atol=1e-11, msg=name)
    assert_close(found.divergence[:, 0], torch.from_numpy(sums), rtol=0, atol=1e-11)
    assert_close(found.mixing[:, 0], torch.from_numpy(mixing), rtol=0, atol=1e-11)
    assert_close(found.weights[:, 0], torch.from_numpy(mixing @ views), rtol=0, atol=1e-11)
    assert (found.weights[:, 1] == 0).all()


@pytest.mark.parametrize("worst", [0.0, -0.5])
def test_raw_logits_fall_back_to_softmax_class_by_class(worst: float) -> None:
    logits = torch.zeros(3, 2, 2, dtype=torch.float64)
    logits[:, 0, 0] = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    logits[:, 1, 1] = torch.tensor([1.0, 2.0, worst], dtype=torch.float64)
    holders = torch.ones(3, 2, dtype=torch.bool)
    raw, peaked = verdict_view(logits, holders, "raw"), verdict_view(logits, holders, "softmax")
    assert_close(raw[:, 0], torch.tensor([1 / 8, 2 / 8, 5 / 8], dtype=torch.float64))
    assert_close(raw[:, 1], peaked[:, 1], rtol=0, atol=0)
    assert not torch.allclose(raw[:, 0], peaked[:, 0])
