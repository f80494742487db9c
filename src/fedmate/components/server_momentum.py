"""Server momentum: on top of its clients' mean the server repeats a share of its last move.

    v <- beta v + (mean - model),    model <- model + v

A federation walks towards its clients' mean in short steps that point the same way for many rounds. With momentum it
gets further in as many rounds, and steps of which clients disagree even out. It costs the server a copy of what moves,
and clients nothing: not a byte more crosses.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmate.core.method import Method, mix_by_size
from fedmate.core.options import Limits, option
from fedmate.core.tree import Tree, select, tree_map, where


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(Method):
    """A method whose server can move with momentum."""

    moving: ClassVar[tuple[str, ...]] = ("extractor",)
    """The parts of the model that do. Buffers never: a variance must not be carried below zero."""

    server_momentum: float = option(0.0, "server momentum (beta); 0 is off", Limits(at_least=0, below=1))

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """Begin at rest."""
        return {**super().init_server(params, num_clients, key), **self.at_rest(params)}  # type: ignore[safe-super]

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor) -> Tree:
        """Move to the clients' mean, and further."""
        return self.mix(server, uploads, valid)

    def at_rest(self, params: Tree) -> Tree:
        """Return what a server keeps for it besides its model: no velocity yet, or nothing at all without momentum."""
        if not self.server_momentum:
            return {}
        return {"velocity": tree_map(torch.zeros_like, select(params, self.moving))}

    def mix(self, server: Tree, uploads: Tree, valid: Tensor) -> Tree:
        """Average what was uploaded, as `mix_by_size` does, and carry it on in the direction of earlier moves.

        Parts that did not cross in this round stay where they are; all parts do if no client is valid.
        """
        mixed = mix_by_size(server, uploads, valid)
        if not self.server_momentum:
            return mixed
        before = select(server["velocity"], uploads)
        old, new = select(server, before), select(mixed, before)
        velocity = tree_map(lambda v, a, b: self.server_momentum * v + (b - a), before, old, new)
        moved = {**tree_map(torch.add, old, velocity), "velocity": {**server["velocity"], **velocity}}
        counts = uploads["num_samples"].masked_fill(~valid, 0).sum() > 0
        return {**mixed, **where(counts, moved, select(server, moved))}
