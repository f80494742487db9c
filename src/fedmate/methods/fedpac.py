"""FedPAC: features are drawn to common prototypes, and a client's classifier is combined of all clients' classifiers.

Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", ICLR 2023.
The weights of a combination trade its bias, by how features differ between clients, against its variance.

Deviations, from the authors' code:
- statistics and prototypes are those of samples as they are, in evaluation mode; that code crops and mirrors them;
- the quadratic program is solved to rounding by our own method instead of a package; V is at least 1e-7 of the mean
  diagonal of diag(V) + D, where that code leaves out eigenvalues below 0.01 once one of them is negative;
- weights below the threshold are dropped unless all of them are (as among a thousand clients alike), when all stay;
- classes without a prototype are masked; a class without a holder is an error in that code;
- alignment begins when the server has a prototype, not in the second round: the same unless all clients of the first
  one diverge. From then on a class without a global prototype is drawn to the client's own, until then none is;
- clients that take part receive the broadcast; the others keep the combination of their last round;
- held-out clients and the `global` view have the average of the classifiers, weighted by size; that code has none;
- buffers follow the model's declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from fedmate.components.classifier_collaboration import (
    FeatureStatistics,
    combine,
    combining_weights,
    drop_small,
    local_statistics,
)
from fedmate.components.prototypes import Centres, centred_loss, local_prototypes, mix_prototypes
from fedmate.components.supervised import train_together, tune_classifier
from fedmate.core import (
    MODEL_PARTS,
    Adjustment,
    ClientData,
    Limits,
    LocalResult,
    Method,
    Model,
    Objective,
    Presets,
    Tree,
    Wire,
    fold,
    option,
    select,
    tree_map,
)


@final
@dataclass(frozen=True, kw_only=True)
class FedPAC(Method):
    """Feature alignment and classifiers combined for each client."""

    presets: ClassVar[Presets] = {
        # As on CIFAR-10; the learning rate is 0.01 on the other data sets of the paper.
        "authors": {
            "method": {
                "classifier_epochs": 1,
                "classifier_learning_rate": 0.1,
                "alignment_weight": 1.0,
                "threshold": 1e-3,
            },
            "training": {"batch_size": 50, "epochs": 5, "learning_rate": 0.02, "momentum": 0.5, "weight_decay": 5e-4},
        },
    }

    citation: ClassVar[str] = "fedpac2023"

    classifier_epochs: int = option(1, "passes that train the classifier, the extractor frozen", Limits(at_least=0))
    classifier_learning_rate: float = option(0.1, "step size of those passes", Limits(at_least=0))
    alignment_weight: float = option(1.0, "weight of the distance to the prototypes (lambda)", Limits(at_least=0))
    threshold: float = option(1e-3, "the least weight in a combination", Limits(at_least=0, below=1))

    def prepare(self, model: Model) -> Model:
        """Ask for the width of the features: a classifier that is not one linear layer is refused there."""
        _ = model.width
        return model

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds the average model, a classifier for each client and, once sent, prototypes."""
        weight, classes = params["classifier"]["weight"], self.setup.num_classes
        return {
            **params,
            **self.server.init(params, ("extractor",)),
            "classifiers": tree_map(lambda leaf: torch.stack([leaf] * num_clients), params["classifier"]),
            "prototypes": weight.new_zeros(classes, weight.shape[1]),
            "known": torch.zeros(classes, dtype=torch.bool, device=weight.device),
            "diagnostics": {"weights": weight.new_zeros(num_clients, num_clients)},
        }

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps its buffers in case they are private."""
        return select(params, ("buffers",))

    def wire(self, round_number: int) -> Wire:
        """The model and prototypes cross both ways, statistics of the features go up."""
        parts = frozenset({"extractor", "classifier", "prototypes", *self.setup.model.shared_buffers})
        return Wire(down=parts | {"known"}, up=parts | {"statistics", "class_counts"})

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        """Send the extractor, the prototypes and the client's own classifier; -1 gets the average."""
        row = client_id.clamp(min=0)[None]
        classifier = tree_map(
            lambda rows, average: torch.where(client_id < 0, average, rows.index_select(0, row)[0]),
            server["classifiers"],
            server["classifier"],
        )
        return {**select(server, ("extractor", "buffers", "prototypes", "known")), "classifier": classifier}

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the classifier with the extractor frozen, then the extractor towards the prototypes."""
        model, classes = self.setup.model, self.setup.num_classes
        params, own_key = self.personal_params(client, download), fold(key, "classifier")
        received, adjustment = local_statistics(model, params, data, classes), self.adjustment(data)
        params = tune_classifier(self, params, data, self.classifier_epochs, own_key, self.classifier_learning_rate)
        objective = self._alignment(download, received, adjustment)
        params = train_together(self, params, data, fold(key, "extractor"), objective, ("extractor",))
        prototypes, counts = local_prototypes(model, params, data, classes)
        statistics = {"shares": received.shares, "variance": received.variance}
        upload = {**params, "prototypes": prototypes, "statistics": statistics, "class_counts": counts}
        return LocalResult(select(params, ("buffers",)), upload, params, diagnostics={"prototypes": prototypes})

    def _alignment(self, download: Tree, received: FeatureStatistics, adjustment: Adjustment | None) -> Objective:
        """Return cross-entropy plus the distance to the prototypes, the client's own where there is no global one."""
        known = download["known"]
        centres = torch.where(known[:, None], download["prototypes"], received.prototypes)
        # Without a prototype there is nothing to agree on.
        centred = (known | (received.counts > 0)) & known.any()
        return centred_loss(self.setup.model, Centres(centres, centred, self.alignment_weight), adjustment)

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        """Average extractors by n_i and prototypes by n_ik, and combine classifiers for each participant."""
        counts, statistics = uploads["class_counts"], uploads["statistics"]
        prototypes, known = mix_prototypes(server["prototypes"], server["known"], uploads["prototypes"], counts, valid)
        weights = combining_weights(statistics["shares"], statistics["variance"], valid)
        weights = drop_small(weights, self.threshold)
        combined = combine(uploads["classifier"], weights, valid)

        def by_client(everyone: Tensor, rows: Tensor) -> Tensor:
            counted = valid.reshape(-1, *[1] * (rows.dim() - 1))
            kept = torch.where(counted, rows, everyone.index_select(0, client_ids))
            return everyone.index_copy(0, client_ids, kept)

        no_weights = torch.zeros_like(server["diagnostics"]["weights"])
        columns = no_weights.index_select(0, client_ids).index_copy(1, client_ids, weights.to(no_weights.dtype))
        return {
            **self.server.update(server, {**uploads, "num_samples": counts.sum(1)}, valid, moving=("extractor",)),
            "classifiers": tree_map(by_client, server["classifiers"], combined),
            "prototypes": prototypes,
            "known": known,
            "diagnostics": {"weights": no_weights.index_copy(0, client_ids, columns)},
        }

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds the received extractor and the classifier combined for it."""
        return {**client, **select(download, MODEL_PARTS)}
