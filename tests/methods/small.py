"""The small federations that methods are tried on: two linear layers to follow in numpy, and one with BatchNorm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedmate.backends.base import Round, RoundResult
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    BufferPolicy,
    ClientData,
    Federation,
    Method,
    Model,
    Setup,
    Training,
    Tree,
    client_data,
    make_key,
    normal,
)

TRAINING = Training(batch_size=2, epochs=2, learning_rate=0.1, momentum=0.5, weight_decay=0.01)
EVERYBODY, PARTIAL = ((0, 1, 2),) * 3, ((1, 2), (0, 2), (0, 1))
"""Three rounds of three clients; in those of PARTIAL one after the other stays away."""


def sequences(seed: int, labels: list[int]) -> ClientData:
    """Return inputs away from 0, so that running means have somewhere to go."""
    return client_data(1 + normal(make_key(seed), (len(labels), 1, 8), torch.float64), torch.tensor(labels))


CLIENTS = (sequences(1, [0, 1, 2, 0, 1]), sequences(2, [1, 1]), sequences(3, [0, 2, 2, 1]))


def normed_model(buffers: BufferPolicy = "shared", *, classes: int = 3) -> Model:
    """Return a network with BatchNorm and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        block = [nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.Tanh(), nn.Dropout(0.25), nn.Flatten()]
        return Model(nn.Sequential(*block, nn.Linear(16, classes)).double(), classifier="5", buffers=buffers)


def normed(buffers: BufferPolicy = "shared", *, classes: int = 3) -> Setup:
    """Return three rounds with that network."""
    return Setup(normed_model(buffers, classes=classes), classes, 3, TRAINING)


def run(
    method: Method,
    clients: Sequence[ClientData] = CLIENTS,
    cohorts: Iterable[tuple[int, ...]] = PARTIAL,
    *,
    evaluate: bool = True,
) -> tuple[Sequential, list[RoundResult]]:
    """Run a round for each cohort of clients."""
    federation = Federation(tuple(clients), clients[0], method.setup.num_classes)
    backend = Sequential(method, federation, make_key(4), workers=1)
    server, results = method.init_server(method.setup.model.init_params(), len(clients), make_key(4)), []
    for t, cohort in enumerate(cohorts):
        results.append(backend.run_round(server, Round(t, cohort, evaluate)))
        server = results[-1].server
    return backend, results


# -------------------- two linear layers, by hand

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Params = dict[str, Array]
"""Features z = x w', logits z v'."""

RATE, MOMENTUM, DECAY = 0.3, 0.6, 0.05
STEPS = Training(batch_size=3, epochs=2, learning_rate=RATE, momentum=MOMENTUM, weight_decay=DECAY)
"""Two full-batch steps for the clients below."""
START: Params = {"w": np.array([[0.8]]), "v": np.array([[0.5], [-0.3]])}
DATA = (
    (np.array([[1.5]]), np.array([0])),
    (np.array([[-0.7], [2.0], [0.4]]), np.array([1, 0, 1])),
)
SHARES = (0.25, 0.75)
"""What the two clients hold of all samples."""


def linear(start: Params = START) -> Model:
    """Return the network that starts with these numbers."""
    layers = [nn.Linear(rows.shape[1], rows.shape[0], bias=False).double() for rows in start.values()]
    with torch.no_grad():
        for layer, rows in zip(layers, start.values(), strict=True):
            layer.weight.copy_(torch.from_numpy(rows))
    return Model(nn.Sequential(*layers), classifier="1")


def linear_setup(start: Params = START, training: Training = STEPS) -> Setup:
    """Return two rounds with that network."""
    return Setup(linear(start), len(start["v"]), 2, training)


def as_clients(data: Iterable[tuple[Array, Labels]] = DATA) -> list[ClientData]:
    """Return the same samples as clients hold them."""
    return [client_data(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data]


def as_tree(p: Params) -> Tree:
    """Return the numbers of the network as a method keeps them."""
    parts = {"w": ("extractor", "0.weight"), "v": ("classifier", "weight")}
    return {parts[name][0]: {parts[name][1]: torch.from_numpy(p[name])} for name in parts if name in p}


def mean(sent: Sequence[Params], shares: Sequence[float] = SHARES) -> Params:
    """Average what clients send."""
    return {name: np.tensordot(shares, np.stack([p[name] for p in sent]), 1) for name in sent[0]}


def errors(logits: Array, y: Labels) -> Array:
    """Return p - [y = k], the slope of each sample's cross-entropy in its logits."""
    powers: Array = np.exp(logits)
    found: Array = powers / powers.sum(1, keepdims=True) - np.eye(logits.shape[1])[y]
    return found


def slopes(p: Params, x: Array, y: Labels) -> Params:
    """Differentiate the mean cross-entropy: with e = (p - [y = k]) / n it is e' z for v, and (e v)' x for w."""
    z = x @ p["w"].T
    e = errors(z @ p["v"].T, y) / len(y)
    return {"w": (e @ p["v"]).T @ x, "v": e.T @ z}


def descend(
    p: Params,
    slope: Callable[[Params], Params],
    names: Iterable[str] = ("w", "v"),
    *,
    rate: float = RATE,
    momentum: float = MOMENTUM,
    steps: int = 2,
) -> Params:
    """Take steps of SGD on what is named: u <- momentum u + slope + decay p, p <- p - rate u, from u = 0."""
    velocity = {name: np.zeros_like(p[name]) for name in names}
    for _ in range(steps):
        found = slope(p)
        velocity = {n: momentum * u + found[n] + DECAY * p[n] for n, u in velocity.items()}
        p = {**p, **{n: p[n] - rate * u for n, u in velocity.items()}}
    return p
