"""FedRep: a shared extractor, personal classifiers, trained one after the other.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning",
ICML 2021.

Deviations, all from the shared protocol: one classifier epoch with its own learning rate, then `training.epochs` of
the extractor (the authors train the classifier longer: preset `authors`); each phase has an optimiser of its own, so
that momentum and weight decay cannot move the frozen part; weight decay on biases too; the average is weighted by size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.supervised import train_together, tune_classifier
from fedmate.core import ClientData, Limits, LocalResult, Presets, Tree, fold, option
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class FedRep(PartialSharing):
    """Federated learning of a shared representation."""

    shared: ClassVar[tuple[str, ...]] = ("extractor",)

    presets: ClassVar[Presets] = {
        "authors": {
            "method": {"classifier_epochs": 10, "classifier_learning_rate": 0.01},
            "training": {"batch_size": 10, "epochs": 1, "learning_rate": 0.01, "momentum": 0.5, "weight_decay": 1e-4},
        },
    }

    citation: ClassVar[str] = "fedrep2021"

    classifier_epochs: int = option(1, "passes that train the classifier, the extractor frozen", Limits(at_least=0))
    classifier_learning_rate: float = option(0.1, "step size of those passes", Limits(at_least=0))
    tuning_epochs: int = option(
        10, "epochs of the `classifier_tuned` view: `pre`, its classifier fine-tuned", Limits(at_least=0)
    )

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the classifier with the extractor frozen, then the extractor with the classifier frozen."""
        params, own_key = self.personal_params(client, download), fold(key, "classifier")
        params = tune_classifier(self, params, data, self.classifier_epochs, own_key, self.classifier_learning_rate)
        params = train_together(self, params, data, fold(key, "extractor"), parts=("extractor",))
        return self.result(params, data)

    def extra_views(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> dict[str, Tree]:
        """The received extractor with the client's classifier tuned to it, as the authors evaluate at the end."""
        params = self.personal_params(client, download)
        return {"classifier_tuned": tune_classifier(self, params, data, self.tuning_epochs, key)}
