"""Tables of what runs take: what crosses between clients and server, and how long it is until an accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedmate.core import MODEL_PARTS
from fedmate.experiment.run import sample_participants
from fedmate.report.sheets import Sheet
from fedmate.studies.grid import Column, Row
from fedmate.studies.kept import Kept
from fedmate.studies.outcome import Outcome, over_seeds
from fedmate.studies.sheets import distinct, dressed, label, name_for

TARGET = 70.0
"""The accuracy, in percent, that the paper measures the time to."""

PUBLISHED_TIMES = (
    "published: 17.7 minutes for FedMate, 18.7 to 25.3 for others, on pathological CINIC-10 and a machine that is not "
    "named; compare rounds and FLOPs"
)

PUBLISHED_WORDS = {
    "fedproto": "prototype",
    "lg_fedavg": "classifier",
    "fedper": "feature extractor",
    "fedrep": "feature extractor",
    "fedbabu": "feature extractor",
    "fedavg": "model",
    "moon": "model",
    "fedfa": "model + prototype",
    "fedpac": "model + prototype",
    "fedmate": "equivalent to model",
}
"""By method: what crosses, in the words of the paper's table."""

SIZES = {"float32": 4, "float64": 8}
"""Bytes that a number has."""


class Crossed(NamedTuple):
    """What crossed in a run, in one direction.

    Attributes:
        numbers: by item, for one client and round on average; bookkeeping apart.
        megabytes: of these in the whole run, of all clients.
        bookkeeping: bytes of that.
    """

    numbers: dict[str, float]
    megabytes: float
    bookkeeping: int

    @classmethod
    def of(cls, kept: Kept, way: str) -> Crossed:
        """Read it from what is kept of a run; `way` is `up` or `down`."""
        items = {item: size for item, size in kept.summary[f"bytes_{way}_items"].items() if size}
        bookkeeping = items.pop("bookkeeping", 0)
        size = SIZES[kept.config["dtype"]] * _messages(kept.config, len(kept.content["holdings"]), kept.diverged_in)
        numbers = {item: total / size for item, total in items.items()}
        return cls(numbers, sum(items.values()) / 1e6, bookkeeping)

    @property
    def cells(self) -> list[str]:
        """What a table says of it."""
        parts = ", ".join(f"{item} {_count(number)}" for item, number in self.numbers.items())
        return [parts or "nothing", _count(sum(self.numbers.values())), f"{self.megabytes:.2f}"]


def cost(outcome: Outcome) -> list[Sheet]:
    """Return for each column what crosses, beside the paper's words."""
    return [_cost(outcome, column) for column in outcome.columns]


def time_to_accuracy(outcome: Outcome) -> list[Sheet]:
    """Return how long it is until the published view first has the accuracy `TARGET`."""
    head, groups = ["method", "view"], ["", ""]
    rows = [[row.name, f"`{row.view}`"] for row in outcome.rows]
    for column in outcome.columns:
        head += ["rounds", "seconds", "FLOPs"]
        groups += [f"{label(column)}, `{column.test}` test"] * 3
        rows = [[*cells, *_time(outcome, row, column)] for cells, row in zip(rows, outcome.rows, strict=True)]
    every = sorted({kept.config["eval_every"] for kept in outcome.found.values()})
    looks = "round" if every == [1] else f"{' or '.join(map(str, every))} rounds"
    notes = [
        f"until {TARGET:g} % are reached, mean over clients; looked at every {looks}",
        "± standard deviation between seeds, where there are several; FLOPs: of all clients' local updates",
        PUBLISHED_TIMES,
    ]
    return [dressed(outcome, Sheet("time", f"time to {TARGET:g} %", head, rows, notes, frozenset(), groups))]


# -------------------- what crosses


def _cost(outcome: Outcome, column: Column) -> Sheet:
    runs = {name: _first(outcome.kept(rows[0], column)) for name, rows in distinct(outcome, column)}
    reference = next(filter(_sends_models, filter(None, runs.values())), None)
    model = None if reference is None else {way: _model(reference, way) for way in ("down", "up")}
    rows = [[name, *(_crossing(kept, model) if kept else [""] * 9)] for name, kept in runs.items()]
    notes = [
        "parts, numbers: for one client and round, on average; MB: of all clients in the whole run; "
        "bookkeeping (counts, flags) is apart",
        "of the model: numbers in both directions, relative to FedAvg, which sends the model and nothing else",
        *(_schedule(name, kept, model) for name, kept in runs.items() if kept and model and _method(kept) == "fedmate"),
    ]
    parts = ["parts", "numbers", "MB"]
    head = ["method", "paper", *parts, *parts, "bookkeeping MB", "of the model"]
    groups = ["", "", *["down"] * 3, *["up"] * 3, "", ""]
    name = "cost" if len(outcome.columns) == 1 else name_for("cost", column)
    return dressed(outcome, Sheet(name, f"cost, {label(column)}", head, rows, notes, frozenset(), groups))


