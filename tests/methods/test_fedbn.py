"""FedBN: what stays with clients, and FedAvg where nothing does."""

from __future__ import annotations

import pytest
from tests.methods.small import PARTIAL, as_clients, linear_setup, normed, run
from torch.testing import assert_close

from fedmate.core import BufferPolicy, flatten
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedbn import FedBN


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_batch_norm_stays_with_the_client_and_all_else_crosses(buffers: BufferPolicy) -> None:
    method = FedBN(setup=normed(buffers))
    backend, results = run(method, cohorts=PARTIAL)
    own = {f"extractor/1.{name}" for name in ("weight", "bias")}
    own |= set() if buffers == "dropped" else {f"buffers/1.running_{name}" for name in ("mean", "var")}
    assert flatten(backend.clients[0]).keys() == own
    whole = flatten(method.setup.model.init_params()).keys()
    assert flatten(results[-1].server).keys() == whole - own
    sent = {item: size for item, size in results[0].reports[0].up.items() if item != "bookkeeping"}
    assert sent == {"extractor": 8 * (2 * 3 + 2), "classifier": 8 * (16 * 3 + 3)}
    assert results[-1].views["global"] is None
    assert not method.warnings([])


def test_without_batch_norm_it_is_fedavg_and_says_so() -> None:
    method, other = FedBN(setup=linear_setup()), FedAvg(setup=linear_setup())
    (_, mine), (_, theirs) = (run(one, as_clients(), [(0, 1), (0, 1)]) for one in (method, other))
    assert_close(mine[-1].server, theirs[-1].server, rtol=0, atol=0)
    assert_close(mine[-1].views["global"], theirs[-1].views["global"], rtol=0, atol=0, equal_nan=True)
    assert ["FedAvg" in sentence for sentence in method.warnings([])] == [True]
