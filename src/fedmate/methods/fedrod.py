"""FedRoD: a generic classifier that forgets who trained it, and a personal one on top of it.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022.
Extractor and generic classifier minimise the balanced softmax (Ren et al., NeurIPS 2020), which takes a client's label
distribution out of its logits; a personal classifier learns what is left, and disturbs neither.

Deviations:
- personal classifiers are linear and the client's own; there is no hyper-network that makes them from label counts;
- the generic loss is the balanced softmax with exponent 1 (`calibration`, if that is not 0), not another of the paper's
  family of robust losses;
- both losses take one step per batch, from one pass of the extractor, with one optimiser: that of the shared protocol;
- a personal classifier starts at zero, so that a client that never trained holds the generic model;
- logits of a linear layer add up as its parameters do, so that both classifiers become one layer; other classifiers are
  refused;
- a class the client lacks is left out of its softmax (log 0), by a mask: a client of one class has nothing to tell
  about the generic model, and moves it by weight decay alone;
- the average is weighted by size; buffers follow the model's declaration.

There is no preset: the authors published no code, and what we could read of the paper does not settle the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedmate.core import (
    MODEL_PARTS,
    Adjustment,
    Batch,
    ClientData,
    LocalResult,
    Model,
    Objective,
    Tree,
    fit,
    option,
    prior_adjustment,
    select,
    tree_map,
)
from fedmate.errors import UserError
from fedmate.methods.base import SharedServer


@final
@dataclass(frozen=True, kw_only=True)
class FedRoD(SharedServer):
    """A balanced generic classifier that is shared, and a personal one added to it."""

    citation: ClassVar[str] = "fedrod2022"

    balanced: bool = option(True, "balanced softmax for the generic classifier; off: plain cross-entropy")

    def prepare(self, model: Model) -> Model:
        """Refuse a classifier that is not one linear layer: the sum of two would be no such classifier."""
        found = sorted(model.init_params()["classifier"])
        if not {"weight"} <= set(found) <= {"weight", "bias"}:
            raise UserError(
                "`classifier` must be a single linear layer, for this method adds two of them up; it has the "
                f"parameters {', '.join(f'`{name}`' for name in found)}: name the last layer alone."
            )
        return model

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps its personal classifier, at first zero, and its buffers in case they are private."""
        return {"personal_classifier": tree_map(torch.zeros_like, params["classifier"]), **select(params, ("buffers",))}

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the generic model and the personal classifier side by side."""
        params = fit(
            self._objective(data),
            {**client, **download},
            self.setup.training.batches(data, key),
            self.setup.optimiser(),
            ("extractor", "classifier", "personal_classifier"),
        )
        kept = select(params, ("personal_classifier", "buffers"))
        return LocalResult(kept, self.upload_of(params, data), _added_up(params), diagnostics={})

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds the received model, with its personal classifier added to the generic one."""
        return _added_up({**client, **download})

    def _objective(self, data: ClientData) -> Objective:
        """Return the sum of both losses; each reaches the parameters it is for, and no other."""
        model, adjustment = self.setup.model, self.adjustment(data)
        generic_adjustment = self._balance(data) if self.balanced else adjustment

        def objective(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            z, buffers = model.features(params, batch.x, train=True)
            generic = model.loss(params, z, batch.y, batch.counted, generic_adjustment)
            fixed = {**params, "classifier": tree_map(torch.detach, params["classifier"])}
            personal = model.loss(_added_up(fixed), z.detach(), batch.y, batch.counted, adjustment)
            return generic + personal, buffers

        return objective

    def _balance(self, data: ClientData) -> Adjustment:
        """Return what the balanced softmax adds: as calibration does, and without it with weight 1.

        Counts, not shares: a softmax does not see what all its classes have in common.
        """
        counts, objective = self.counts(data), self.setup.objective
        lacking = objective.absent_share * bool(objective.calibration) * counts.sum()
        logits = prior_adjustment(torch.where(counts > 0, counts, lacking), objective.calibration or 1.0)
        return self.adjustment(data)._replace(logits=logits)


def _added_up(params: Tree) -> Tree:
    """Return the personalised model: one layer whose logits are those of both classifiers together."""
    return {
        **select(params, MODEL_PARTS),
        "classifier": tree_map(torch.add, params["classifier"], params["personal_classifier"]),
    }