def _crossing(kept: Kept, model: Mapping[str, Mapping[str, float]] | None) -> list[str]:
    """Return a run's cells."""
    down, up = Crossed.of(kept, "down"), Crossed.of(kept, "up")
    relative = "" if model is None else f"{_ratio(kept, model, ('down', 'up')):.4f}"
    bookkeeping = f"{(down.bookkeeping + up.bookkeeping) / 1e6:.3f}"
    return [_words(kept), *down.cells, *up.cells, bookkeeping, relative]


def _ratio(kept: Kept, model: Mapping[str, Mapping[str, float]], ways: Sequence[str]) -> float:
    """Return how many numbers cross for each that would if models did, in some directions."""
    crossed = sum(sum(Crossed.of(kept, way).numbers.values()) for way in ways)
    return crossed / sum(sum(model[way].values()) for way in ways)


def _schedule(name: str, kept: Kept, model: Mapping[str, Mapping[str, float]]) -> str:
    """Say in how many rounds FedMate's extractor travels, and what all comes to."""
    shares = {way: Crossed.of(kept, way).numbers.get("extractor", 0) / model[way]["extractor"] for way in model}
    rounds = _rounds(kept.config, kept.diverged_in)
    travels = ", ".join(f"{way} in {share * rounds:.0f}" for way, share in shares.items())
    ratios = ", ".join(f"{_ratio(kept, model, [way]):.6f} {way}" for way in model)
    return f"{name}: the extractor travels {travels} of {rounds} rounds; of the model {ratios}"


def _model(kept: Kept, way: str) -> dict[str, float]:
    numbers = Crossed.of(kept, way).numbers
    return {part: number for part, number in numbers.items() if part in MODEL_PARTS}


def _sends_models(kept: Kept) -> bool:
    """Tell whether a run sends the whole model in every round, whatever else it sends."""
    return _method(kept) == "fedavg" or (_method(kept) == "fedmate" and kept.config["method"]["cft"] == "all")


def _words(kept: Kept) -> str:
    """Return the paper's words; FedMate's are those of its own schedule."""
    if _method(kept) == "fedmate" and kept.config["method"]["cft"] != "cft":
        return ""
    return PUBLISHED_WORDS.get(_method(kept), "")


def _method(kept: Kept) -> str:
    return str(kept.config["method"]["name"])


def _first(kept: Sequence[Kept]) -> Kept | None:
    """Return one of the seeds, which all cost the same, if possible one that came to its end."""
    return next(iter(sorted(kept, key=lambda one: one.diverged_in is not None)), None)


def _messages(config: Mapping[str, Any], clients: int, diverged_in: int | None) -> int:
    """Return how many messages cross in a direction: one for each participant of each round."""
    training = clients - math.floor(config["holdout_clients"] * clients + 1e-9)
    participants = sample_participants(0, 0, training, config["participation"])
    return len(participants) * _rounds(config, diverged_in)


def _rounds(config: Mapping[str, Any], diverged_in: int | None) -> int:
    rounds: int = config["rounds"] if diverged_in is None else diverged_in
    return rounds


def _count(number: float) -> str:
    """Write how many, with a decimal if it is an average that needs one."""
    return f"{number:,.1f}".removesuffix(".0")


# -------------------- how long it takes


def _time(outcome: Outcome, row: Row, column: Column) -> list[str]:
    """Return rounds, seconds and FLOPs until the target, as far as there are any."""
    kept = outcome.kept(row, column)
    reached = [(one, point) for one in kept if (point := _reached(one, row, column)) is not None]
    if not reached:
        return [_not_reached(kept, row, column), "", ""]
    some = f" ({len(reached)} of {len(kept)} seeds)" if len(reached) < len(kept) else ""
    flops = [
        one.content["flops_per_round"] * point["round"] for one, point in reached if "flops_per_round" in one.content
    ]
    return [
        _over_seeds([point["round"] for _, point in reached], "g" if len(reached) == 1 else ".1f") + some,
        _over_seeds([point["seconds"] for _, point in reached], ".1f"),
        _over_seeds(flops, ".2e"),
    ]


def _reached(kept: Kept, row: Row, column: Column) -> Mapping[str, Any] | None:
    """Return the first point of a curve that has the target, if there is one."""
    for point in kept.content["curve"]:
        accuracy = _accuracy(point, row, column)
        if accuracy is not None and accuracy >= TARGET:
            found: Mapping[str, Any] = point
            return found
    return None


def _not_reached(kept: Sequence[Kept], row: Row, column: Column) -> str:
    """Say how far it came instead; nothing where nothing was run."""
    if not kept:
        return ""
    found = [_accuracy(point, row, column) for one in kept for point in one.content["curve"]]
    best = max((accuracy for accuracy in found if accuracy is not None), default=None)
    diverged = "diverged" if any(one.diverged_in is not None for one in kept) else "not reached"
    return diverged if best is None else f"{diverged} (best {best:.2f})"


def _accuracy(point: Mapping[str, Any], row: Row, column: Column) -> float | None:
    accuracy: float | None = point["accuracy"].get(row.view, {}).get(column.test)
    return accuracy


def _over_seeds(values: Sequence[float], form: str) -> str:
    figure = over_seeds(values)
    if figure is None:
        return ""
    return f"{figure.mean:{form}}" + ("" if figure.std is None else f" ± {figure.std:{form}}")
