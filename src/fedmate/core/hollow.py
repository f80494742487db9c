"""Trees and data without content: shapes and types alone, from which a round can be followed at no cost."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmate.core.data import ClientData, rows_of
from fedmate.core.execution import remembered_features
from fedmate.core.method import LocalResult, Method
from fedmate.core.random import make_key
from fedmate.core.source import Source
from fedmate.core.tree import Tree, select, tree_map

NOWHERE = torch.device("meta")
"""Where tensors have a shape and no content."""


def hollow(leaf: Tensor) -> Tensor:
    """Return a tensor without its content."""
    return leaf.to(NOWHERE)


def hollow_update(method: Method, server: Tree, data: ClientData) -> LocalResult:
    """Follow one local update of the first round; what it returns has shapes and types and no content.

    Args:
        method: what a client does.
        server: the server's state, of which shapes count.
        data: what a client holds, of which shapes count, and whether samples are varied in training.
    """
    key = make_key(0)
    client = tree_map(hollow, method.init_client(method.setup.model.init_params(), key))
    everything = method.download(tree_map(hollow, server), hollow(torch.tensor(0)))
    download = select(everything, method.wire(0).down)
    # As in a round, no features are computed twice; the losses before and after are no part of the method.
    with torch.no_grad(), remembered_features():
        return method.local_update(client, download, _without_content(data), hollow(key))


def _without_content(data: ClientData) -> ClientData:
    source = data.source
    samples, mean, std = map(hollow, (source.samples, source.mean, source.std))
    return rows_of(Source(samples, mean, std, source.augmentation), hollow(data.rows), hollow(data.y))
