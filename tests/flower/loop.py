"""Clients in this process: each message is answered by a new one, as in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from fedmate.backends.base import Backend, Round, RoundResult
from fedmate.core import Tree, fold, make_key
from fedmate.core.tree import pack, unpack
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.flower.backend import Flower
from fedmate.flower.client import Client, ClientState
from fedmate.flower.messages import Answer, Leaves, Reply, Request
from fedmate.flower.transport import Transport

TOKEN = "ab" * 16
CLIENTS = 4


@cache
def built(method: str, learning_rate: float = 0.02) -> Built:
    values = {
        "seed": 3,
        "rounds": 3,
        "dtype": "float64",
        "device": "cpu",
        "backend": "sequential",
        "partition": {"name": "share", "clients": CLIENTS},
        "training": {"epochs": 1, "learning_rate": learning_rate},
        "evaluation": {"local": 0.2, "metrics": ["auroc", "calibration_error"]},
        "method": {"name": method, **({"cft": "period:2"} if method.startswith("fedmate") else {})},
    }
    return build(resolve([ConfigSource("test", values)]))


class Loop(Transport):
    """Carries messages as bytes; `change` may put something in the place of an answer."""

    def __init__(self, ready: Built, folder: Path) -> None:
        self.ready, self.folder = ready, folder
        self.requests, self.answers, self.wanted = list[tuple[int, Request]](), list[Answer](), list[int]()
        self.change: Callable[[int, Answer], Reply] = lambda _, answer: answer

    def client(self, number: int) -> Client:
        federation, state = self.ready.federation, ClientState(self.folder, TOKEN, number)
        backend = Flower(self.ready.method, federation, make_key(3))
        return Client(number, backend, state, federation.clients[number], federation.tests(number))

    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        self.wanted.append(wanted)
        return {client: self._send(client, request) for client, request in requests.items()}

    def _send(self, client: int, request: Request) -> Reply:
        answer = self.client(client).answer(request._replace(download=carried(request.download)))
        self.requests.append((client, request))
        self.answers.append(answer)
        return self.change(client, answer._replace(upload=carried(answer.upload)))


def carried(message: Leaves) -> Leaves:
    return dict(sorted(unpack(pack(dict(message), {}))[0].items()))


def over(transport: Transport, ready: Built, min_clients: int = 1) -> Flower:
    """Return a back end whose clients a transport reaches."""
    backend = Flower(ready.method, ready.federation, make_key(3))
    backend.transport, backend.min_clients = transport, min_clients
    return backend


def start(ready: Built) -> Tree:
    return ready.method.init_server(ready.method.setup.model.init_params(), CLIENTS, fold(make_key(3), "server"))


def one_round(backend: Backend, ready: Built, *participants: int) -> RoundResult:
    return backend.run_round(start(ready), Round(0, participants, evaluate=False))
