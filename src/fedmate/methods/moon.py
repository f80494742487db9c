"""MOON: clients train features that look like the global model's and not like their own of the last time.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021.

Deviations:
- the features compared are those the classifier reads, without the paper's projection unless `projection` is
  `official`; the contrast has weight 1 unless set (the authors tune it, and take 5 on CIFAR-10);
- a client's first round, whenever that is, has no contrast; in the authors' code this holds for round 0, and who comes
  later is kept away from a model of random numbers;
- one previous model is kept, as in the paper; the authors' code can keep several;
- momentum and weight decay as in the shared protocol; buffers follow the model's declaration.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from fedmate.components.supervised import train_together
from fedmate.core import (
    Batch,
    ClientData,
    Limits,
    LocalResult,
    Model,
    Objective,
    Presets,
    Tree,
    cross_entropy,
    option,
    select,
    supervised_loss,
)
from fedmate.core.metrics import all_features
from fedmate.methods.base import SharedServer

PROJECTED = 256
"""The width of the official projection."""

SHORTEST = 1e-8
"""The length below which a feature vector has no direction."""


@final
@dataclass(frozen=True, kw_only=True)
class MOON(SharedServer):
    """Model-contrastive federated learning."""

    is_global: ClassVar[bool] = True

    presets: ClassVar[Presets] = {
        "authors": {
            "method": {"contrastive_weight": 5.0, "temperature": 0.5, "projection": "official"},
            "training": {"batch_size": 64, "epochs": 10, "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
        }
    }
    citation: ClassVar[str] = "moon2021"

    contrastive_weight: float = option(1.0, "weight of the contrastive loss (mu); 0 is FedAvg", Limits(at_least=0))
    temperature: float = option(0.5, "what cosines are divided by in that loss (tau)", Limits(above=0))
    projection: Literal["none", "official"] = option(
        "none", "none, or official: two more layers, 256 wide, between extractor and classifier"
    )

    def prepare(self, model: Model) -> Model:
        """Put the projection between extractor and classifier."""
        if self.projection == "none":
            return model
        width = model.width
        # Drawn by the network's own weights, which the experiment's seed has drawn.
        origin = model.init_params()["classifier"]["weight"].float().cpu().contiguous().numpy()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(origin))
            hidden, projected = nn.Linear(width, width), nn.Linear(width, PROJECTED)
            return model.with_classifier(hidden, nn.ReLU(), projected, nn.Linear(PROJECTED, self.setup.num_classes))

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps the extractor of its last round, once it had one, with its buffers."""
        return _state(params, key.new_zeros((), dtype=torch.bool))

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the received model, its features drawn to those it came with and away from those of the last time."""
        received = self.personal_params(client, download)
        params = train_together(self, received, data, key, self._objective(client, received, data))
        kept = _state(params, torch.ones_like(client["has_previous"]))
        return LocalResult(kept, self.upload_of(params, data), params, diagnostics={})

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds the received model."""
        return {"buffers": client["previous_model"]["buffers"], **download}

    def _objective(self, client: Tree, received: Tree, data: ClientData) -> Objective:
        """Return cross-entropy plus the contrastive loss of a client that has a previous model."""
        model, adjustment = self.setup.model, self.adjustment(data)
        if self.contrastive_weight == 0:
            return supervised_loss(model, adjustment)
        look_global = _frozen_features(model, received, data)
        look_previous = _frozen_features(model, client["previous_model"], data)

        def objective(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            z, buffers = model.features(params, batch.x, train=True)
            plain = model.loss(params, z, batch.y, batch.counted, adjustment)
            seen, y, mask = model.instances(z, batch.y, batch.mask)
            others = (model.instances(look(batch), batch.y, batch.mask).z for look in (look_global, look_previous))
            cosines = torch.stack([_cosine(seen, other) for other in others], dim=-1)
            # The right answer of two is the global model, which is the first.
            counted = None if batch.counted is None else mask
            contrast = cross_entropy(cosines / self.temperature, torch.zeros_like(y), counted)
            contrast = torch.where(client["has_previous"], contrast, torch.zeros_like(contrast))
            return plain + self.contrastive_weight * contrast, buffers

        return objective


def _state(params: Tree, has_previous: Tensor) -> Tree:
    """Return what a client keeps: features need no classifier."""
    return {"previous_model": select(params, ("extractor", "buffers")), "has_previous": has_previous}


def _frozen_features(model: Model, params: Tree, data: ClientData) -> Callable[[Batch], Tensor]:
    """Return what gives the features of a batch in evaluation mode, computed once for all if they stay the same."""
    if data.is_augmented or model.reads_batches:
        return lambda batch: model.features(params, batch.x)[0]
    z = all_features(model, params, data)
    return lambda batch: z[batch.ids]


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    """Return the cosine of each pair of rows; 0, with a slope that stays small, where one has no direction."""
    return (_direction(one) * _direction(other)).sum(-1)


def _direction(z: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z / length.masked_fill(length < SHORTEST, 1)
