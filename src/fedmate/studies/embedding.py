"""How local prototypes lie to each other: in a plane, and as a number. scikit-learn is loaded only when asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PERPLEXITY = 30.0
"""About how many neighbours t-SNE lets a point have; fewer where there are few points."""

FEWEST = 4
"""Points that t-SNE can be asked about."""


class Prototypes(NamedTuple):
    """The prototypes of all clients.

    Attributes:
        points: `[prototypes, width]`.
        classes: whose they are, `[prototypes]`.
    """

    points: NDArray[np.float64]
    classes: NDArray[np.int64]


def held_prototypes(prototypes: Tensor, holdings: Sequence[Sequence[int]]) -> Prototypes:
    """Return the prototypes of the classes that clients hold; a client that has none, or no finite ones, is left out.

    Args:
        prototypes: `[clients, classes, width]`.
        holdings: how many samples of each class each client holds; newcomers, if any, come last.
    """
    clients, classes, width = prototypes.shape
    held = torch.tensor(holdings[:clients]).reshape(clients, classes) > 0
    kept = held & torch.isfinite(prototypes).all(-1) if width else torch.zeros_like(held)
    numbers = torch.arange(classes).expand(clients, -1)
    return Prototypes(prototypes[kept].to(torch.float64).numpy(), numbers[kept].numpy())


def embed(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return places in a plane by t-SNE, `[points, 2]`, the same for the same points.

    There are none for a few points, or for points that are all the same.
    """
    if len(points) < FEWEST or not np.ptp(points, axis=0).any():
        return np.zeros((0, 2))
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    # It starts from the first two principal components, which a width of 1 does not have.
    points = np.pad(points, ((0, 0), (0, max(0, 2 - points.shape[1]))))
    # With several threads sums would depend on their number; beside other work they also take many times as long.
    with threadpool_limits(limits=1):
        places = TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(points)
    return np.asarray(places, dtype=np.float64)


def silhouette(prototypes: Prototypes) -> float | None:
    """Return how well classes are told apart: from 1, each by itself, over 0 to -1, each among others.

    It is taken where the prototypes lie, not in the plane they are drawn in. There is none unless there are several
    classes, and several prototypes of one of them.
    """
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    if not 2 <= len(np.unique(prototypes.classes)) < len(prototypes.classes):
        return None
    with threadpool_limits(limits=1):
        return float(silhouette_score(prototypes.points, prototypes.classes))
