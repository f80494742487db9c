"""The small federation that methods are tried on: ragged clients, a network with statistics and dropout, rounds."""

from __future__ import annotations

import torch
from torch import nn

from fedmate.backends.base import Round, RoundResult
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    BufferPolicy,
    ClientData,
    Federation,
    Method,
    Model,
    Training,
    client_data,
    make_key,
    normal,
)

TRAINING = Training(batch_size=2, epochs=2, learning_rate=0.1, momentum=0.5, weight_decay=0.01)


def sequences(seed: int, labels: list[int]) -> ClientData:
    """Return inputs away from 0, so that running means have somewhere to go."""
    return client_data(1 + normal(make_key(seed), (len(labels), 1, 8), torch.float64), torch.tensor(labels))


CLIENTS = (sequences(1, [0, 1, 2, 0, 1]), sequences(2, [1, 1]), sequences(3, [0, 2, 2, 1]))


def normed_model(buffers: BufferPolicy = "shared", *, classes: int = 3, seed: int = 5) -> Model:
    """Return a network with BatchNorm and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        block = [nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.Tanh(), nn.Dropout(0.25), nn.Flatten()]
        return Model(nn.Sequential(*block, nn.Linear(16, classes)).double(), classifier="5", buffers=buffers)


def run(
    method: Method, clients: tuple[ClientData, ...], rounds: int, *, everybody: bool = False
) -> tuple[Sequential, list[RoundResult]]:
    """Run rounds in which one client after the other stays away, or nobody does, as one alone does not."""
    backend = Sequential(method, Federation(clients, CLIENTS[0], 3), make_key(4), workers=1)
    server = method.init_server(method.setup.model.init_params(), len(clients), make_key(4))
    results = []
    for t in range(rounds):
        away = None if everybody or len(clients) == 1 else t % len(clients)
        present = tuple(i for i in range(len(clients)) if i != away)
        results.append(backend.run_round(server, Round(t, present, evaluate=True)))
        server = results[-1].server
    return backend, results
