"""FedProto: clients keep their models and share class prototypes alone.

Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: Federated Prototype Learning across Heterogeneous Clients",
AAAI 2022.

Deviations: the distance to a prototype is squared and averaged over the samples of a batch and the width, as in the
authors' code; a client's prototypes are computed anew after training, in evaluation mode, where that code collects
features while the model still changes in the last epoch; a class that no participant holds keeps its prototype; short
batches are not dropped. The view `nearest_prototype` chooses among all known classes, not the client's own alone; it is
written as a linear classifier, so a network whose classifier has no bias does not get it. Buffers stay with the client
like the rest of its model, whatever is declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from fedmate.components.prototypes import Centres, centred_loss, local_prototypes, mix_prototypes
from fedmate.components.supervised import train_together
from fedmate.core import ClientData, Limits, LocalResult, Method, Model, Presets, Tree, Wire, option

NEVER = -1e30
"""The bias of a class that must not be chosen: below every logit, and finite in float32."""


@final
@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """Federated prototypes: personal models that agree on where the classes lie."""

    primary_view: ClassVar[str] = "post"

    presets: ClassVar[Presets] = {
        # Of the authors' code; its commands for CIFAR-10 set a weight of 0.1.
        "authors": {
            "method": {"prototype_weight": 1.0, "weighting": "equal"},
            "training": {"batch_size": 4, "epochs": 1, "learning_rate": 0.01, "momentum": 0.5, "weight_decay": 0.0},
        }
    }

    citation: ClassVar[str] = "fedproto2022"

    prototype_weight: float = option(
        1.0, "weight of the distance to the prototypes (lambda); 0 is Local", Limits(at_least=0)
    )
    weighting: Literal["size", "equal"] = option(
        "size", "prototypes are averaged by class counts, or equally as in the authors' code"
    )

    def prepare(self, model: Model) -> Model:
        """Ask for the width of the features: a classifier that is not one linear layer is refused there."""
        _ = model.width
        return model

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds prototypes, once clients have sent them."""
        weight = params["classifier"]["weight"]
        classes = self.setup.num_classes
        return {
            "prototypes": weight.new_zeros(classes, weight.shape[1]),
            "known": torch.zeros(classes, dtype=torch.bool, device=weight.device),
        }

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps its model."""
        return params

    def wire(self, round_number: int) -> Wire:
        """Prototypes cross both ways."""
        return Wire(down=frozenset({"prototypes", "known"}), up=frozenset({"prototypes", "class_counts"}))

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        """Send the prototypes."""
        return server

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the client's own model towards the prototypes, by cross-entropy alone while there are none."""
        model = self.setup.model
        centres = Centres(download["prototypes"], download["known"], self.prototype_weight)
        objective = centred_loss(model, centres, self.adjustment(data))
        params = train_together(self, client, data, key, objective)
        prototypes, counts = local_prototypes(model, params, data, self.setup.num_classes)
        upload = {"prototypes": prototypes, "class_counts": counts}
        return LocalResult(client=params, upload=upload, params=params, diagnostics={"prototypes": prototypes})

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        """Average the prototypes of each class over the clients that hold it."""
        counts = uploads["class_counts"]
        if self.weighting == "equal":
            counts = (counts > 0).to(counts.dtype)
        prototypes, known = mix_prototypes(server["prototypes"], server["known"], uploads["prototypes"], counts, valid)
        return {"prototypes": prototypes, "known": known}

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds its own model."""
        return client

    def extra_views(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> dict[str, Tree]:
        """The client's extractor, each sample given to the nearest of the global prototypes."""
        if set(client["classifier"]) != {"weight", "bias"}:
            return {}
        nearest = nearest_prototype(download["prototypes"], download["known"])
        nearest["weight"] = nearest["weight"].reshape(client["classifier"]["weight"].shape)
        return {"nearest_prototype": {**client, "classifier": nearest}}


def nearest_prototype(prototypes: Tensor, known: Tensor) -> Tree:
    """Return the linear classifier whose largest logit is that of the nearest known prototype.

    |z - P|^2 = |z|^2 - 2 (P z - |P|^2 / 2), and |z|^2 is the same for all classes.
    """
    return {"weight": prototypes, "bias": (-prototypes.square().sum(-1) / 2).masked_fill(~known, NEVER)}
