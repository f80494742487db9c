"""A network and samples that are small enough to follow by hand."""

from __future__ import annotations

import torch
from torch import nn

from fedmate.core import ClientData, Model, client_data, make_key, normal

CLASSES = 4


def model() -> Model:
    """Return a network in double precision, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    return Model(layers, classifier="2")


def samples(labels: list[int], number: int = 0) -> ClientData:
    """Return samples with these labels; another number gives others."""
    return client_data(normal(make_key(number), (len(labels), 3), torch.float64), torch.tensor(labels))
