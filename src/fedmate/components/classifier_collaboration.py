"""Classifier collaboration: of whose classifiers a client's is combined, and with which weights.

The weights alpha of client i minimise the risk alpha^T (diag(V) + D) alpha over the simplex, where
D_jl = sum_k <h_ik - h_jk, h_ik - h_lk>: the squared bias |h_i - sum_j alpha_j h_j|^2 of a combination and its variance
sum_j V_j alpha_j^2. Mehrotra's interior-point method ("On the Implementation of a Primal-Dual Interior Point Method",
SIAM Journal on Optimization, 1992) finds them for all clients at once, in float64: a fixed number of steps, in each of
which every client's matrix is factorised, and nothing is read back to Python.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.core.data import ClientData, class_means
from fedmate.core.metrics import all_features
from fedmate.core.model import Model
from fedmate.core.tree import Tree, tree_map

ITERATIONS = 20
"""Steps of the solver, besides one for each doubling of clients: 3 to 6 more than the worst problem met so far took."""
VARIANCE_FLOOR = 1e-7
"""The least V, relative to the mean diagonal of diag(V) + D: below, float64 could not tell the weights to 1e-6."""
KEPT_INSIDE = 0.95
"""The share of the way to the boundary that a step goes."""
CHUNK = 2**21
"""Numbers in the matrices that are factorised together, 16 MB: memory must not grow with the cube of clients."""


class FeatureStatistics(NamedTuple):
    """What a client's features look like."""

    prototypes: Tensor  # mu_k, the mean feature of each class, `[classes, width]`; zeros for a class without a sample
    counts: Tensor  # n_k, `[classes]`
    shares: Tensor  # h_k = p_k mu_k with p_k = n_k / n, `[classes, width]`
    # V = (sum_k p_k mean |f|^2 - sum_k p_k^2 |mu_k|^2) / n, how far h strays with the draw of n samples
    variance: Tensor


def local_statistics(model: Model, params: Tree, data: ClientData, num_classes: int) -> FeatureStatistics:
    """Return the statistics of all of a client's samples, in evaluation mode."""
    instances = model.instances(all_features(model, params, data), data.y, data.mask)
    return feature_statistics(*instances, num_classes)


def feature_statistics(features: Tensor, labels: Tensor, mask: Tensor, num_classes: int) -> FeatureStatistics:
    """Return the statistics of features `[samples, width]` with labels `[samples]`, where `mask` is true."""
    prototypes, counts = class_means(features, labels, mask, num_classes)
    size = counts.sum().clamp(min=1).to(features.dtype)
    frequency = (counts / size)[:, None]
    distances = (features - prototypes[labels]).square().sum(-1)
    within = torch.where(mask, distances, torch.zeros_like(distances)).sum() / size
    # mean |f|^2 = mean |f - mu|^2 + |mu|^2: so written V cannot be negative, and is 0 for a single sample.
    between = (frequency * (1 - frequency) * prototypes.square()).sum()
    return FeatureStatistics(prototypes, counts, frequency * prototypes, (within + between) / size)


