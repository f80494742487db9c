"""How the server mixes what clients send."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmate.core.method import MODEL_PARTS
from fedmate.core.tree import Tree, select, weighted_mean, where


def mix_by_size(server: Tree, uploads: Tree, valid: Tensor) -> Tree:
    """Average the uploaded parts of the model with weights n_i / sum n_j over the valid clients.

    Parts that were not uploaded, and all of them when no client is valid, stay as the server has them.
    """
    sizes = uploads["num_samples"]
    weights = torch.where(valid, sizes, torch.zeros_like(sizes))
    uploaded = select(uploads, MODEL_PARTS)
    mean = weighted_mean(uploaded, weights)
    return {**server, **where(weights.sum() > 0, mean, select(server, uploaded))}
