"""FedAvg: clients train the common model, the server averages it.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017. Its `post` view is FT-FedAvg: the global model after a client's local training.

With `server_momentum` it is FedAvgM (`components/server_momentum.py`).

Deviations: momentum and weight decay as in the shared protocol; buffers follow the model's declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.prior_calibration import Calibrated
from fedmate.components.server_momentum import ServerMomentum
from fedmate.components.supervised import train_together, tune_classifier
from fedmate.core import (
    MODEL_PARTS,
    ClientData,
    Limits,
    LocalResult,
    Tree,
    Wire,
    num_samples,
    option,
    select,
)


@final
@dataclass(frozen=True, kw_only=True)
class FedAvg(Calibrated, ServerMomentum):
    """Federated averaging of the whole model."""

    is_global: ClassVar[bool] = True
    moving: ClassVar[tuple[str, ...]] = ("extractor", "classifier")

    citation: ClassVar[str] = "fedavg2017"

    tuning_epochs: int = option(
        5, "epochs of the `classifier_tuned` view: the global model, its classifier fine-tuned", Limits(at_least=0)
    )

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds the common model."""
        return {**params, **self.at_rest(params)}

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps its buffers, in case they are private; the model is overwritten each round."""
        return select(params, ("buffers",))

    def wire(self, round_number: int) -> Wire:
        """The model crosses both ways, and the client's size goes up."""
        parts = frozenset({"extractor", "classifier", *self.setup.model.shared_buffers})
        return Wire(down=parts, up=parts | {"num_samples"})

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        """Send the model."""
        return select(server, MODEL_PARTS)

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the received model."""
        params = train_together(self, self.personal_params(client, download), data, key)
        upload = {**params, "num_samples": num_samples(data)}
        return LocalResult(client=select(params, ("buffers",)), upload=upload, params=params, diagnostics={})

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor) -> Tree:
        """Average the models by n_i."""
        return self.mix(server, uploads, valid)

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds the received model."""
        return {**client, **download}

    def global_params(self, server: Tree) -> Tree | None:
        """The average."""
        return select(server, MODEL_PARTS)

    def extra_views(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> dict[str, Tree]:
        """The received model with its classifier fine-tuned, the other reading of FT-FedAvg."""
        params = self.personal_params(client, download)
        return {"classifier_tuned": tune_classifier(self, params, data, self.tuning_epochs, key)}
