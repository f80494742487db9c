"""SCAFFOLD: two rounds by hand, what it reduces to, where it ends, and what its variates add up to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.small import (
    DECAY,
    PARTIAL,
    RATE,
    START,
    Array,
    Labels,
    Params,
    as_clients,
    as_tree,
    descend,
    linear_setup,
    normed,
    run,
    sequences,
    slopes,
)
from torch.testing import assert_close

from fedmate.core import (
    MODEL_PARTS,
    BufferPolicy,
    Training,
    select,
    stack,
    tree_map,
    weighted_mean,
)
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.scaffold import Scaffold

ZERO: Params = {name: np.zeros_like(rows) for name, rows in START.items()}


def add(*terms: tuple[float, Params]) -> Params:
    return {name: np.stack([factor * p[name] for factor, p in terms]).sum(0) for name in START}


def corrected(p: Params, correction: Params, x: Array, y: Labels, steps: int, momentum: float) -> Params:
    return descend(p, lambda p: add((1, slopes(p, x, y)), (1, correction)), momentum=momentum, steps=steps)


@pytest.mark.parametrize(("momentum", "server_rate"), [(0.0, 1.0), (0.5, 0.7)])
def test_two_rounds_by_hand(momentum: float, server_rate: float) -> None:
    """One sample, and three copies of one: batches of 2 make 1 and 2 steps an epoch. A third client stays away."""
    samples = [(np.full((n, 1), x), np.full(n, y)) for x, y, n in ((1.5, 0, 1), (-0.7, 1, 3), (1.0, 0, 5))]
    p, c, own = START, ZERO, [ZERO, ZERO]
    for _ in range(2):
        ends, news = [], []
        for i in (0, 1):
            steps = 2 * (i + 1)
            ends.append(corrected(p, add((1, c), (-1, own[i])), *samples[i], steps, momentum))
            reach = RATE * sum(momentum**j for k in range(steps) for j in range(k + 1))
            news.append(add((1, own[i]), (-1, c), (1 / reach, p), (-1 / reach, ends[i])))
        p = add((1 - server_rate, p), (server_rate / 4, ends[0]), (server_rate * 3 / 4, ends[1]))
        moved = [add((1, new), (-1, old)) for new, old in zip(news, own, strict=True)]
        c, own = add((1, c), (2 / 3 / 4, moved[0]), (2 / 3 * 3 / 4, moved[1])), news

    training = Training(batch_size=2, epochs=2, learning_rate=RATE, momentum=0.9, weight_decay=DECAY)
    method = Scaffold(setup=linear_setup(training=training), momentum=momentum, server_learning_rate=server_rate)
    backend, results = run(method, as_clients(samples), [(0, 1)] * 2, evaluate=False)
    server = results[-1].server
    assert_close(select(server, ("extractor", "classifier")), as_tree(p), rtol=0, atol=1e-12)
    for found, expected in zip([server, *backend.clients], (c, *own, ZERO), strict=True):
        assert_close(found["control"], as_tree(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_without_variates_it_is_fedavg(buffers: BufferPolicy) -> None:
    """That is the first round, whatever `training.momentum` says; the second is another."""
    setup = normed(buffers)
    plain = replace(setup, training=replace(setup.training, momentum=0.0))
    _, mine = run(Scaffold(setup=setup))
    _, other = run(FedAvg(setup=plain))
    assert_close(select(mine[0].server, MODEL_PARTS), other[0].server, rtol=0, atol=1e-12)
    with pytest.raises(AssertionError, match="not close"):
        assert_close(select(mine[1].server, MODEL_PARTS), other[1].server, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rounds", [1, 2, 9])
@pytest.mark.parametrize("labels", [([0, 1, 2], [1, 1, 1], [0, 2, 2]), ([0, 1, 2, 0, 1], [1, 1], [0, 2, 2, 1])])
def test_the_common_variate_is_a_share_of_the_weighted_mean_of_all(labels: list[list[int]], rounds: int) -> None:
    """One client after the other stays away; the variate must not drift, whatever the sizes."""
    clients = [sequences(i, rows) for i, rows in enumerate(labels)]
    sizes = torch.tensor([len(rows) for rows in labels])
    backend, results = run(Scaffold(setup=normed()), clients, (PARTIAL * 3)[:rounds])
    met = sizes[1:] if rounds == 1 else sizes
    share = sizes.sum() / (len(sizes) * met.double().mean())
    controls = weighted_mean(stack([client["control"] for client in backend.clients]), sizes)
    assert_close(results[-1].server["control"], tree_map(lambda leaf: leaf * share, controls), rtol=0, atol=1e-12)
