"""Tables that only the paper's experiments need: ranking, partitions, communication cost, time to an accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from fedmate.core import MODEL_PARTS
from fedmate.experiment.run import sample_participants
from fedmate.report.tables import Table
from fedmate.studies.records import RunSummary
from fedmate.studies.statistics import Figure, Group, Results, over_seeds
from fedmate.studies.study import StudyMethod, StudySetting
from fedmate.studies.tables import TESTS, TESTS_NOTE, cell, file_name, titled, with_error

# -------------------- ranking


def ranking(results: Results) -> list[Table]:
    """Return the order of all methods in one and the same view, for each setting and both tests."""
    return [_ranking(group, setting) for setting in results.settings for group in results.comparable(setting)]


def _ranking(group: Group, setting: StudySetting) -> Table:
    blocks = [[*_ranked([*_entries(group.fair, setting, test)])] for test in TESTS]
    rows = [[*left, *right] for left, right in zip_longest(*blocks, fillvalue=["", "", ""])]
    notes = [
        "all methods in the view `pre`: the models of clients after a broadcast, before they train",
        "(global): the aggregated model, where clients do not hold it in `pre`",
        TESTS_NOTE,
        group.note,
    ]
    head, groups = ["place", "method", "accuracy"] * 2, [f"`{test}`" for test in TESTS for _ in range(3)]
    name, title = file_name(f"ranking{group.suffix}", setting), f"ranking{group.which}, {setting.label}"
    return titled(group.results, Table(name, title, head, rows, notes, frozenset(), groups))


def _entries(results: Results, setting: StudySetting, test: str) -> Iterator[tuple[str, Figure | None]]:
    """Yield methods and their figures, `None` for those that diverged."""
    for name, (method, *_) in results.distinct(setting):
        held, common = ({t: results.figure(method, setting, view, t) for t in TESTS} for view in ("pre", "global"))
        if held[test] is not None or cell(results, method, setting, "pre", test) == "diverged":
            yield name, held[test]
        if common[test] is not None and common != held:
            yield f"{name} (global)", common[test]


def _ranked(entries: Sequence[tuple[str, Figure | None]]) -> Iterator[list[str]]:
    """Yield place, name and figure, the largest first; equal figures share a place."""
    found = sorted(((round(f.mean, 2), name, f) for name, f in entries if f is not None), key=lambda one: -one[0])
    for mean, name, figure in found:
        seeds = f"{figure.seeds} seed{'s' if figure.seeds > 1 else ''}"
        yield [str(1 + sum(other > mean for other, _, _ in found)), name, f"{with_error(figure)} ({seeds})"]
    yield from (["", name, "diverged"] for name, figure in entries if figure is None)


# -------------------- partitions


def partitions(results: Results) -> list[Table]:
    """Return how uneven the clients of each setting are, with its first seed."""
    rows = []
    for setting in results.settings:
        runs = [one for method in results.methods for one in results.finished(method, setting)]
        counts = [client for client in runs[0].content["holdings"] if sum(client)] if runs else []
        if counts:
            samples, held = [sum(client) for client in counts], [sum(map(bool, client)) for client in counts]
            largest = [100 * max(client) / sum(client) for client in counts]
            absent = sum(not any(client[k] for client in counts) for k in range(len(counts[0])))
            spans = [_span(samples, "d"), _span(held, "d"), _span(largest, ".1f"), str(absent)]
            rows.append([setting.label, str(len(counts)), *spans])
    head = ["setting", "clients", "samples each", "classes each", "largest class in %", "classes without a client"]
    return [titled(results, Table("spread", "samples of clients", head, rows, ["each: from the fewest to the most"]))]


def _span(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"


# -------------------- communication cost

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
"""By method: the messages, in the words of the paper's table."""

SIZES = {"float32": 4, "float64": 8}
"""Bytes of a number."""


