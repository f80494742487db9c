"""FedProx: FedAvg whose clients are kept near the model they received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020.

Deviations: every client does a round's whole work (the paper lets slow ones stop early); clients are drawn alike and
averaged by size (the paper draws them by size and averages alike); momentum and weight decay as in the shared
protocol, the proximal pull being part of the gradient they act on; buffers follow the model's declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor

from fedmate.components.aggregation import mix_by_size
from fedmate.components.prior_calibration import Calibrated
from fedmate.components.proximal import proximal_loss
from fedmate.components.supervised import train_together
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
    supervised_loss,
)


@final
@dataclass(frozen=True, kw_only=True)
class FedProx(Calibrated):
    """Federated averaging with a proximal term."""

    is_global: ClassVar[bool] = True

    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "authors": {
            "method": {"proximal_weight": 1.0},
            "training": {"batch_size": 10, "epochs": 20, "learning_rate": 0.01, "momentum": 0.0, "weight_decay": 0.0},
        }
    }
    citation: ClassVar[str] = "fedprox2020"

    proximal_weight: float = option(
        0.1, "weight of half the squared distance to the received model (mu); 0 is FedAvg", Limits(at_least=0)
    )

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds the common model."""
        return params

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
        """Train the received model, not too far away from where it was."""
        received = self.personal_params(client, download)
        plain = supervised_loss(self.setup.model, self.adjustment(data))
        objective = proximal_loss(plain, received, self.proximal_weight)
        params = train_together(self, received, data, key, objective)
        upload = {**params, "num_samples": num_samples(data)}
        return LocalResult(client=select(params, ("buffers",)), upload=upload, params=params, diagnostics={})

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor) -> Tree:
        """Average the models by n_i."""
        return mix_by_size(server, uploads, valid)

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds the received model."""
        return {**client, **download}

    def global_params(self, server: Tree) -> Tree | None:
        """The average."""
        return select(server, MODEL_PARTS)
