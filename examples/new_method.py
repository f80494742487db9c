"""FedAvgM: FedAvg whose server moves with momentum (Hsu, Qi and Brown, 2019). docs/add-a-method.md explains each line.

Deviations: buffers are averaged without momentum; a round without a valid client leaves the velocity as it was.
"""
# ruff: noqa: D102 - `Method` and `PartialSharing` say what each function is for

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, add, zeros_like

from fedmate import core
from fedmate.components.supervised import train_together
from fedmate.core import ClientData, Limits, LocalResult, Tree
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class FedAvgM(PartialSharing):
    """Federated averaging with momentum at the server."""

    citation: ClassVar[str] = """@misc{fedavgm2019, year = {2019}, eprint = {1909.06335}, archiveprefix = {arXiv},
  title = {Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification},
  author = {Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew}}"""
    server_momentum: float = core.option(0.9, "share of the last move that is kept (beta)", Limits(at_least=0, below=1))

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        server = super().init_server(params, num_clients, key)
        return {**server, "velocity": core.tree_map(zeros_like, core.select(params, self.shared))}

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        params = train_together(self, self.personal_params(client, download), data, key)
        return self.result(params, data)

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        mean = super().aggregate(server, uploads, client_ids, valid, key)
        old, new = (core.select(tree, self.shared) for tree in (server, mean))
        velocity = core.tree_map(lambda v, a, b: self.server_momentum * v + b - a, server["velocity"], old, new)
        moved = {**mean, **core.tree_map(add, old, velocity), "velocity": velocity}
        return core.where(valid.any(), moved, server)
