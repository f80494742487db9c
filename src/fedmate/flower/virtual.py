"""A virtual client: in whatever process it is asked, it is rebuilt from its run's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch import Tensor

from fedmate.core import Federation, Method, make_key
from fedmate.experiment.build import make_method
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import Experiment
from fedmate.experiment.partitioning import make_federation, split_samples
from fedmate.experiment.prepare import stored_experiment
from fedmate.experiment.signature import Signature
from fedmate.experiment.user_inputs import UserInputs
from fedmate.flower.client import Site, now
from fedmate.flower.client_state import SITES, ClientState


@final
@dataclass(frozen=True)
class Home:
    """What the clients of a run have in common.

    Attributes:
        folder: the run's.
        experiment: as it is declared there.
        method: with its setup.
        federation: who holds what.
    """

    folder: Path
    experiment: Experiment
    method: Method
    federation: Federation

    @property
    def key(self) -> Tensor:
        """The experiment's randomness."""
        return make_key(self.experiment.general.seed, self.experiment.general.device)

    def site(self, client: int, token: str) -> Site:
        """Return a client as a site; `token` tells its states from those of other runs."""
        return Site(
            client,
            len(self.federation.clients),
            self.method,
            self.federation.clients[client],
            self.federation.test,
            self.key,
            ClientState(self.folder / SITES, token, client),
            now,
            self.experiment.general.precision,
        )


def rebuild(folder: Path, given: UserInputs) -> Home:
    """Load the data of a run, deal them as it does, and start from the parameters it started from."""
    experiment = stored_experiment(folder)
    initial, note = Checkpoint(folder).initial()
    method = make_method(experiment, Signature.from_dict(note), given, initial)
    return Home(folder, experiment, method, make_federation(experiment, split_samples(experiment, given)))
