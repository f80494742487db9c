"""What a method shares, what it keeps private and what a round costs, asked of the method itself.

Its own functions are called as a back end calls them, in the paper's setting: the CIFAR CNN, 10 classes, 20 clients and
200 rounds. One client takes part and makes a single step with two samples.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import final

import torch

from fedmate.backends.base import one_thread
from fedmate.core import (
    BOOKKEEPING,
    ClientData,
    Method,
    Model,
    Setup,
    Training,
    Tree,
    client_data,
    leaves,
    make_key,
    normal,
    num_bytes,
    select,
    tree_map,
    unmapped,
)
from fedmate.models import MODELS

INPUT, CLASSES, CLIENTS, ROUNDS = (3, 32, 32), 10, 20, 200

SETTING = f"the paper's CIFAR CNN with {CLASSES} classes, T = {ROUNDS}"


@final
@dataclass(frozen=True)
class Costs:
    """What a method's rounds come to, for one client.

    Attributes:
        shares: for each part that ever crosses, the directions in which it does, bookkeeping apart.
        keeps: for each part that ever stays with the client, the number of rounds in which it does.
        down, up: float32 numbers that cross, and in how many rounds so many do.
    """

    shares: dict[str, set[str]] = field(default_factory=dict)
    keeps: Counter[str] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)
    up: Counter[int] = field(default_factory=Counter)

    def enter(self, down: dict[str, int], up: dict[str, int], kept: list[str], rounds: int) -> None:
        """Add rounds in which the same parts cross: numbers by part, and what does not cross."""
        for way, parts in (("down", down), ("up", up)):
            for part in parts:
                self.shares.setdefault(part, set()).add(way)
        self.keeps.update(dict.fromkeys(kept, rounds))
        self.down[sum(down.values())] += rounds
        self.up[sum(up.values())] += rounds

    def describe(self) -> str:
        """Say it in a line."""
        shares = [part if len(ways) == 2 else f"{part} ({min(ways)})" for part, ways in self.shares.items()]
        keeps = [part if n == ROUNDS else f"{part} (in {n} of {ROUNDS} rounds)" for part, n in self.keeps.items()]
        (down, _), (up, _) = self.down.most_common(1)[0], self.up.most_common(1)[0]
        return (
            f"shares {', '.join(shares) or 'nothing'}; keeps {', '.join(keeps) or 'nothing'}; "
            f"{down:,} numbers down, {up:,} up{self._exceptions()}"
        )

    def _exceptions(self) -> str:
        """Say in which rounds the numbers are others."""
        down, up = _unusual(self.down), _unusual(self.up)
        if down == up:
            return f" (each {up})" if up else ""
        return f" ({', '.join(f'{way} {text}' for way, text in (('down', down), ('up', up)) if text)})"


def costs_of(cls: type[Method]) -> Costs:
    """Ask a method, with its default hyper-parameters; one of another package may raise anything."""
    method, key, costs = _set_up(cls), make_key(0), Costs()
    params = method.setup.model.init_params
    server, client = method.init_server(params(), CLIENTS, key), method.init_client(params(), key)
    with torch.no_grad(), unmapped(), one_thread():
        sent = method.download(server, torch.tensor(0))
        for wire, rounds in Counter(method.wire(t) for t in range(ROUNDS)).items():
            received = select(sent, wire.down)
            outcome = _outcome(method, client, received)
            upload, kept = select(outcome["upload"], wire.up), _kept(method, client, received, outcome)
            costs.enter(_numbers(received), _numbers(upload), kept, rounds)
    return costs


def _set_up(cls: type[Method]) -> Method:
    setup = Setup(_network(), CLASSES, ROUNDS, Training(epochs=1))
    method = cls(setup=setup)
    return replace(method, setup=replace(setup, model=method.prepare(setup.model)))


@functools.cache
def _network() -> Model:
    architecture = MODELS["cifar_cnn"]()
    with torch.random.fork_rng(devices=[]):
        return Model(architecture.build(INPUT, CLASSES), classifier=architecture.classifier)


@functools.cache
def _samples() -> ClientData:
    return client_data(normal(make_key(0), (2, *INPUT)), torch.arange(2))


def _outcome(method: Method, client: Tree, received: Tree) -> Tree:
    """Return all that a client's part of a round leads to."""
    held = method.personal_params(client, received)
    result = method.local_update(client, received, _samples(), make_key(0))
    return {"held": held, "client": result.client, "upload": result.upload, "params": result.params}


def _numbers(message: Tree) -> dict[str, int]:
    """Return how many float32 numbers each part of a message would be; what is empty is left out."""
    sizes = {part: num_bytes({part: content}) for part, content in message.items() if part not in BOOKKEEPING}
    return {part: -(-size // torch.float32.itemsize) for part, size in sizes.items() if size}


def _kept(method: Method, client: Tree, received: Tree, outcome: Tree) -> list[str]:
    """Return the parts of a client's state that do not come with the download, or matter although they do."""
    kept = []
    for part in client:
        own = select(client, (part,))
        # Counters and flags are bookkeeping.
        if not any(leaf.is_floating_point() for leaf in leaves(own)):
            continue
        other = {**client, **tree_map(lambda leaf: leaf + torch.ones_like(leaf), own)}
        if part not in received or not _equal(outcome, _outcome(method, other, received)):
            kept.append(part)
    return kept


def _equal(a: Tree, b: Tree) -> bool:
    return all(torch.equal(left, right) for left, right in zip(leaves(a), leaves(b), strict=True))


def _unusual(crossed: Counter[int]) -> str:
    """Say what crosses besides what is usual, if anything."""
    others = crossed.most_common()[1:]
    if len(others) > 1:
        return f"{sum(numbers * rounds for numbers, rounds in crossed.items()) / ROUNDS:,.0f} on average"
    return "".join(f"{numbers:,} in {rounds} of {ROUNDS} rounds" for numbers, rounds in others)