class Traffic(NamedTuple):
    """The messages of a run in one direction.

    Attributes:
        numbers: by item, for one client and round on average, without bookkeeping.
        megabytes: of these in the whole run, of all clients.
        bookkeeping: its bytes.
    """

    numbers: dict[str, float]
    megabytes: float
    bookkeeping: int

    @classmethod
    def of(cls, run: RunSummary, way: str) -> Traffic:
        """Read it from a record; `way` is `up` or `down`."""
        items = {item: size for item, size in run.summary[f"bytes_{way}_items"].items() if size}
        bookkeeping = items.pop("bookkeeping", 0)
        size = SIZES[run.config["dtype"]] * _messages(run)
        numbers = {item: total / size for item, total in items.items()}
        return cls(numbers, sum(items.values()) / 1e6, bookkeeping)

    @property
    def cells(self) -> list[str]:
        """Its cells in the table."""
        parts = ", ".join(f"{item} {_count(number)}" for item, number in self.numbers.items())
        return [parts or "nothing", _count(sum(self.numbers.values())), f"{self.megabytes:.2f}"]


Model = Mapping[str, Mapping[str, float]]
"""The numbers of a model by direction and part."""


def cost(results: Results) -> list[Table]:
    """Return the messages of each method, beside the paper's words."""
    return [_cost(results, setting) for setting in results.settings]


def _cost(results: Results, setting: StudySetting) -> Table:
    runs = {name: _first(results.finished(methods[0], setting)) for name, methods in results.distinct(setting)}
    reference = next(one for one in runs.values() if one is not None and _sends_models(one))
    model = {
        way: {part: n for part, n in Traffic.of(reference, way).numbers.items() if part in MODEL_PARTS}
        for way in ("down", "up")
    }
    rows = [[name, *([""] * 9 if one is None else _cost_cells(one, model))] for name, one in runs.items()]
    notes = [
        "parts, numbers: for one client and round, on average; MB: of all clients in the whole run; "
        "bookkeeping (counts, flags) is apart",
        "of the model: numbers in both directions, relative to FedAvg, which sends the model and nothing else",
        *(
            _schedule(name, one, model)
            for name, one in runs.items()
            if one and one.config["method"]["name"] == "fedmate"
        ),
    ]
    parts = ["parts", "numbers", "MB"]
    head = ["method", "paper", *parts, *parts, "bookkeeping MB", "of the model"]
    groups = ["", "", *["down"] * 3, *["up"] * 3, "", ""]
    return titled(results, Table("cost", f"cost, {setting.label}", head, rows, notes, frozenset(), groups))


def _cost_cells(run: RunSummary, model: Model) -> list[str]:
    down, up = Traffic.of(run, "down"), Traffic.of(run, "up")
    method = run.config["method"]
    words = "" if method.get("cft", "cft") != "cft" else PUBLISHED_WORDS.get(method["name"], "")
    bookkeeping = f"{(down.bookkeeping + up.bookkeeping) / 1e6:.3f}"
    return [words, *down.cells, *up.cells, bookkeeping, f"{_ratio(run, model, ('down', 'up')):.4f}"]


def _ratio(run: RunSummary, model: Model, ways: Sequence[str]) -> float:
    """Return the numbers sent for each that would be if models were, in some directions."""
    sent = sum(sum(Traffic.of(run, way).numbers.values()) for way in ways)
    return sent / sum(sum(model[way].values()) for way in ways)


def _name(run: RunSummary) -> str:
    return str(run.config["method"]["name"])


def _schedule(name: str, run: RunSummary, model: Model) -> str:
    """Say in how many rounds FedMate's extractor is sent."""
    shares = {way: Traffic.of(run, way).numbers.get("extractor", 0) / model[way]["extractor"] for way in model}
    sent = ", ".join(f"{way} in {share * _rounds(run):.0f}" for way, share in shares.items())
    ratios = ", ".join(f"{_ratio(run, model, [way]):.6f} {way}" for way in model)
    return f"{name}: the extractor is sent {sent} of {_rounds(run)} rounds; of the model {ratios}"


