"""What methods share of a model, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import pytest
import torch
from tests.methods.small import CLIENTS, EVERYBODY, normed, run
from torch import Tensor
from torch.testing import assert_close

from fedmate.backends.base import Round
from fedmate.backends.vectorised import Vectorised
from fedmate.components.supervised import train_together
from fedmate.core import (
    TRAINED,
    BufferPolicy,
    ClientData,
    Federation,
    LocalResult,
    Tree,
    Wire,
    fit_on,
    flatten,
    make_key,
    select,
    supervised_loss,
    tree_map,
)
from fedmate.methods.base import PartialSharing
from fedmate.methods.fedavg import FedAvg


@final
@dataclass(frozen=True, kw_only=True)
class Biases(PartialSharing):
    """Shares all biases, and no buffers."""

    def shares(self, part: str, name: str) -> bool:
        return part != "buffers" and name.endswith("bias")

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        return self.result(train_together(self, self.personal_params(client, download), data, key), data)


@final
@dataclass(frozen=True, kw_only=True)
class Sparse(PartialSharing):
    """Goes on with its momentum from round to round, and sends a mask of which a bit is an eighth of a byte."""

    keeps: bool = True

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        return {
            **super().init_client(params, key),
            "state": self.setup.optimiser().init(select(params, TRAINED)),
        }

    def wire(self, round_number: int) -> Wire:
        down, up = super().wire(round_number)
        return Wire(down=down, up=up | {"mask", "num_bytes"})

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        setup, received = self.setup, self.personal_params(client, download)
        steps, objective = setup.training.batches(data, key), supervised_loss(setup.model)
        state = client["state"] if self.keeps else tree_map(torch.zeros_like, client["state"])
        params, state = fit_on(objective, received, state, steps, setup.optimiser(), TRAINED)
        result, mask = self.result(params, data), params["classifier"]["weight"] > 0
        sent = {**result.upload, "mask": mask, "num_bytes": {"mask": (mask.sum() + 7) // 8}}
        return result._replace(client={**result.client, "state": state}, upload=sent)


def test_momentum_can_last_and_bytes_can_be_declared() -> None:
    method = Sparse(setup=normed())
    _, kept = run(method, cohorts=EVERYBODY)
    _, fresh = run(replace(method, keeps=False), cohorts=EVERYBODY)
    _, plain = run(FedAvg(setup=normed()), cohorts=EVERYBODY)
    assert_close(kept[0].server, fresh[0].server, rtol=0, atol=0)
    assert_close(fresh[-1].server, plain[-1].server, rtol=0, atol=0)
    assert not torch.equal(kept[1].server["classifier"]["bias"], fresh[1].server["classifier"]["bias"])
    federation = Federation(CLIENTS, CLIENTS[0], 3)
    server = method.init_server(method.setup.model.init_params(), 3, make_key(4))
    mapped = Vectorised(method, federation, make_key(4)).run_round(server, Round(0, (0, 1, 2), evaluate=False))
    for one, other in zip(mapped.reports, kept[0].reports, strict=True):
        assert one.up == other.up
        assert 0 < one.up["mask"] <= 6 < 48


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
