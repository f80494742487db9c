"""Checkpoints: the state of a run on disk, so that it can go on from there, and so that models can leave it.

checkpoint/initial.safetensors           the initial parameters, and the network's signature
checkpoint/server-RRRRRR.safetensors     the server's state after round R
checkpoint/clients/NNNNNN-RRRRRR.safetensors    client N's state, unchanged since round R
checkpoint/checkpoint.json               which of these files count, and where the rest of the record stood
checkpoint/lock                          held by the process that runs

Files never change: a checkpoint adds those of the clients that took part since the last one, and then `checkpoint.json`
is replaced in one instant, which is the moment the new checkpoint exists. Then files that no longer count are deleted.
A client without a file has its initial state, which `init_client` gives again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

from torch import Tensor

from fedmate import storage
from fedmate.core import Tree
from fedmate.core.tree import DamagedError, fit_to, pack, unpack
from fedmate.errors import UserError

FORMAT = 1

FAILURES = {"left_out", "discarded_aggregates", "diverged_in_round"}
"""What can go wrong in a run, as the summary calls it."""

LARGEST = 2**53
"""No count is larger: file names stay short."""


@dataclass(frozen=True)
class RunState:
    """Where a run stands, apart from the states of server and clients.

    Attributes:
        round: how many rounds are done.
        seconds: how long they took, in all processes that ran some of them.
        up, down: bytes that crossed, by item.
        failures: what went wrong so far, as in the summary.
        files: of each growing file of the record its length in bytes and a digest of them.
    """

    round: int = 0
    seconds: float = 0.0
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int | None] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


class Manifest(NamedTuple):
    """The content of `checkpoint.json`.

    Attributes:
        experiment: a fingerprint of `config.toml`.
        state: where the run stood.
        versions: for each client the last round that it took part in; 0 if there is none.
    """

    experiment: str
    state: RunState
    versions: list[int]

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
            found = Manifest(values["experiment"], RunState(**standing, failures=failures), values["versions"])
            if not found.is_sound():
                raise DamagedError("it has values of other types than fedmate writes")
            return found
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"it is not a file of fedmate's ({type(error).__name__})") from error

    def is_sound(self) -> bool:
        """Tell whether every value has its type and range; a file may come from somebody else."""
        state = self.state
        counts = [state.round, *self.versions, *state.up.values(), *state.down.values()]
        counts += [count for count in state.failures.values() if count is not None]
        counts += [written["bytes"] for written in state.files.values()]
        return (
            isinstance(self.versions, list)
            # Not `isinstance`: true is no count.
            and all(type(count) is int and 0 <= count <= LARGEST for count in counts)
            and max(self.versions, default=0) <= state.round
            and isinstance(state.seconds, int | float)
            and 0 <= state.seconds <= LARGEST
            and {*state.failures} <= FAILURES
            and all(isinstance(written["sha256"], str) for written in state.files.values())
        )


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _fingerprint(config: str) -> str:
    return hashlib.sha256(config.encode()).hexdigest()


@final
class Checkpoint:
    """The checkpoint of one run, being read and written.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoint"
        self._manifest = self._read_manifest()
        if self._manifest.experiment != _fingerprint(_read_config(folder)):
            raise UserError(
                f"`{folder}` has a `config.toml` and a `checkpoint` of different configurations: one of them was "
                "changed; put the original back, or start a new run."
            )

    @staticmethod
    def create(folder: Path, config: str, num_clients: int, initial: Tree, note: Mapping[str, Any]) -> None:
        """Write the checkpoint of a run that has not begun.

        Args:
            folder: the run's folder.
            config: the text of its `config.toml`.
            num_clients: how many clients take part in training.
            initial: the initial parameters.
            note: the network's signature.
        """
        place = folder / "checkpoint"
        (place / "clients").mkdir(parents=True)
        experiment = _fingerprint(config)
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

        Args:
            state: where the run stands.
            server: the server's state.
            clients: of those that took part since the last checkpoint, the last round in which they did and the state.
        """
        old, done = self._read_manifest(), state.round
        self._manifest = old
        # Asked again, after an interruption: files that count are never written a second time.
        if old.state.round == done:
            return
        self._write(_server_file(done), server, done)
        versions = list(old.versions)
        for client, (version, tree) in clients.items():
            # Not the round of this checkpoint: the record must not depend on when checkpoints were made.
            self._write(_client_file(client, version), tree, version)
            versions[client] = version
        self.flush()
        # Now all that the new checkpoint refers to is on the disk.
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
        wanted = {_server_file(self.state.round)}
        wanted |= {_client_file(client, version) for client, version in enumerate(self.versions)}
        for path in [*self.folder.iterdir(), *(self.folder / "clients").iterdir()]:
            name = path.relative_to(self.folder).as_posix()
            if _VERSIONED.fullmatch(name) and name not in wanted:
                storage.remove(path)
        storage.remove(self.folder / "checkpoint.json.new")

    def check_all(self, num_clients: int | None = None) -> None:
        """Raise `UserError` unless every file that counts is there; their content is checked when it is read."""
        if num_clients not in (None, len(self.versions)):
            raise self.damaged("checkpoint.json", f"it is of {len(self.versions)} clients, not {num_clients}")
        files = [_client_file(client, self.versions[client]) for client in self.clients()]
        if self.state.round:
            files.append(_server_file(self.state.round))
        missing = next((name for name in files if not (self.folder / name).is_file()), None)
        if missing is not None:
            raise self.damaged(missing, "it is missing")

    def _write(self, name: str, tree: Tree, version: int) -> None:
        note = {"experiment": self._manifest.experiment, "file": name, "round": version}
        storage.write(self.folder / name, pack(tree, note))

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

    def _read_manifest(self) -> Manifest:
        content: Manifest = self._parse("checkpoint.json", Manifest.from_json)
        return content

    def _parse(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        try:
            return parse((self.folder / name).read_bytes())
        except FileNotFoundError:
            raise self.damaged(name, "it is missing") from None
        except OSError as error:
            raise self.damaged(name, f"it cannot be read ({error.strerror})") from None
        except DamagedError as error:
            raise self.damaged(name, str(error)) from None

    def damaged(self, name: str, reason: str) -> UserError:
        """Return what to say about a file that cannot be used."""
        return UserError(
            f"`{self.folder / name}` is damaged or foreign: {reason}; put the folder back from a copy, or start a new "
            "run."
        )


def _read_config(folder: Path) -> str:
    try:
        return (folder / "config.toml").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"`{folder / 'config.toml'}` cannot be read ({error}); give the folder of a run.") from None


_VERSIONED = re.compile(r"server-\d{6,}\.safetensors|clients/\d{6,}-\d{6,}\.safetensors")


def _server_file(done: int) -> str:
    return f"server-{done:06d}.safetensors"


def _client_file(client: int, done: int) -> str:
    return f"clients/{client:06d}-{done:06d}.safetensors"