def _sends_models(run: RunSummary) -> bool:
    method = run.config["method"]
    return bool(method["name"] == "fedavg" or (method["name"] == "fedmate" and method["cft"] == "all"))


def _first(runs: Sequence[RunSummary]) -> RunSummary | None:
    """Return one of the seeds, which all cost the same, if possible one that did not diverge."""
    return next(iter(sorted(runs, key=lambda one: one.diverged_in is not None)), None)


def _messages(run: RunSummary) -> int:
    """Return the number of messages in a direction: one for each participant of each round."""
    config, clients = run.config, len(run.content["holdings"])
    training = clients - math.floor(config["holdout_clients"] * clients + 1e-9)
    return len(sample_participants(0, 0, training, config["participation"])) * _rounds(run)


def _rounds(run: RunSummary) -> int:
    rounds: int = run.config["rounds"] if run.diverged_in is None else run.diverged_in
    return rounds


def _count(number: float) -> str:
    return f"{number:,.1f}".removesuffix(".0")


# -------------------- time to an accuracy

TARGET = 70.0
"""The accuracy, in percent, that the paper measures the time to."""


def time_to_accuracy(results: Results) -> list[Table]:
    """Return rounds, seconds and operations until each method first has the accuracy `TARGET`."""
    head, groups = ["method", "view"], ["", ""]
    rows = [[method.name, f"`{method.view}`"] for method in results.methods]
    for setting in results.settings:
        head += ["rounds", "seconds", "FLOPs"]
        groups += [f"{setting.label}, `{setting.test}` test"] * 3
        rows = [[*cells, *_time(results, m, setting)] for cells, m in zip(rows, results.methods, strict=True)]
    every = sorted({run.config["eval_every"] for run in results.found.values()})
    notes = [
        f"until {TARGET:g} % are reached, mean over clients; evaluated every {' or '.join(map(str, every))} rounds",
        "± standard deviation between seeds, where there are several; FLOPs: of all clients' local updates",
        "published: 17.7 minutes for FedMate, 18.7 to 25.3 for others, on pathological CINIC-10 and a machine that is "
        "not named; compare rounds and FLOPs",
    ]
    return [titled(results, Table("time", f"time to {TARGET:g} %", head, rows, notes, frozenset(), groups))]


def _time(results: Results, method: StudyMethod, setting: StudySetting) -> list[str]:
    runs = results.finished(method, setting)
    found = [(one, point) for one in runs if (point := _reached(one, method, setting)) is not None]
    if not found:
        accuracies = [_accuracy(point, method, setting) for one in runs for point in one.content["curve"]]
        best = max((accuracy for accuracy in accuracies if accuracy is not None), default=None)
        reason = "diverged" if any(one.diverged_in is not None for one in runs) else "not reached"
        return ["" if not runs else reason if best is None else f"{reason} (best {best:.2f})", "", ""]
    some = f" ({len(found)} of {len(runs)} seeds)" if len(found) < len(runs) else ""
    flops = [run.content["flops_per_round"] * p["round"] for run, p in found if "flops_per_round" in run.content]
    return [
        _number(over_seeds([point["round"] for _, point in found]), "g" if len(found) == 1 else ".1f") + some,
        _number(over_seeds([point["seconds"] for _, point in found]), ".1f"),
        _number(over_seeds(flops), ".2e"),
    ]


def _reached(run: RunSummary, method: StudyMethod, setting: StudySetting) -> Mapping[str, Any] | None:
    """Return the first evaluated round that has the target."""
    found = [(point, _accuracy(point, method, setting)) for point in run.content["curve"]]
    return next((point for point, accuracy in found if accuracy is not None and accuracy >= TARGET), None)


def _accuracy(point: Mapping[str, Any], method: StudyMethod, setting: StudySetting) -> float | None:
    accuracy: float | None = point["accuracy"].get(method.view, {}).get(setting.test)
    return accuracy


def _number(figure: Figure | None, form: str) -> str:
    if figure is None:
        return ""
    return f"{figure.mean:{form}}" + ("" if figure.std is None else f" ± {figure.std:{form}}")
