"""Multi-view prototype scrutiny (MPS): how much each client's prototype of a class counts.

Three views give weights over the clients that hold a class: how many samples are behind a prototype (alpha), how close
it is to the centroid of all of them (l), and how sure the previous global classifier is about it (beta). A view that
disagrees with the other two, by Jensen-Shannon divergence, counts less.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Beta = Literal["softmax", "probability", "raw"]
Similarity = Literal["cosine", "exp_cosine"]

COSINE_FLOOR = 1e-12
"""Added to clipped cosines, so that holders keep a weight even if all of them point away from the centroid."""
EXP_COSINE_SCALE = 60.0
"""The authors' code sharpens cosines as exp(60 cos)."""


class Scrutiny(NamedTuple):
    """What the three views say and what is made of it."""

    size: Tensor  # alpha, l and beta, `[clients, classes]`; each sums to 1 over the holders of a class
    closeness: Tensor
    verdict: Tensor
    divergence: Tensor  # for each view the sum of its Jensen-Shannon divergences to the other two, `[3, classes]`
    mixing: Tensor  # W_mps, the share of each view, `[3, classes]`
    weights: Tensor  # W_final, `[clients, classes]`; sums to 1 over the holders of a class, 0 where it has no holder


def scrutinise(
    prototypes: Tensor, counts: Tensor, logits: Tensor, *, beta: Beta = "softmax", similarity: Similarity = "cosine"
) -> Scrutiny:
    """Weigh the clients' prototypes.

    Args:
        prototypes: P_ik, `[clients, classes, width]`.
        counts: n_ik, `[clients, classes]`; 0 where a client does not hold a class or must not count.
        logits: of each prototype under the previous global classifier, `[clients, classes, classes]`.
        beta: how logits become weights: `softmax` of the class's own logit over clients, the class `probability`
            normalised over clients, or the `raw` logits normalised (softmax where one of them is not positive).
        similarity: how closeness is measured: `cosine` clipped at 0, or `exp_cosine` as in the authors' code.
    """
    holders = counts > 0
    size = size_view(counts, prototypes.dtype)
    closeness = closeness_view(prototypes, holders, similarity)
    verdict = verdict_view(logits, holders, beta)
    # Divergence is symmetric, so three comparisons serve.
    size_closeness, size_verdict = jensen_shannon(size, closeness), jensen_shannon(size, verdict)
    closeness_verdict = jensen_shannon(closeness, verdict)
    divergence = torch.stack(
        [size_closeness + size_verdict, size_closeness + closeness_verdict, size_verdict + closeness_verdict]
    )
    mixing = torch.softmax(-divergence, dim=0)
    weights = mixing[0] * size + mixing[1] * closeness + mixing[2] * verdict
    return Scrutiny(size, closeness, verdict, divergence, mixing, weights)


def size_view(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """alpha_ik = n_ik / sum_j n_jk."""
    return _normalise(counts.to(dtype), counts > 0)


def closeness_view(prototypes: Tensor, holders: Tensor, similarity: Similarity) -> Tensor:
    """l_ik: the cosine between a prototype and the unweighted centroid of its class, normalised over holders."""
    present = torch.where(holders[..., None], prototypes, torch.zeros_like(prototypes))
    centroid = present.sum(0) / holders.sum(0).clamp(min=1)[:, None]
    cosine = torch.nn.functional.cosine_similarity(present, centroid[None], dim=-1)
    if similarity == "exp_cosine":
        return _softmax(EXP_COSINE_SCALE * cosine, holders)
    return _normalise(cosine.clamp(min=0) + COSINE_FLOOR, holders)


def verdict_view(logits: Tensor, holders: Tensor, beta: Beta) -> Tensor:
    """beta_ik: how strongly the classifier takes P_ik for class k, normalised over holders."""
    own = logits.diagonal(dim1=-2, dim2=-1)
    if beta == "probability":
        # As a softmax of log-probabilities: probabilities themselves may all underflow to 0.
        return _softmax(logits.log_softmax(-1).diagonal(dim1=-2, dim2=-1), holders)
    peaked = _softmax(own, holders)
    if beta == "softmax":
        return peaked
    # Normalising mixed signs gives negative or exploding weights, so such classes fall back to softmax.
    positive = ((own > 0) | ~holders).all(0)
    return torch.where(positive, _normalise(torch.where(positive, own, torch.ones_like(own)), holders), peaked)


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Return the divergence of two distributions over the first axis, in 0..ln 2 (0 log 0 = 0)."""
    middle = (p + q) / 2
    # log p - log m rather than log(p / m): a tiny p must not underflow into a ratio of 0.
    return (_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2


def _relative_entropy(p: Tensor, m: Tensor) -> Tensor:
    # Half of the smallest number rounds to 0, hence the second condition.
    inside = (p > 0) & (m > 0)
    safe_p, safe_m = torch.where(inside, p, torch.ones_like(p)), torch.where(inside, m, torch.ones_like(m))
    return (p * (safe_p.log() - safe_m.log())).sum(0).clamp(min=0)


def _normalise(values: Tensor, holders: Tensor) -> Tensor:
    """Divide by the sum over holders; a class without a holder gets zeros."""
    kept = torch.where(holders, values, torch.zeros_like(values))
    total = kept.sum(0)
    return kept / torch.where(total > 0, total, torch.ones_like(total))


def _softmax(values: Tensor, holders: Tensor) -> Tensor:
    kept = torch.where(holders, values, torch.full_like(values, -torch.inf))
    highest = kept.max(0).values
    shifted = values - torch.where(highest.isfinite(), highest, torch.zeros_like(highest))
    return _normalise(torch.where(holders, shifted, torch.zeros_like(shifted)).exp(), holders)
