"""FedAvg: clients train the common model, the server averages it.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017. Its `post` view is FT-FedAvg: the global model after a client's local training.

With `[server] momentum` it is FedAvgM (`core/server.py`).

Deviations: momentum and weight decay as in the shared protocol; buffers follow the model's declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.supervised import train_together, tune_classifier
from fedmate.core import ClientData, Limits, LocalResult, Tree, option
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class FedAvg(PartialSharing):
    """Federated averaging of the whole model."""

    is_global: ClassVar[bool] = True

    citation: ClassVar[str] = "fedavg2017"

    tuning_epochs: int = option(
        5, "epochs of the `classifier_tuned` view: the global model, its classifier fine-tuned", Limits(at_least=0)
    )

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the received model."""
        params = train_together(self, self.personal_params(client, download), data, key)
        return self.result(params, data)

    def extra_views(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> dict[str, Tree]:
        """The received model with its classifier fine-tuned, the other reading of FT-FedAvg."""
        params = self.personal_params(client, download)
        return {"classifier_tuned": tune_classifier(self, params, data, self.tuning_epochs, key)}
