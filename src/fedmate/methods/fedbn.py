"""FedBN: BatchNorm stays with the client, everything else is averaged.

Li, Jiang, Zhang, Kamp and Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
ICLR 2021.

Deviations:
- weights, biases and statistics of layers that are BatchNorm stay, however buffers are declared; the authors' code goes
  by names that contain `bn`;
- the average is weighted by size; the authors' code takes the plain one;
- momentum and weight decay as in the shared protocol;
- a held-out client begins with BatchNorm as initialised: look at it after it has adapted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.supervised import train_together
from fedmate.core import ClientData, LocalResult, Presets, Tree
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class FedBN(PartialSharing):
    """Federated averaging with BatchNorm layers of each client's own, for inputs that differ between clients."""

    presets: ClassVar[Presets] = {
        "authors": {
            "training": {"batch_size": 32, "epochs": 1, "learning_rate": 0.01, "momentum": 0.0, "weight_decay": 0.0}
        }
    }
    citation: ClassVar[str] = "fedbn2021"

    def shares(self, part: str, name: str) -> bool:
        """Tell whether a tensor belongs to another layer than BatchNorm."""
        return part == "classifier" or name.rpartition(".")[0] not in self.setup.model.batch_norms

    def warnings(self, class_counts: Sequence[Tensor]) -> list[str]:
        """Warn if there is nothing to keep."""
        found = super().warnings(class_counts)
        nothing = "`model` has no BatchNorm, so that `fedbn` is FedAvg; choose a network that has."
        return found if self.setup.model.batch_norms else [*found, nothing]

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train all layers together."""
        params = train_together(self, self.personal_params(client, download), data, key)
        return self.result(params, data)
