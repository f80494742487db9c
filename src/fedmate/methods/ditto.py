"""Ditto: each client trains a model of its own that is drawn to the federation's, which is FedAvg's.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.

Deviations:
- both models are trained for the round's epochs, on the same batches; the authors take a few steps on them in turn (two
  on Fashion-MNIST, which is the setting of the preset `authors`: one epoch is the least here);
- the average is weighted by size; the authors' code takes the plain one of clients drawn by size;
- lambda is the same for all clients; the authors can also let each choose its own on validation samples;
- momentum and weight decay as in the shared protocol, for both models;
- a client whose personal model diverges is left out of the average, too;
- who comes late, or new, begins with the initial model and not with the one it receives, as in the authors' code;
- the common model's buffers follow the model's declaration, those of a personal model stay with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.proximal import proximal_loss
from fedmate.components.supervised import train_together
from fedmate.core import ClientData, Limits, LocalResult, Presets, Tree, option, select, supervised_loss
from fedmate.methods.base import SharedServer


@final
@dataclass(frozen=True, kw_only=True)
class Ditto(SharedServer):
    """Personal models that are drawn to the average model."""

    primary_view: ClassVar[str] = "post"
    presets: ClassVar[Presets] = {
        "authors": {
            "method": {"proximal_weight": 1.0},
            "training": {"batch_size": 16, "epochs": 1, "learning_rate": 0.05, "momentum": 0.0, "weight_decay": 0.0},
        },
    }

    citation: ClassVar[str] = "ditto2021"

    proximal_weight: float = option(
        1.0, "how strongly personal models are drawn to the average (lambda); 0 is Local", Limits(at_least=0)
    )

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps its own model, and its buffers of the common one in case they are private."""
        return {"personal_model": params, **select(params, ("buffers",))}

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the received model as FedAvg does, and the own one near what was received."""
        common = train_together(self, {**select(client, ("buffers",)), **download}, data, key)
        plain = supervised_loss(self.setup.model, self.adjustment(data))
        near = proximal_loss(plain, download, self.proximal_weight)
        personal = train_together(self, client["personal_model"], data, key, near)
        kept = {"personal_model": personal, **select(common, ("buffers",))}
        return LocalResult(kept, self.upload_of(common, data), personal, diagnostics={})

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds its own model."""
        personal: Tree = client["personal_model"]
        return personal
