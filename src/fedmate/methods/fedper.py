"""FedPer: the last layers stay with the client, the others are averaged.

Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization Layers", 2019.

Deviations: momentum and weight decay as in the shared protocol; buffers follow the model's declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.supervised import train_together
from fedmate.core import ClientData, Limits, LocalResult, Tree, option
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class FedPer(PartialSharing):
    """Federated averaging with personal last layers, trained together with the shared ones."""

    citation: ClassVar[str] = "fedper2019"

    personal_layers: int = option(
        1, "how many of the last layers stay with the client (K_P); 0 is FedAvg", Limits(at_least=0)
    )

    def shares(self, part: str, name: str) -> bool:
        """Tell whether a tensor belongs to a shared layer: the classifier is the last one, then the extractor's."""
        if part == "buffers" or self.personal_layers == 0:
            return True
        layers = self.setup.model.extractor_layers
        own = layers[max(0, len(layers) - self.personal_layers + 1) :]
        return part == "extractor" and name.rpartition(".")[0] not in own

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train all layers together."""
        params = train_together(self, self.personal_params(client, download), data, key)
        return self.result(params, data)
