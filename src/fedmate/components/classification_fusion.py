"""Complementary classification fusion (CCF): two discriminators keep a classifier both global and local.

`prototype` (D_pr) tells the client's classifier on global prototypes from the same classifier on the client's own.
`classifier` (D_cl) tells the global classifier from the client's, both on global prototypes. Both call global 1 and
local 0; the client's classifier tries to pass for global, and to recognise its own prototypes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.components.classifier_integration import Reduction, prototype_loss, reduce_classes
from fedmate.components.discriminators import Kind, Rows, adversarial_losses, discriminator_loss
from fedmate.core.data import Batch
from fedmate.core.local import Optimiser, gradient, loop
from fedmate.core.model import Model
from fedmate.core.random import fold
from fedmate.core.task import Adjustment
from fedmate.core.tree import Tree, leaves, where


class Knowledge(NamedTuple):
    """What a client learns from besides its samples; constant during local training."""

    prototypes: Tensor  # the global ones, P_k, `[classes, width]`
    known: Tensor  # which of them exist, `[classes]`
    own: Tensor  # the client's at the start of the round, P_ik, `[classes, width]`
    present: Tensor  # which classes it holds, `[classes]`
    classifier: Tree  # the global one


class Fusion(NamedTuple):
    """How the classifier is trained."""

    weight: float | Tensor | None  # lambda_c, a number or a scalar of this round; `None` leaves fusion out altogether
    kappa: Tensor  # the weight of the adversarial part in this round
    kinds: dict[str, Kind]  # how each discriminator is trained, by name
    reduction: Reduction  # over classes, in eq. 3
    optimiser: Optimiser  # the steps of the classifier and of both discriminators
    discriminator_optimiser: Optimiser
    adjustment: Adjustment | None = None  # of the loss of the client's own samples


class FusedClassifier(NamedTuple):
    """The classifier and the discriminators after the phase, and the losses of its last step."""

    classifier: Tree  # as trained
    discriminators: Tree
    losses: Tensor  # of D_pr, of D_cl and the adversarial one, `[3]`; zeros without fusion


def train_classifier(
    model: Model, params: Tree, discriminators: Tree, knowledge: Knowledge, fusion: Fusion, batches: Iterable[Batch]
) -> FusedClassifier:
    """Train the classifier on features: each of the `frozen_batches` a step of D_pr, of D_cl and of it (eq. 3)."""

    def step(state: Tree, batch: Batch) -> Tree:
        classifier, opponents, losses = state["classifier"], state["discriminators"], state["losses"]
        if fusion.weight is not None:
            compared = compare(model, classifier["variables"], knowledge)
            opponents, found = _train_discriminators(opponents, compared, fusion, fold(batch.key, "penalty"))

        def loss(variables: Tree) -> tuple[Tensor, Tree]:
            plain = model.loss({"classifier": variables}, batch.x, batch.y, batch.counted, fusion.adjustment)
            if fusion.weight is None:
                return plain, {}
            own, adversarial = fusion_losses(model, variables, opponents, knowledge, fusion)
            return plain + fusion.weight * (own + fusion.kappa * adversarial), {"adversarial": adversarial}

        gradients, extra = gradient(loss, classifier["variables"])
        if fusion.weight is not None:
            losses = torch.stack([found["prototype"], found["classifier"], extra["adversarial"]])
        moved = _move(fusion.optimiser, classifier, gradients)
        return {"classifier": moved, "discriminators": opponents, "losses": losses}

    start = {
        "classifier": _at_rest(fusion.optimiser, params["classifier"]),
        "discriminators": {name: _at_rest(fusion.optimiser, d) for name, d in discriminators.items()},
        "losses": next(leaves(params["classifier"])).new_zeros(3),
    }
    end = loop(step, start, batches)
    trained = {name: opponent["variables"] for name, opponent in end["discriminators"].items()}
    return FusedClassifier(end["classifier"]["variables"], trained, end["losses"])


def compare(model: Model, classifier: Tree, knowledge: Knowledge) -> dict[str, Rows]:
    """Return what each discriminator gets to see of the client's `classifier`."""
    params = {"classifier": classifier}
    on_global = model.classify(params, knowledge.prototypes)
    on_own = model.classify(params, knowledge.own)
    by_global = model.classify({"classifier": knowledge.classifier}, knowledge.prototypes)
    return {
        "prototype": Rows(on_global, on_own, knowledge.present & knowledge.known),
        "classifier": Rows(by_global, on_global, knowledge.known),
    }


def fusion_losses(
    model: Model, classifier: Tree, opponents: Tree, knowledge: Knowledge, fusion: Fusion
) -> tuple[Tensor, Tensor]:
    """Return the two parts of l_ccf: the cross-entropy of the client's own prototypes, and the adversarial loss."""
    compared = compare(model, classifier, knowledge)
    own = compared["prototype"].fake
    adversarial = own.new_zeros(())
    for name, rows in compared.items():
        losses = adversarial_losses(opponents[name]["variables"], rows, fusion.kinds[name])
        adversarial = adversarial + reduce_classes(losses, rows.counted, fusion.reduction)
    return prototype_loss(own, knowledge.present, fusion.reduction), adversarial


def _train_discriminators(
    opponents: Tree, compared: dict[str, Rows], fusion: Fusion, key: Tensor
) -> tuple[Tree, dict[str, Tensor]]:
    """Take one step with each discriminator; return them and their losses before the step."""
    following, losses = Tree(), dict[str, Tensor]()
    for name, rows in compared.items():
        kind = fusion.kinds[name]

        def loss(variables: Tree, rows: Rows = rows, kind: Kind = kind) -> tuple[Tensor, Tree]:
            value = discriminator_loss(variables, rows, kind, key)
            return value, {"loss": value}

        gradients, extra = gradient(loss, opponents[name]["variables"])
        moved = _move(fusion.discriminator_optimiser, opponents[name], gradients)
        # With nothing to compare, weight decay alone must not move it.
        following[name], losses[name] = where(rows.counted.any(), moved, opponents[name]), extra["loss"]
    return following, losses


def _at_rest(optimiser: Optimiser, variables: Tree) -> Tree:
    return {"variables": variables, "optimiser": optimiser.init(variables)}


def _move(optimiser: Optimiser, body: Tree, gradients: Tree) -> Tree:
    variables, state = optimiser.step(body["variables"], gradients, body["optimiser"])
    return {"variables": variables, "optimiser": state}
