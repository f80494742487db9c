"""FedFA: features are drawn to common anchors, classifiers are calibrated on them.

Zhou, Zhang and Tsang, "FedFA: Federated Learning with Feature Anchors to Align Features and Classifiers for
Heterogeneous Data", IEEE Transactions on Mobile Computing, 2024 (not the FedFA of feature augmentation).

Deviations, from the authors' code: an epoch's mean feature of a class is over the batches that contain the class, where
that code divides by the number of all batches, which draws the anchors of rare classes to 0 (`divide_by`); the learning
rate shrinks only with a `schedule`; momentum and weight decay as in the shared protocol; clients draw different random
numbers; with `steps`, a round is one epoch. As there, features are those of the training pass, before the step that
they lead to; a client without a class returns the anchor it received, and counts with its size in their average. The
primary view is the model after local training, which the figures published for personal use evidently are; the authors
evaluate the global one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from fedmate.components.feature_anchors import anchor_loss, calibration_loss, initial_anchors
from fedmate.core import (
    MODEL_PARTS,
    TRAINED,
    Adam,
    Adjustment,
    Batch,
    ClientData,
    Instances,
    Limits,
    LocalResult,
    Method,
    Model,
    Presets,
    Tree,
    Wire,
    class_means,
    gradient,
    loop,
    num_samples,
    option,
    select,
)

NOT_NEGATIVE = Limits(at_least=0)


@final
@dataclass(frozen=True, kw_only=True)
class FedFA(Method):
    """Federated averaging with feature anchors: aligned features, calibrated classifiers."""

    primary_view: ClassVar[str] = "post"

    is_global: ClassVar[bool] = True

    presets: ClassVar[Presets] = {
        "authors": {
            "method": {
                "anchor_weight": 0.1,
                "anchor_momentum": 0.5,
                "calibration_learning_rate": 1e-3,
                "divide_by": "all",
            },
            "training": {"batch_size": 64, "epochs": 5, "learning_rate": 0.01, "momentum": 0.0, "weight_decay": 1e-3},
        }
    }

    citation: ClassVar[str] = "fedfa2024"

    anchor_weight: float = option(0.1, "weight of the distance to the anchors (Lambda)", NOT_NEGATIVE)
    anchor_momentum: float = option(
        0.5, "how much of an anchor an epoch keeps; the rest is its mean feature", Limits(at_least=0, at_most=1)
    )
    calibration_learning_rate: float = option(
        1e-3, "step size of Adam, which calibrates the classifier on the anchors; 0 is off", NOT_NEGATIVE
    )
    divide_by: Literal["own", "all"] = option(
        "own", "a class's features are averaged over its own batches, or divided by all as in the authors' code"
    )

    def prepare(self, model: Model) -> Model:
        """Ask for the width of the features: a classifier that is not one linear layer is refused there."""
        _ = model.width
        return model

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds the model and the anchors."""
        weight = params["classifier"]["weight"]
        return {
            **params,
            **self.server.init(params),
            "anchors": initial_anchors(self.setup.num_classes, weight.shape[1], key, weight.dtype),
        }

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps its buffers in case they are private."""
        return select(params, ("buffers",))

    def wire(self, round_number: int) -> Wire:
        """Model and anchors cross both ways, and the client's size goes up."""
        parts = frozenset({"extractor", "classifier", "anchors", *self.setup.model.shared_buffers})
        return Wire(down=parts, up=parts | {"num_samples"})

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        """Send model and anchors."""
        return select(server, (*MODEL_PARTS, "anchors"))

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the received model with the received anchors, and find where the client's own features lie."""
        training, anchors = self.setup.training, download["anchors"]
        params = self.personal_params(client, download)
        state: Tree = {
            "params": params,
            "optimiser": self.setup.optimiser().init(select(params, TRAINED)),
            "calibration": self._adam.init(params["classifier"]),
        }
        nothing = {"sums": torch.zeros_like(anchors), "divisors": torch.zeros_like(anchors[:, :1])}
        own, means = anchors, torch.zeros_like(anchors)
        present = self.setup.class_counts(data) > 0
        step = self._step(anchors, self.adjustment(data))
        stream = training.batches(data, key)
        # A fixed number of steps counts as one epoch: clients of other sizes end theirs at other steps.
        epochs, steps_of_epoch = math.ceil(training.epochs), -(-data.rows.shape[0] // training.batch_size)
        if training.steps:
            epochs, steps_of_epoch = 1, training.steps
        for _ in range(epochs):
            state = loop(step, {**state, **nothing}, islice(stream, steps_of_epoch))
            means = state["sums"] / state["divisors"].clamp(min=1)
            moved = self.anchor_momentum * own + (1 - self.anchor_momentum) * means
            own = torch.where(present[:, None], moved, own)
        params = state["params"]
        upload = {**params, "anchors": own, "num_samples": num_samples(data)}
        # Recorded are the means of the last epoch: unlike anchors they hold nothing that was received.
        return LocalResult(select(params, ("buffers",)), upload, params, diagnostics={"prototypes": means})

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        """Average models and anchors by n_i."""
        return self.server.update(server, uploads, valid, parts=(*MODEL_PARTS, "anchors"))

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds the received model."""
        return {**client, **select(download, MODEL_PARTS)}

    @property
    def _adam(self) -> Adam:
        return Adam(self.calibration_learning_rate * self.setup.rate_factor)

    def _step(self, anchors: Tensor, adjustment: Adjustment | None) -> Callable[[Tree, Batch], Tree]:
        """Return a step of SGD on the whole model and one of Adam on the classifier, which also collects features."""
        model, optimiser = self.setup.model, self.setup.optimiser()

        def loss(params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            z, buffers = model.features(params, batch.x, train=True)
            instances = model.instances(z, batch.y, batch.mask)
            plain = model.loss(params, z, batch.y, batch.counted, adjustment)
            following = {"instances": instances._asdict(), "buffers": buffers}
            return plain + self.anchor_weight * anchor_loss(instances, anchors), following

        def step(state: Tree, batch: Batch) -> Tree:
            params = state["params"]
            variables = select(params, TRAINED)
            gradients, found = gradient(lambda v: loss({**params, **v}, batch), variables)
            variables, following = optimiser.step(variables, gradients, state["optimiser"])
            classifier, calibration = self._calibrate(variables["classifier"], anchors, state["calibration"])
            means, counts = class_means(*Instances(**found["instances"]), anchors.shape[0])
            counted = counts > 0 if self.divide_by == "own" else torch.ones_like(counts)
            return {
                "params": {**params, **variables, "classifier": classifier, "buffers": found["buffers"]},
                "optimiser": following,
                "calibration": calibration,
                "sums": state["sums"] + means,
                "divisors": state["divisors"] + counted[:, None],
            }

        return step

    def _calibrate(self, classifier: Tree, anchors: Tensor, state: Tree) -> tuple[Tree, Tree]:
        """Take a step of Adam on the anchors, each to be recognised as its class."""
        if not self.calibration_learning_rate:
            return classifier, state
        gradients, _ = gradient(lambda v: (calibration_loss(self.setup.model, v, anchors), {}), classifier)
        return self._adam.step(classifier, gradients, state)
