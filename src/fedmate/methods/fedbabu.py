"""FedBABU: clients train the extractor below a classifier that is never trained, and tune a copy of both before use.

Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022.
The view `global`, the averaged extractor with the classifier of the beginning, is the paper's initial accuracy; `pre`,
the same after fine-tuning, its personalised one.

Deviations:
- fine-tuning has the learning rate of training unless `tuning_learning_rate` is given, and momentum and weight decay as
  in the shared protocol; it starts from the model of the round, not from that of the best round on test samples;
- the average is weighted by size (the authors' code takes the plain one);
- the learning rate falls only with a `schedule`;
- the classifier is really frozen; the authors' code trains it with learning rate 0, the same without weight decay;
- buffers follow the model's declaration; the authors' networks have BatchNorm without running statistics (`dropped`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedmate.components.supervised import train_together, tune_classifier
from fedmate.core import ClientData, Limits, LocalResult, Model, Presets, Tree, option, select
from fedmate.errors import UserError
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class FedBABU(PartialSharing):
    """Federated averaging of the extractor, below a fixed classifier, with fine-tuning before use."""

    shared: ClassVar[tuple[str, ...]] = ("extractor",)
    presets: ClassVar[Presets] = {
        # Epochs are left as they are: the authors try several numbers and keep their product with the rounds at 320.
        "authors": {
            "method": {"tuning_epochs": 5, "tuning_learning_rate": 1e-3},
            "training": {"batch_size": 50, "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.0},
        },
    }
    citation: ClassVar[str] = "fedbabu2022"

    tuning_epochs: int = option(5, "epochs of fine-tuning, of `pre` and `classifier_tuned`", Limits(at_least=0))
    tuning_learning_rate: float | None = option(None, "its step size; none: that of training", Limits(at_least=0))

    def prepare(self, model: Model) -> Model:
        """Refuse a classifier through which no extractor could learn."""
        if not model.init_params()["classifier"].get("weight", torch.ones(1)).any():
            raise UserError("`model` starts with a classifier of zeros, which `fedbabu` never trains; use another.")
        return model

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds the common classifier, too, which never changes and is never sent."""
        return {**super().init_server(params, num_clients, key), **select(params, ("classifier",))}

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the received extractor, the classifier frozen."""
        params = train_together(self, self.personal_params(client, download), data, key, parts=("extractor",))
        return self.result(params, data)

    def personalise(self, params: Tree, client: Tree, download: Tree, data: ClientData, key: Tensor) -> Tree:
        """Fine-tune the whole network."""
        return train_together(self, params, data, key, epochs=self.tuning_epochs, rate=self.tuning_learning_rate)

    def extra_views(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> dict[str, Tree]:
        """The received extractor with the classifier alone fine-tuned."""
        params, rate = self.personal_params(client, download), self.tuning_learning_rate
        return {"classifier_tuned": tune_classifier(self, params, data, self.tuning_epochs, key, rate)}
