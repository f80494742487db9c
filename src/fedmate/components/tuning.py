"""Fine-tuning a copy of a model on a client's data, for evaluation only."""

from __future__ import annotations

from torch import Tensor

from fedmate.core.data import ClientData, batches
from fedmate.core.local import fit, supervised_loss
from fedmate.core.method import Setup
from fedmate.core.tree import Tree


def tune_classifier(setup: Setup, params: Tree, data: ClientData, epochs: int, key: Tensor) -> Tree:
    """Train the classifier alone for some epochs, the extractor frozen, with the shared optimiser."""
    training = setup.training
    return fit(
        supervised_loss(setup.model, train_extractor=False),
        params,
        batches(data, training.batch_size, epochs, key),
        training.optimiser(),
        ("classifier",),
    )
