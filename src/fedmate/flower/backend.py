"""The back end `flower`: clients live where Flower runs them, in a simulation unless told otherwise."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

from torch import Tensor

from fedmate import storage
from fedmate.backends.precision import Precision
from fedmate.core import Federation, Method, Tree
from fedmate.errors import UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.user_inputs import NO_INPUTS, UserInputs
from fedmate.flower.client_state import SITES, ClientState
from fedmate.flower.environment import need_flower
from fedmate.flower.messages import Reply, Request, Transport
from fedmate.flower.remote import Remote
from fedmate.flower.simulation import simulated

IDENTITY = "federation.json"
"""The file of a run's folder that says by which token its clients know it."""


class Work(NamedTuple):
    """What a transport is needed for.

    Attributes:
        folder: the run's, as an absolute path.
        experiment: the token that tells the run's states from others.
        clients: how many there are.
        min_clients: how many must answer for a round to count.
        patience: seconds to wait for the next answer.
        given: data and a network that came from Python, and where data sets lie.
        done: how many rounds the run has behind it.
    """

    folder: Path
    experiment: str
    clients: int
    min_clients: int
    patience: float
    given: UserInputs
    done: int = 0


Reach: TypeAlias = Callable[[Work], AbstractContextManager[Transport]]
"""Makes clients reachable while a run is at work."""


@final
class _Nobody(Transport):
    """Stands where a transport will be."""

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        """Refuse."""
        raise RuntimeError("a transport is there only within `at_work`")


@final
class Flower(Remote):
    """Clients that Flower runs: virtual ones on this machine, or sites of their own.

    Attributes:
        reach: makes clients reachable; a simulation, unless it is set.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        key: Tensor,
        *,
        chunk_size: int | None = None,
        precision: Precision = "strict",
    ) -> None:
        """Remember what to do, or raise `UserError` without Flower; nothing is started before `at_work`."""
        need_flower()
        super().__init__(method, federation, key, _Nobody(), precision=precision)
        self.reach: Reach = simulated
        if chunk_size:
            self.notes.append("`chunk_size` is set, but each client is a process of its own on the back end `flower`.")

    @classmethod
    def stored_client(cls, folder: Path, client: int, round_number: int, initial: Tree) -> Tree:
        """Return the state of a virtual client; sites keep theirs elsewhere, which raises `UserError`."""
        place = folder / SITES
        if not place.is_dir():
            raise UserError(
                f"`{folder}` has no states of clients: each site keeps its own, and its model; ask there with "
                "`fedmate deploy status`."
            )
        return ClientState(place, identity(folder), client).begin(round_number, initial)

    @contextmanager
    def at_work(self, folder: Path) -> Iterator[None]:
        """Make clients reachable for the rounds of the run in `folder`."""
        clients = len(self.federation.clients)
        token, done = identity(folder), Checkpoint(folder).state.round
        work = Work(folder.absolute(), token, clients, self.min_clients, self.patience, self.inputs or NO_INPUTS, done)
        with self.reach(work) as transport:
            self.transport = transport
            try:
                yield
            finally:
                self.transport = _Nobody()


def identity(folder: Path) -> str:
    """Return the token of a run, which it gets before its first round; raise `UserError` if it was lost."""
    path = folder / IDENTITY
    if not path.exists() and not Checkpoint(folder).state.round:
        storage.write_new(path, json.dumps({"experiment": secrets.token_hex(16)}).encode() + b"\n")
    try:
        token = json.loads(path.read_bytes())["experiment"]
        if re.fullmatch(r"[0-9a-f]{32}", token) is None:
            raise ValueError("it holds no token")
    except FileNotFoundError:
        raise _lost(path, "it is missing") from None
    except OSError as error:
        raise _lost(path, error.strerror or "it cannot be read") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _lost(path, f"it is not a file of fedmate's, {type(error).__name__}") from None
    return str(token)


def _lost(path: Path, reason: str) -> UserError:
    return UserError(
        f"`{path}` says by which token clients know this run, but cannot be used ({reason}); put it back from a copy, "
        "or start a new run with `--out`."
    )
