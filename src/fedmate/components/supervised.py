"""Plain supervised training of a client's model, as several methods do it."""

from __future__ import annotations

from torch import Tensor

from fedmate.core.data import ClientData, batches
from fedmate.core.frozen import classifier_loss, frozen_batches
from fedmate.core.local import Objective, fit, supervised_loss
from fedmate.core.method import Method
from fedmate.core.tree import Tree


def train_together(
    method: Method,
    params: Tree,
    data: ClientData,
    key: Tensor,
    objective: Objective | None = None,
    parts: tuple[str, ...] = ("extractor", "classifier"),
    *,
    epochs: int | None = None,
    rate: float | None = None,
) -> Tree:
    """Train parts of a model together, on the loss of the task or on another objective.

    The length and the learning rate are those of `[training]` unless epochs or a rate are given.
    """
    training = method.setup.training
    steps = training.batches(data, key) if epochs is None else batches(data, training.batch_size, epochs, key)
    wanted = objective or supervised_loss(method.setup.model, method.adjustment(data))
    return fit(wanted, params, steps, method.setup.optimiser(rate), parts)


def tune_classifier(
    method: Method, params: Tree, data: ClientData, epochs: int, key: Tensor, learning_rate: float | None = None
) -> Tree:
    """Train the classifier alone for some epochs, the extractor frozen."""
    model, training = method.setup.model, method.setup.training
    steps = frozen_batches(model, params, data, training.batch_size, epochs, key)
    objective = classifier_loss(model, method.adjustment(data))
    return fit(objective, params, steps, method.setup.optimiser(learning_rate), ("classifier",))
