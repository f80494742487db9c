"""FedPer: the last layers stay with the client, the others are averaged.

Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization Layers", 2019.

Deviations: momentum and weight decay as in the shared protocol; buffers follow the model's declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.prior_calibration import Calibrated
from fedmate.components.supervised import train_together
from fedmate.core import MODEL_PARTS, ClientData, Limits, LocalResult, Tree, Wire, num_samples, option, select


@final
@dataclass(frozen=True, kw_only=True)
class FedPer(Calibrated):
    """Federated averaging with personal last layers, trained together with the shared ones."""

    citation: ClassVar[str] = "fedper2019"

    personal_layers: int = option(
        1, "how many of the last layers stay with the client (K_P); 0 is FedAvg", Limits(at_least=0)
    )

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds the shared layers."""
        return self._split(params)[0]

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps its personal layers, and its buffers in case they are private."""
        return self._split(params)[1]

    def wire(self, round_number: int) -> Wire:
        """The shared layers cross both ways, and the client's size goes up."""
        classifier = ("classifier",) if self.personal_layers == 0 else ()
        parts = frozenset({"extractor", *classifier, *self.setup.model.shared_buffers})
        return Wire(down=parts, up=parts | {"num_samples"})

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train all layers together."""
        params = train_together(self, self.personal_params(client, download), data, key)
        shared, personal = self._split(params)
        return LocalResult(personal, {**shared, "num_samples": num_samples(data)}, params, diagnostics={})

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds the received layers and its own."""
        return {part: {**client.get(part, {}), **download.get(part, {})} for part in MODEL_PARTS}

    def global_params(self, server: Tree) -> Tree | None:
        """There is a global model only if every layer is shared."""
        return select(server, MODEL_PARTS) if self.personal_layers == 0 else None

    def _split(self, params: Tree) -> tuple[Tree, Tree]:
        """Return what the server sees and what stays: the classifier is the last layer, then the extractor's."""
        if self.personal_layers == 0:
            return params, select(params, ("buffers",))
        # From the module, not from the tree: merging what arrived with what was kept shuffles a tree.
        layers = self.setup.model.extractor_layers
        kept = set(layers[max(0, len(layers) - self.personal_layers + 1) :])
        shared, own = Tree(), Tree()
        for name, tensor in params["extractor"].items():
            (own if name.rpartition(".")[0] in kept else shared)[name] = tensor
        buffers = select(params, ("buffers",))
        return {"extractor": shared, **buffers}, {"extractor": own, "classifier": params["classifier"], **buffers}
