"""What most methods have in common: a model whose shared parts the server averages, and whose other parts stay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from fedmate.core import MODEL_PARTS, ClientData, LocalResult, Method, Tree, Wire, num_samples, select


@dataclass(frozen=True, kw_only=True)
class SharedServer(Method):
    """A method whose server holds the shared part of a model, sends it to clients, and averages what they return."""

    shared: ClassVar[tuple[str, ...]] = ("extractor", "classifier")
    """The parts of the model that are shared."""

    def shares(self, part: str, name: str) -> bool:
        """Tell whether a tensor of the model is shared; buffers, if the model declares them so, with the extractor."""
        return ("extractor" if part == "buffers" else part) in self.shared

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server holds what is shared, and what its optimiser remembers."""
        shared = self.shared_of(params)
        return {**shared, **self.server.init(shared)}

    def wire(self, round_number: int) -> Wire:
        """What is shared crosses both ways, and the client's size goes up."""
        buffers = bool(self.setup.model.shared_buffers)
        parts = frozenset(p for p, names in self._shared_names.items() if p != "buffers" or (names and buffers))
        return Wire(down=parts, up=parts | {"num_samples"} if parts else parts)

    def download(self, server: Tree, client_id: Tensor) -> Tree:
        """Send what is shared."""
        return select(server, self._shared_names)

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        """Move to what was uploaded."""
        return self.server.update(server, uploads, valid)

    def shared_of(self, params: Tree) -> Tree:
        """Return what is shared of a model."""
        return {part: {name: params[part][name] for name in names} for part, names in self._shared_names.items()}

    def upload_of(self, params: Tree, data: ClientData) -> Tree:
        """Return what a client sends that has trained a model: what is shared of it, and the client's size."""
        return {**self.shared_of(params), "num_samples": num_samples(data)}

    @cached_property
    def _shared_names(self) -> dict[str, tuple[str, ...]]:
        everything = self.setup.model.names
        found = {part: tuple(name for name in names if self.shares(part, name)) for part, names in everything.items()}
        # A network without buffers has the part all the same, without a name in it.
        return {part: names for part, names in found.items() if names or self.shares(part, "")}


@dataclass(frozen=True, kw_only=True)
class PartialSharing(SharedServer):
    """A method whose clients train one model: the server's shared part of it, and one of their own."""

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        """A client keeps what is not shared."""
        return self.private_of(params)

    def personal_params(self, client: Tree, download: Tree) -> Tree:
        """A client holds what it received and what it kept."""
        return {part: {**client.get(part, {}), **download.get(part, {})} for part in MODEL_PARTS}

    def private_of(self, params: Tree) -> Tree:
        """Return what a client keeps of a model: what is not shared, and buffers in case the model keeps them so."""
        found = {}
        for part in MODEL_PARTS:
            sent = () if part == "buffers" else self._shared_names.get(part, ())
            found[part] = {name: tensor for name, tensor in params[part].items() if name not in sent}
        return {part: tensors for part, tensors in found.items() if tensors or part == "buffers"}

    def result(self, params: Tree, data: ClientData) -> LocalResult:
        """Return what a `local_update` gives that has trained a model and does nothing else."""
        return LocalResult(self.private_of(params), self.upload_of(params, data), params, diagnostics={})