def combining_weights(shares: Tensor, variances: Tensor, valid: Tensor) -> Tensor:
    """Return with which weights each client's classifier is best combined of all, `[clients, clients]`, float64.

    Args:
        shares: h, `[clients, classes, width]`.
        variances: V, `[clients]`.
        valid: which clients count, `[clients]`; the rows of the others may hold anything.

    Returns:
        A row for each client that sums to 1; rows and columns of clients that do not count are zeros.
    """
    h = shares.flatten(1).to(torch.float64).masked_fill(~valid[:, None], 0)
    # Nothing changes if all are moved alike, and around their mean less is lost to rounding.
    h = h - h.sum(0) / valid.sum().clamp(min=1)
    products = h @ h.T
    products = (products + products.T) / 2
    variances = variances.to(torch.float64).masked_fill(~valid, 0)
    chunks = torch.split(torch.arange(len(h), device=h.device), max(1, CHUNK // len(h) ** 2))
    found = [minimise_on_simplex(risk_matrices(products, own, variances, valid)) for own in chunks]
    # A client that does not count stood alone, so the shares of the others are right among themselves.
    weights = torch.cat(found).masked_fill(~(valid & valid[:, None]), 0)
    return weights / weights.sum(-1, keepdim=True).masked_fill(~valid[:, None], 1)


def risk_matrices(products: Tensor, own: Tensor, variances: Tensor, valid: Tensor) -> Tensor:
    """Return diag(V) + D of some clients, each scaled to a mean diagonal of 1, `[some, clients, clients]`.

    Args:
        products: <h_j, h_l>, `[clients, clients]`.
        own: which clients' matrices to make, `[some]`.
        variances: V, `[clients]`.
        valid: which clients count, `[clients]`; the others get the rows and columns of an identity.
    """
    row, square = products.index_select(0, own), products.diagonal().index_select(0, own)
    # In this order the row and the column of the client itself are exactly 0.
    bias = (products - row[:, None]) - (row - square[:, None])[:, :, None]
    diagonal = (bias.diagonal(dim1=1, dim2=2) + variances).masked_fill(~valid, 0)
    scale = diagonal.sum(1, keepdim=True) / valid.sum().clamp(min=1)
    scale = scale.masked_fill(scale <= 0, 1)
    bias = (bias / scale[..., None]).masked_fill(~(valid & valid[:, None]), 0)
    return bias + torch.diag_embed((variances / scale).clamp(min=VARIANCE_FLOOR).masked_fill(~valid, 1))


class _Point(NamedTuple):
    """Where the solver stands, or a step from there."""

    x: Tensor  # positive, sums to 1, `[problems, size]`
    slack: Tensor  # Q x - level, positive, `[problems, size]`; at the solution it is 0 wherever x is not
    level: Tensor  # the multiplier of the sum, `[problems, 1]`


def minimise_on_simplex(matrices: Tensor) -> Tensor:
    """Return the x >= 0 with sum 1 that minimise x^T Q x, `[problems, size]`.

    The matrices Q are float64 and positive definite, with diagonals around 1.
    """
    x = torch.ones_like(matrices[..., 0]) / matrices.shape[-1]
    slope = _times(matrices, x)
    # Far from the boundary and with all x * slack alike, whence the method needs no safeguard.
    level = -2 * slope.abs().amax(-1, keepdim=True)
    point = _Point(x, slope - level, level)
    for _ in range(ITERATIONS + matrices.shape[-1].bit_length()):
        point = _advance(matrices, point)
    return point.x / point.x.sum(-1, keepdim=True)


def _advance(matrices: Tensor, point: _Point) -> _Point:
    """Take a step towards x * slack = 0: a guess tells how far one gets, and what its curvature adds to the errors."""
    x, slack, level = point
    ratio = slack / x
    factor = _factorise(matrices, ratio)
    downhill, even = level - _times(matrices, x), _solve(factor, torch.ones_like(x))
    total = even.sum(-1, keepdim=True)

    def towards(product: Tensor) -> _Point:
        """Return the Newton step to x * slack = product that leaves the sum of x as it is."""
        pull = product / x
        step = _solve(factor, downhill + pull)
        rise = -step.sum(-1, keepdim=True) / total
        step = step + rise * even
        return _Point(step, pull - slack - ratio * step, rise)

    guess = towards(torch.zeros_like(x))
    centring = (1 - _reach(point, guess)) ** 3
    step = towards(centring * (x * slack).mean(-1, keepdim=True) - guess.x * guess.slack)
    length = KEPT_INSIDE * _reach(point, step)
    return _Point(*(place + length * change for place, change in zip(point, step, strict=True)))


def _reach(point: _Point, step: _Point) -> Tensor:
    """Return how much of a step, at most 1, keeps x and slack from becoming negative, `[problems, 1]`."""
    change = torch.minimum(step.x / point.x, step.slack / point.slack)
    return -change.amin(-1, keepdim=True).clamp(max=-1).reciprocal()


def _factorise(matrices: Tensor, diagonal: Tensor) -> Tensor:
    """Return the Cholesky factor of each matrix with a diagonal added, without asking whether there is one."""
    raised = matrices.clone()
    raised.diagonal(dim1=1, dim2=2).add_(diagonal)
    factor: Tensor = torch.linalg.cholesky_ex(raised).L
    return factor


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """Return the x of L L^T x = right, `[problems, size]`."""
    # Not `cholesky_solve`, which copies every factor first.
    half = torch.linalg.solve_triangular(factor, right[..., None], upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole[..., 0]


def _times(matrices: Tensor, x: Tensor) -> Tensor:
    return (matrices @ x[..., None])[..., 0]


def drop_small(weights: Tensor, threshold: float) -> Tensor:
    """Leave out weights below `threshold` and let each row sum to 1 again; a row of small weights alone stays."""
    kept = weights.masked_fill(weights < threshold, 0)
    kept = torch.where(kept.sum(-1, keepdim=True) > 0, kept, weights)
    total = kept.sum(-1, keepdim=True)
    return kept / total.masked_fill(total <= 0, 1)


def combine(stacked: Tree, weights: Tensor, valid: Tensor) -> Tree:
    """Return a combination of the clients' trees for each row of `weights` `[combinations, clients]`, as a stack.

    Weights are 0 for clients that are not `valid`, whose rows may hold anything.
    """

    def rows(leaf: Tensor) -> Tensor:
        flat = leaf.flatten(1).masked_fill(~valid[:, None], 0)
        return (weights.to(leaf.dtype) @ flat).reshape(-1, *leaf.shape[1:])

    return tree_map(rows, stacked)
