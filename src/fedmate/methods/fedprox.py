"""FedProx: FedAvg whose clients are kept near the model they received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020.

Deviations: every client does a round's whole work (the paper lets slow ones stop early); clients are drawn alike and
averaged by size (the paper draws them by size and averages alike); momentum and weight decay as in the shared
protocol, the proximal pull being part of the gradient they act on; buffers follow the model's declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.proximal import proximal_loss
from fedmate.components.supervised import train_together
from fedmate.core import ClientData, Limits, LocalResult, Presets, Tree, option, supervised_loss
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class FedProx(PartialSharing):
    """Federated averaging with a proximal term."""

    is_global: ClassVar[bool] = True

    presets: ClassVar[Presets] = {
        "authors": {
            "method": {"proximal_weight": 1.0},
            "training": {"batch_size": 10, "epochs": 20, "learning_rate": 0.01, "momentum": 0.0, "weight_decay": 0.0},
        }
    }
    citation: ClassVar[str] = "fedprox2020"

    proximal_weight: float = option(
        0.1, "weight of half the squared distance to the received model (mu); 0 is FedAvg", Limits(at_least=0)
    )

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the received model, not too far away from where it was."""
        received = self.personal_params(client, download)
        plain = supervised_loss(self.setup.model, self.adjustment(data))
        objective = proximal_loss(plain, received, self.proximal_weight)
        params = train_together(self, received, data, key, objective)
        return self.result(params, data)
