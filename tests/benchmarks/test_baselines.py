"""Baselines do the same work: from the same start, with the same batches, they end with the same parameters."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest
import torch
from benchmarks.baselines import BASELINES
from benchmarks.baselines.flower import average, train
from benchmarks.baselines.plain_fedmate import PlainFedMate
from benchmarks.baselines.plain_loop import PlainFedAvg, PlainFedRep
from benchmarks.case import Case, make_federation, make_method, make_randomness
from benchmarks.measure import measure_case
from torch import Tensor

from fedmate.backends import BACKENDS
from fedmate.backends.base import Round
from fedmate.core import Tree, leaves
from fedmate.errors import UserError

# One batch is all a client has, so that no order of samples can matter.
CASE = Case(network="digits_cnn", clients=3, samples=20, batch_size=20, epochs=2)
ROUNDS = 3
LOOPS = {"fedavg": PlainFedAvg, "fedrep": PlainFedRep, "fedmate": PlainFedMate}


def ours(case: Case, dtype: torch.dtype, rounds: int = ROUNDS) -> Tree:
    method, key = make_method(case, dtype), make_randomness(case)
    backend = BACKENDS["sequential"](method, make_federation(case, dtype), key)
    server = method.init_server(method.setup.model.init_params(), case.clients, key)
    for number in range(rounds):
        server = backend.run_round(server, Round(number, tuple(range(case.clients)), evaluate=False)).server
    return {part: server[part] for part in ("extractor", "classifier") if part in server}


def gap(tree: Tree, tensors: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(leaves(tree), tensors, strict=True))


@pytest.mark.parametrize(("method", "loop"), LOOPS.items())
def test_plain_loops_give_the_same_parameters(method: str, loop: type[Any]) -> None:
    case = replace(CASE, method=method)
    plain = loop(case, torch.float64)
    for number in range(ROUNDS):
        plain.run_round(number)
    found = plain.server
    if method == "fedmate":
        found = list(leaves({part: plain.server[part] for part in ("extractor", "classifier")}))
    assert gap(ours(case, torch.float64), found) < 1e-12
    assert gap(ours(case, torch.float64, rounds=1), found) > 1e-3


# -------------------- other packages


def test_flower_clients_and_server_are_federated_averaging() -> None:
    """Without Flower: what its apps call."""
    params = PlainFedAvg(CASE).server
    for _ in range(ROUNDS):
        params = average([train(CASE, client, params) for client in range(CASE.clients)])
    assert gap(ours(CASE, torch.float32), params) < 1e-5


@pytest.mark.flower
def test_flower_simulation_runs() -> None:
    """In a process of its own, as always; half a minute."""
    pytest.importorskip("flwr")
    pytest.importorskip("ray")
    row = measure_case(replace(CASE, runner="flower"), 1, 120.0)
    assert row["timing"] is not None, row["error"]
    assert len(row["timing"]["rounds_ms"]) == len(row["timing"]["cpu_ms"]) == 1


@pytest.mark.parametrize("network", ["digits_cnn", "cifar_cnn", "mlp"])
def test_jax_gives_the_same_parameters(network: str) -> None:
    pytest.importorskip("jax")
    from benchmarks.baselines.jax_fedavg import JaxRound

    case = replace(CASE, network=network)
    baseline = JaxRound(case)
    for number in range(ROUNDS):
        baseline.run_round(number)
    baseline.wait()
    found = [
        torch.tensor(layer[name].tolist()) for layer in baseline.server for name in ("weight", "bias") if name in layer
    ]
    assert gap(ours(case, torch.float32), found) < 1e-5


def test_pfl_gives_the_same_parameters() -> None:
    pytest.importorskip("pfl")
    from benchmarks.baselines.pfl_fedavg import PflRound

    baseline = PflRound(CASE)
    for number in range(ROUNDS):
        baseline.run_round(number)
    assert gap(ours(CASE, torch.float32), baseline.server) < 1e-5


def test_other_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert BASELINES["jax"].suits(CASE)
    with pytest.raises(UserError, match="not implemented for fedrep with digits_cnn on cpu"):
        BASELINES["jax"].measure(replace(CASE, method="fedrep"), 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^flwr is not installed$"):
        BASELINES["flower"].measure(CASE, 1)
