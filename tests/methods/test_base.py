"""What methods share of a model, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import pytest
import torch
from tests.methods.small import EVERYBODY, normed, run
from torch import Tensor

from fedmate.components.supervised import train_together
from fedmate.core import BufferPolicy, ClientData, LocalResult, Tree, Wire, flatten
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class Biases(PartialSharing):
    """Shares all biases, and no buffers."""

    def shares(self, part: str, name: str) -> bool:
        return part != "buffers" and name.endswith("bias")

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        return self.result(train_together(self, self.personal_params(client, download), data, key), data)


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_a_predicate_on_names_says_what_crosses_and_what_stays(buffers: BufferPolicy) -> None:
    method = Biases(setup=normed(buffers))
    parts = frozenset({"extractor", "classifier"})
    assert method.wire(0) == Wire(down=parts, up=parts | {"num_samples"})
    backend, results = run(method, cohorts=EVERYBODY)
    server, clients = flatten(results[-1].server), [flatten(state) for state in backend.clients]
    names = {"extractor/0.bias", "extractor/1.bias", "classifier/bias"}
    assert server.keys() == names
    assert {"extractor/0.weight", "extractor/1.weight", "classifier/weight"} == {
        name for name in clients[0] if "buffers" not in name
    }
    assert method.global_params(results[-1].server) is None
    assert not torch.equal(clients[0]["classifier/weight"], clients[1]["classifier/weight"])
    assert sum(results[-1].reports[0].up.values()) == sum(8 * server[name].numel() for name in names) + 8
    held = method.personal_params(backend.clients[1], results[-1].server)
    assert {part: set(held[part]) for part in held} == {
        part: set(names) for part, names in method.setup.model.names.items()
    }
