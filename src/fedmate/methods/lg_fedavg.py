"""LG-FedAvg: the extractor stays with the client, the classifier is averaged.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov and Morency, "Think Locally, Act Globally: Federated Learning
with Local and Global Representations", 2020 (first at the NeurIPS 2019 Workshop on Federated Learning).

Deviations:
- training starts from the common initial model, not from what a run of FedAvg has trained;
- the average is weighted by size; the authors' code takes the plain one;
- the classifier is what crosses, as the paper says; for CIFAR-10 the authors' code shares the convolutions instead;
- the models are those of the round; the authors report each client's best one, chosen on its test samples;
- momentum and weight decay as in the shared protocol;
- buffers belong to the extractor and stay with it, even where the model declares them shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.supervised import train_together
from fedmate.core import ClientData, LocalResult, Presets, Tree
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class LGFedAvg(PartialSharing):
    """Federated averaging of the classifier, on top of personal extractors."""

    primary_view: ClassVar[str] = "post"
    shared: ClassVar[tuple[str, ...]] = ("classifier",)

    presets: ClassVar[Presets] = {
        "authors": {
            "training": {"batch_size": 50, "epochs": 1, "learning_rate": 0.1, "momentum": 0.5, "weight_decay": 0.0}
        },
    }

    citation: ClassVar[str] = "lgfedavg2020"

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the own extractor and the received classifier together."""
        params = train_together(self, self.personal_params(client, download), data, key)
        return self.result(params, data)
