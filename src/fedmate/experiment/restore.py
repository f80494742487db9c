"""A run's states, read back without its data: for exported models and unseen clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, final

from torch import Tensor, nn

from fedmate.backends import BACKENDS
from fedmate.core import Method, Tree, fold, make_key, select
from fedmate.core.tree import DamagedError
from fedmate.errors import UserError
from fedmate.experiment.build import Signature, make_method
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import Experiment
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.prepare import stored_experiment
from fedmate.experiment.record import Record

Content = TypeVar("Content")

ATTEMPTS = 5
"""How often to read from a run that goes on and replaces its checkpoint while it is being read."""


@final
class Restored:
    """The states of a run after its last checkpoint, on the CPU.

    Args:
        folder: the run's folder.
        module: the network, if it came from Python.
    """

    def __init__(self, folder: Path, module: nn.Module | None = None) -> None:
        """Read everything but the clients, or raise `UserError`."""
        self.folder = folder
        self.experiment: Experiment = stored_experiment(folder).with_general(device="cpu")
        given = self.experiment.model.name == "given"
        if given and module is None:
            raise UserError(
                f"`{folder}` trained a network that came from Python and is in no file; pass it as `model` in "
                "Python: `fedmate.export(..., model=...)`, `fedmate.adapt(..., model=...)`."
            )
        if module is not None and not given:
            raise UserError(f"`model` is given, but `{folder}` trained `{self.experiment.model.name}`; leave it out.")
        UserInputs(module=module).check(self.experiment)
        self.checkpoint = Checkpoint(self.folder)
        tensors, note = self.checkpoint.initial()
        try:
            self.signature = Signature.from_dict(note)
            self.method: Method = make_method(self.experiment, self.signature, UserInputs(module=module), tensors)
        except (DamagedError, KeyError, TypeError, ValueError) as error:
            raise self.checkpoint.damaged("initial.safetensors", str(error)) from None
        self.server = self.checkpoint.server(
            self.method.init_server(self.method.setup.model.init_params(), self.num_clients, fold(self.key, "server"))
        )

    @property
    def round(self) -> int:
        """How many rounds its states have behind them."""
        return self.checkpoint.state.round

    @property
    def num_clients(self) -> int:
        """How many clients were in training."""
        return len(self.checkpoint.versions)

    @property
    def key(self) -> Tensor:
        """The experiment's randomness."""
        return make_key(self.experiment.general.seed)

    def client(self, client: int) -> Tree:
        """Return a client's state."""
        params = self.method.setup.model.init_params()
        initial = self.method.init_client(params, fold(self.key, "client", client))
        backend = BACKENDS[self.experiment.general.backend]
        if backend.is_remote:
            return backend.stored_client(self.folder, client, self.round, initial)
        return self.checkpoint.client(client, initial)

    def download(self, client: Tensor) -> Tree:
        """Return the next broadcast, as a client would receive it."""
        return select(self.method.download(self.server, client), self.method.wire(self.round).down)


def read_steadily(folder: Path, read: Callable[[], Content]) -> Content:
    """Read from a run that may be going on: if its checkpoint is replaced meanwhile, read again."""
    Record(folder)
    for _ in range(ATTEMPTS - 1):
        standing = Checkpoint(folder).state
        try:
            return read()
        except UserError:
            if Checkpoint(folder).state == standing:
                raise
    return read()
