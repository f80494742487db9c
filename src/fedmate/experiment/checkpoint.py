"""Checkpoints: the state of a run on disk, so that it can go on from there, and so that models can leave it.

checkpoint/initial.safetensors           the initial parameters, and the network's signature
checkpoint/server-RRRRRR.safetensors     the server's state after round R
checkpoint/clients/NNNNNN-RRRRRR.safetensors    client N's state, unchanged since round R
checkpoint/checkpoint.json               which of these files count, and where the rest of the record stood
checkpoint/lock                          held by the process that runs

Files never change: a checkpoint adds those of the clients that took part since the last one, and then `checkpoint.json`
is replaced in one instant, which is the moment the new checkpoint exists. Then files that no longer count are deleted.
A client without a file has its initial state, which `init_client` gives again. `Restored` reads the states back without
the run's data: for exported models and unseen clients.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

from torch import Tensor, nn

from fedmate import storage
from fedmate.backends import BACKENDS
from fedmate.core import Method, Tree, fold, make_key, select
from fedmate.core.tree import DamagedError, fit_to, pack, unpack
from fedmate.errors import UserError
from fedmate.experiment.build import Signature, make_method
from fedmate.experiment.config import stored_experiment
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.record import Record

Content = TypeVar("Content")

FORMAT = 1

ATTEMPTS = 5
"""How often to read from a run that goes on and replaces its checkpoint while it is being read."""

VERSIONED = re.compile(r"server-\d{6,}\.safetensors|clients/\d{6,}-\d{6,}\.safetensors")


@dataclass(frozen=True)
class RunState:
    """Where a run stands, apart from the states of server and clients."""

    round: int = 0  # how many rounds are done
    seconds: float = 0.0  # how long they took, in all processes that ran some of them
    up: dict[str, int] = field(default_factory=dict)  # bytes that crossed, by item
    down: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int | None] = field(default_factory=dict)  # what went wrong so far, as in the summary
    # Of each growing file of the record its length in bytes and a digest of them.
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


class Manifest(NamedTuple):
    """The content of `checkpoint.json`."""

    experiment: str  # a fingerprint of `config.toml`
    state: RunState
    versions: list[int]  # for each client the last round that it took part in; 0 if there is none

    def to_json(self) -> bytes:
        """Write it with a digest, which shows whether a bit has changed."""
        standing = asdict(self.state)
        standing["trouble"] = standing.pop("failures")
        values = {"format": FORMAT, "experiment": self.experiment, "standing": standing, "versions": self.versions}
        return json.dumps({"digest": _digest(values), "checkpoint": values}, allow_nan=False).encode() + b"\n"

    @staticmethod
    def from_json(data: bytes) -> Manifest:
        """Read it back, or raise `DamagedError`."""
        try:
            content = json.loads(data)
            values = content["checkpoint"]
            if content["digest"] != _digest(values):
                raise DamagedError("its content has changed since it was written")
            if values["format"] != FORMAT:
                raise DamagedError("it was written by another version of fedmate")
            standing = dict(values["standing"])
            failures = standing.pop("trouble")
            state, versions = RunState(**standing, failures=failures), values["versions"]
            counts = [state.round, *versions, *state.up.values(), *state.down.values()]
            counts += [written["bytes"] for written in state.files.values()]
            # A file may come from somebody else: true is no count, and a large one would make a long file name.
            if any(type(count) is not int or not 0 <= count < 2**53 for count in counts):
                raise TypeError
            return Manifest(values["experiment"], state, versions)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"it is not a file of fedmate's ({type(error).__name__})") from error


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@final
class Checkpoint:
    """The checkpoint of the run in `folder`, being read and written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoint"
        self._manifest = self._parse("checkpoint.json", Manifest.from_json)
        try:
            config = (folder / "config.toml").read_bytes()
        except OSError as error:
            raise UserError(f"`{folder / 'config.toml'}` cannot be read ({error}); give the folder of a run.") from None
        if self._manifest.experiment != hashlib.sha256(config).hexdigest():
            raise UserError(
                f"`{folder}` has a `config.toml` and a `checkpoint` of different configurations: one of them was "
                "changed; put the original back, or start a new run."
            )

    @staticmethod
    def create(folder: Path, config: str, num_clients: int, initial: Tree, note: Mapping[str, Any]) -> None:
        """Write the checkpoint of a run that has not begun, with the parameters and the signature of its network."""
        place = folder / "checkpoint"
        (place / "clients").mkdir(parents=True)
        experiment = hashlib.sha256(config.encode()).hexdigest()
        storage.write(place / "initial.safetensors", pack(initial, {"experiment": experiment, "model": dict(note)}))
        storage.write(place / "checkpoint.json", Manifest(experiment, RunState(), [0] * num_clients).to_json())

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._manifest.state

    @property
    def versions(self) -> list[int]:
        """For each client the last round that it took part in; 0 if there is none."""
        return self._manifest.versions

    def initial(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the parameters everybody started from, by path, and what the network reads and answers."""
        tensors, note = self._read("initial.safetensors")
        if not isinstance(note.get("model"), dict):
            raise self.damaged("initial.safetensors", "it does not describe a model")
        return tensors, note["model"]

    def server(self, initial: Tree) -> Tree:
        """Return the server's state; before the first checkpoint it is `initial`, which is also its pattern."""
        done = self.state.round
        return self._state(_server_file(done), initial, done) if done else initial

    def clients(self) -> list[int]:
        """Return the clients that ever took part."""
        return [client for client, version in enumerate(self.versions) if version]

    def client(self, client: int, initial: Tree) -> Tree:
        """Return a client's state; if it never took part it is `initial`, which is also its pattern."""
        version = self.versions[client]
        return self._state(_client_file(client, version), initial, version) if version else initial

    def save(self, state: RunState, server: Tree, clients: Mapping[int, tuple[int, Tree]]) -> None:
        """Make a new checkpoint.

        Of the clients that took part since the last one, `clients` has the last round in which they did and the state.
        """
        old, done = self._parse("checkpoint.json", Manifest.from_json), state.round
        self._manifest = old
        # Asked again, after an interruption: files that count are never written a second time.
        if old.state.round == done:
            return
        # Not the round of this checkpoint: the record must not depend on when checkpoints were made.
        files = {_client_file(client, version): (tree, version) for client, (version, tree) in clients.items()}
        for name, (tree, version) in {_server_file(done): (server, done), **files}.items():
            note = {"experiment": old.experiment, "file": name, "round": version}
            storage.write(self.folder / name, pack(tree, note))
        self.flush()
        # Now all that the new checkpoint refers to is on the disk.
        versions = [clients[client][0] if client in clients else version for client, version in enumerate(old.versions)]
        new = Manifest(old.experiment, state, versions)
        storage.replace(self.folder / "checkpoint.json", new.to_json())
        self._manifest = new
        storage.remove(self.folder / _server_file(old.state.round))
        for client in clients:
            storage.remove(self.folder / _client_file(client, old.versions[client]))

    def flush(self) -> None:
        """Bring the names of new files, and deletions, to the disk."""
        for folder in (self.folder, self.folder / "clients"):
            storage.flush(folder)

    def clean(self) -> None:
        """Delete what an interrupted checkpoint left behind."""
        # Some ways to copy a folder leave out folders that are empty, as this one is before the first checkpoint.
        (self.folder / "clients").mkdir(exist_ok=True)
        wanted = {*self._files()}
        for path in [*self.folder.iterdir(), *(self.folder / "clients").iterdir()]:
            name = path.relative_to(self.folder).as_posix()
            if VERSIONED.fullmatch(name) and name not in wanted:
                storage.remove(path)
        storage.remove(self.folder / "checkpoint.json.new")

    def check_all(self, num_clients: int | None = None) -> None:
        """Raise `UserError` unless every file that counts is there; their content is checked when it is read."""
        if num_clients not in (None, len(self.versions)):
            raise self.damaged("checkpoint.json", f"it is of {len(self.versions)} clients, not {num_clients}")
        for name in self._files():
            if not (self.folder / name).is_file():
                raise self.damaged(name, "it is missing")

    def damaged(self, name: str, reason: str) -> UserError:
        """Return what to say about a file that cannot be used."""
        return UserError(
            f"`{self.folder / name}` is damaged or foreign: {reason}; put the folder back from a copy, or start a new "
            "run."
        )

    def _files(self) -> list[str]:
        server = [_server_file(self.state.round)] if self.state.round else []
        return [*(_client_file(client, self.versions[client]) for client in self.clients()), *server]

    def _state(self, name: str, like: Tree, version: int) -> Tree:
        tensors, note = self._read(name)
        if note.get("file") != name or note.get("round") != version:
            raise self.damaged(name, "it is another file under this name")
        try:
            return fit_to(tensors, like)
        except DamagedError as error:
            raise self.damaged(name, str(error)) from None

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, note = self._parse(name, unpack)
        if note.get("experiment") != self._manifest.experiment:
            raise self.damaged(name, "it belongs to another run")
        return tensors, note

    def _parse(self, name: str, parse: Callable[[bytes], Content]) -> Content:
        try:
            return parse((self.folder / name).read_bytes())
        except FileNotFoundError:
            raise self.damaged(name, "it is missing") from None
        except OSError as error:
            raise self.damaged(name, f"it cannot be read ({error.strerror})") from None
        except DamagedError as error:
            raise self.damaged(name, str(error)) from None


def _server_file(done: int) -> str:
    return f"server-{done:06d}.safetensors"


def _client_file(client: int, done: int) -> str:
    return f"clients/{client:06d}-{done:06d}.safetensors"


@final
class Restored:
    """The states of a run after its last checkpoint, on the CPU; `module` is its network, if it came from Python."""

    def __init__(self, folder: Path, module: nn.Module | None = None) -> None:
        """Read everything but the clients, or raise `UserError`."""
        self.folder, inputs = folder, UserInputs(module=module)
        self.experiment = stored_experiment(folder).with_general(device="cpu")
        given = self.experiment.model.name == "given"
        if given and module is None:
            raise UserError(
                f"`{folder}` trained a network that came from Python and is in no file; pass it as `model` in "
                "Python: `fedmate.export(..., model=...)`, `fedmate.adapt(..., model=...)`."
            )
        if module is not None and not given:
            raise UserError(f"`model` is given, but `{folder}` trained `{self.experiment.model.name}`; leave it out.")
        inputs.check(self.experiment)
        self.checkpoint = Checkpoint(folder)
        tensors, note = self.checkpoint.initial()
        try:
            self.signature = Signature.from_dict(note)
            self.method: Method = make_method(self.experiment, self.signature, inputs, tensors)
        except (DamagedError, KeyError, TypeError, ValueError) as error:
            raise self.checkpoint.damaged("initial.safetensors", str(error)) from None
        self.round, self.num_clients = self.checkpoint.state.round, len(self.checkpoint.versions)
        self.key = make_key(self.experiment.general.seed)
        self.server = self.checkpoint.server(
            self.method.init_server(self.method.setup.model.init_params(), self.num_clients, fold(self.key, "server"))
        )

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
