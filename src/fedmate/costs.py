"""The parts that a method shares or keeps private, and the numbers that cross in a round.

The method's own functions are called as a back end calls them. The setting is the paper's: the CIFAR CNN, 10 classes,
20 clients and 200 rounds. One client takes part and makes a single step with two samples.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from fedmate.backends.base import one_thread
from fedmate.core import (
    BOOKKEEPING,
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


@dataclass(frozen=True)
class Costs:
    """The costs of a method's rounds, for one client.

    Attributes:
        shares: for each part that ever crosses, the directions in which it does, bookkeeping apart.
        keeps: for each part that ever stays with the client, the number of rounds in which it does.
        down, up: float32 numbers that cross, and in how many rounds so many do.
    """

    shares: dict[str, set[str]] = field(default_factory=dict)
    keeps: Counter[str] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)
    up: Counter[int] = field(default_factory=Counter)

    def describe(self) -> str:
        """Return them as a line of text."""
        shares = [part if len(ways) == 2 else f"{part} ({min(ways)})" for part, ways in self.shares.items()]
        keeps = [part if n == ROUNDS else f"{part} (in {n} of {ROUNDS} rounds)" for part, n in self.keeps.items()]
        (down, _), (up, _) = self.down.most_common(1)[0], self.up.most_common(1)[0]
        unusual = {way: _unusual(crossed) for way, crossed in (("down", self.down), ("up", self.up))}
        odd = [f"{way} {text}" for way, text in unusual.items() if text]
        if unusual["down"] == unusual["up"]:
            odd = [f"each {unusual['up']}"] if odd else []
        return (
            f"shares {', '.join(shares) or 'nothing'}; keeps {', '.join(keeps) or 'nothing'}; "
            f"{down:,} numbers down, {up:,} up" + (f" ({', '.join(odd)})" if odd else "")
        )


def costs_of(cls: type[Method]) -> Costs:
    """Ask a method, with its default hyper-parameters; one of another package may raise anything."""
    setup, key, costs = Setup(_network(), CLASSES, ROUNDS, Training(epochs=1)), make_key(0), Costs()
    method = cls(setup=setup)
    method = replace(method, setup=replace(setup, model=method.prepare(setup.model)))
    params, data = method.setup.model.init_params, client_data(normal(key, (2, *INPUT)), torch.arange(2))
    server, client = method.init_server(params(), CLIENTS, key), method.init_client(params(), key)

    def take_part(client: Tree, received: Tree) -> Tree:
        """Return all that a client's part of a round leads to."""
        held = method.personal_params(client, received)
        result = method.local_update(client, received, data, key)
        return {"held": held, "client": result.client, "upload": result.upload, "params": result.params}

    with torch.no_grad(), unmapped(), one_thread():
        sent = method.download(server, torch.tensor(0))
        for wire, rounds in Counter(method.wire(t) for t in range(ROUNDS)).items():
            received = select(sent, wire.down)
            outcome = take_part(client, received)
            upload = select(outcome["upload"], wire.up)
            for way, message, totals in (("down", received, costs.down), ("up", upload, costs.up)):
                numbers = _numbers(message)
                totals[sum(numbers.values())] += rounds
                for part in numbers:
                    costs.shares.setdefault(part, set()).add(way)
            for part in client:
                own = select(client, (part,))
                # Counters and flags are bookkeeping.
                if any(leaf.is_floating_point() for leaf in leaves(own)):
                    other = {**client, **tree_map(lambda leaf: leaf + torch.ones_like(leaf), own)}
                    # A part that comes with the download may matter all the same.
                    if part not in received or not _equal(outcome, take_part(other, received)):
                        costs.keeps[part] += rounds
    return costs


@cache
def _network() -> Model:
    architecture = MODELS["cifar_cnn"]()
    with torch.random.fork_rng(devices=[]):
        return Model(architecture.build(INPUT, CLASSES), classifier=architecture.classifier)


def _numbers(message: Tree) -> dict[str, int]:
    """Return how many float32 numbers each part of a message would be; what is empty is left out."""
    sizes = {part: num_bytes({part: content}) for part, content in message.items() if part not in BOOKKEEPING}
    return {part: -(-size // torch.float32.itemsize) for part, size in sizes.items() if size}


def _equal(a: Tree, b: Tree) -> bool:
    return all(torch.equal(left, right) for left, right in zip(leaves(a), leaves(b), strict=True))


def _unusual(crossed: Counter[int]) -> str:
    """Describe the rounds in which other numbers cross than usual, if any."""
    others = crossed.most_common()[1:]
    if len(others) > 1:
        return f"{sum(numbers * rounds for numbers, rounds in crossed.items()) / ROUNDS:,.0f} on average"
    return "".join(f"{numbers:,} in {rounds} of {ROUNDS} rounds" for numbers, rounds in others)
