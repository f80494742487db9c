"""FedAvg in pfl-research (the package `pfl`): its simulated back end, one process, one client after the other.

Its own FedAvg trains PyTorch models on tensors that lie on the device, without evaluation and without privacy; samples
are not shuffled between epochs. Threads are chosen as for `plain_loop`.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.baselines.plain_loop import Held, PlainLoop
from benchmarks.case import ROUNDS, Case
from benchmarks.measure import Timing, time_rounds


class Learner(nn.Module):
    """The network with the loss that pfl asks for."""

    def __init__(self, network: nn.Module, held: Held) -> None:
        super().__init__()
        self.network, self._held = network, held

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(self.network(self._held.augment(x)), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return nothing: pfl requires this function, but does not evaluate here."""
        return {}


@final
class PflRound(PlainLoop):
    """Rounds of pfl's FedAvg."""

    name = "pfl"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        os.environ["PFL_PYTORCH_DEVICE"] = case.device
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.model.pytorch import PyTorchModel

        training, model = self.setup.training, self.setup.model
        learner = Learner(model.to_module(model.init_params()).train(), self.clients[0])
        steps = partial(torch.optim.SGD, momentum=training.momentum, weight_decay=training.weight_decay)
        self.model = PyTorchModel(learner, steps, torch.optim.SGD(learner.parameters(), lr=1.0))
        self._algorithm = FederatedAveraging()
        data = _datasets(self.clients)
        self._backend = SimulatedBackend(data, data)

    @property
    def server(self) -> list[Tensor]:
        """The common model's parameters."""
        return [parameter.detach() for parameter in self.model.pytorch_model.parameters()]

    def loop(self, number: int) -> None:
        """Train all clients and average."""
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.common_types import Population
        from pfl.context import CentralContext
        from pfl.hyperparam import NNTrainHyperParams

        training, clients = self.setup.training, len(self.clients)
        context = CentralContext(
            current_central_iteration=number,
            do_evaluation=False,
            cohort_size=clients,
            population=Population.TRAIN,
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=ROUNDS,
                evaluation_frequency=ROUNDS,
                train_cohort_size=clients,
                val_cohort_size=None,
            ),
            model_train_params=NNTrainHyperParams(
                local_num_epochs=training.epochs,
                local_learning_rate=training.learning_rate,
                local_batch_size=training.batch_size,
            ),
            seed=number,
        )
        found, metrics = self._backend.gather_results(self.model, self._algorithm, central_context=context)
        self._algorithm.process_aggregated_statistics(context, metrics, self.model, found)


def _datasets(clients: list[Held]) -> Any:
    """Return the data of all clients; each round meets each client once."""
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler

    made = [PyTorchTensorDataset((held.x, held.y), user_id=str(i)) for i, held in enumerate(clients)]
    return FederatedDataset(made.__getitem__, get_user_sampler("minimize_reuse", list(range(len(made)))))


def measure(case: Case, repeat: int) -> Timing:
    """Time the rounds of a case."""
    return time_rounds(case, PflRound, repeat)
