"""Methods crossed with aggregators, server optimisers, tasks, objectives, networks and local training.

Any two values meet in some run; `make soak` runs every combination of the tables. Rows of tables take part without
anything being written, other packages' too; the other settings are `OBJECTIVES` and `LOCAL`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pytest
import torch
from tests.contract.conftest import IN_PROCESS, METHOD_NAMES, TRAINING, ModelName
from tests.contract.test_label_maps import LabelMaps
from tests.installed import installed_example
from torch import Tensor
from torch.testing import assert_close

from fedmate.backends.base import item_of
from fedmate.core import Method, ObjectiveOptions, Server, Training, Tree, all_finite, num_bytes
from fedmate.core.options import options_of
from fedmate.core.task import TASKS
from fedmate.server import AGGREGATORS, SERVER_OPTIMISERS

if TYPE_CHECKING:
    from tests.contract.conftest import History, Lab, MakeLab

Row = tuple[Any, ...]

OBJECTIVES: dict[str, dict[str, Any]] = {
    "plain": {},
    "calibration": {"calibration": 1.0, "absent_share": 0.05},
    "posthoc": {"posthoc": 1.0, "own_prior": True},
    "class_balance": {"class_balance": 0.9, "label_smoothing": 0.1},
}
"""By name: options of `[objective]`. Every option is in one of them."""

BESIDE: dict[str, dict[str, Any]] = {
    "adam": {"epsilon": 1e-3, "steps": 4},
    "adamw": {"epsilon": 1e-3, "epochs": 1.4},
    "cosine": {"gradient_clip": 0.5, "steps": 3},
    "step": {"schedule_step": 1},
}
"""By value: what comes with it. Adam divides a gradient that is rounding alone by little else than epsilon."""

LOCAL: dict[str, dict[str, Any]] = {"default": {}} | {
    value: {name: value, **BESIDE.get(value, {})}
    for name, field in options_of(Training).items()
    for value in get_args(get_type_hints(Training)[name])
    if isinstance(value, str) and value != field.default
}
"""By name: options of `[training]` that differ from the contract's; all that are chosen by name, and more if wanted."""

with installed_example():
    FACTORS: dict[str, Sequence[str]] = {
        "method": METHOD_NAMES,
        "aggregator": AGGREGATORS.names(),
        "optimiser": SERVER_OPTIMISERS.names(),
        "task": [*TASKS.names(), "label_maps"],
        "objective": tuple(OBJECTIVES),
        "network": get_args(ModelName),
        "local": tuple(LOCAL),
    }

MANY = ("network", "local")
"""Factors of which every combination of the others gets one value, in turn: else there were too many."""

SICK, SCHEDULE = 0, ((0, 1, 2, 4), (0, 2, 3, 4))
"""Who has samples that are not numbers, and who takes part by round."""


def pairwise(factors: Sequence[Sequence[str]]) -> list[Row]:
    """Return few rows in which any two values of different factors meet.

    Each row begins with the first pair that is left; of every other factor it takes the value that leaves fewest.
    """
    ids = range(len(factors))
    left = {((i, a), (j, b)): None for i, j in combinations(ids, 2) for a in factors[i] for b in factors[j]}
    rows: list[Row] = []
    while left:
        row = dict(next(iter(left)))

        def gain(place: int, value: str, row: dict[int, str] = row) -> int:
            return sum(tuple(sorted([(place, value), other])) in left for other in row.items())

        for i in sorted(set(ids) - set(row), key=lambda i: -len(factors[i])):
            # Of values as good, each row begins with another one.
            turn = len(rows) % len(factors[i])
            row[i] = max([*factors[i][turn:], *factors[i][:turn]], key=lambda value, i=i: gain(i, value))  # type: ignore[misc]
        rows.append(tuple(row[i] for i in ids))
        for pair in combinations(sorted(row.items()), 2):
            left.pop(pair, None)
    return rows


def all_crosses() -> list[Row]:
    """Return every combination, of `MANY` one value with each."""
    crosses = product(*([""] if name in MANY else values for name, values in FACTORS.items()))
    return [
        # In step with no other factor.
        tuple(
            one or values[(i + i // len(values)) % len(values)]
            for one, values in zip(row, FACTORS.values(), strict=True)
        )
        for i, row in enumerate(crosses)
    ]


ROWS = all_crosses() if os.environ.get("ALL_CROSSES") else pairwise(list(FACTORS.values()))


def test_any_two_values_meet_in_few_rows() -> None:
    factors = list(FACTORS.values())
    rows = pairwise(factors)
    for i, j in combinations(range(len(factors)), 2):
        assert {(row[i], row[j]) for row in rows} == set(product(factors[i], factors[j]))
    largest, second = sorted(map(len, factors))[:-3:-1]
    assert len(rows) <= 1.25 * largest * second


def test_every_option_of_the_objective_is_in_a_row() -> None:
    assert {name for options in OBJECTIVES.values() for name in options} == set(options_of(ObjectiveOptions))


@pytest.fixture(params=ROWS, ids="-".join)
def crossed(request: pytest.FixtureRequest, make_lab: MakeLab) -> Lab:
    """A method with one value of each factor."""
    row = dict(zip(FACTORS, request.param, strict=True))
    lab = make_lab(
        row["method"],
        row["network"],
        replace(TRAINING, **LOCAL[row["local"]]),
        ObjectiveOptions(**OBJECTIVES[row["objective"]]),
        Server(AGGREGATORS[row["aggregator"]](), SERVER_OPTIMISERS[row["optimiser"]]()),
        LabelMaps if row["task"] == "label_maps" else TASKS[row["task"]],
    )
    data = lab.federation.clients[SICK]
    return replace(
        lab.with_client(SICK, data._replace(source=data.source._replace(samples=data.source.samples * torch.nan))),
        schedule=SCHEDULE,
    )


def test_back_ends_agree_and_who_diverges_is_as_good_as_absent(crossed: Lab, spec: Callable[[Tree], Tree]) -> None:
    (expected, uploads), *others = (run(crossed, name) for name in IN_PROCESS)
    for result in expected.rounds:
        assert result.aggregated
        assert [report.client for report in result.reports if not report.valid] == [SICK]
        assert all_finite(result.server)
        assert spec(result.server) == spec(crossed.server())
        assert all(all_finite(view.tests) for view in result.views.values() if view is not None)
        losses = [(report.loss_before, report.loss_after) for report in result.reports if report.valid]
        assert torch.isfinite(torch.tensor(losses)).all()
    assert all(map(all_finite, expected.clients))
    assert list(map(spec, expected.clients)) == list(map(spec, crossed.clients()))
    check_bytes(crossed, expected, uploads)
    for found, _ in others:
        assert_close(found.rounds, expected.rounds, rtol=0, atol=1e-9, equal_nan=True)
        assert_close(found.clients, expected.clients, rtol=0, atol=1e-9)
    without = replace(crossed, schedule=tuple(tuple(i for i in ids if i != SICK) for ids in SCHEDULE))
    assert_close(run(without, IN_PROCESS[-1])[0].state(), expected.state(), rtol=0, atol=1e-9)


def run(lab: Lab, backend: str) -> tuple[History, list[Tree]]:
    """Return what a run leaves behind, and the stack of uploads of each round."""
    method, uploads = type(lab.method), []
    aggregate = method.aggregate

    def watched(self: Method, server: Tree, sent: Tree, *others: Tensor) -> Tree:
        uploads.append(sent)
        return aggregate(self, server, sent, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method, "aggregate", watched)
        return lab.run(lab.backend(backend)), uploads


def check_bytes(lab: Lab, found: History, uploads: list[Tree]) -> None:
    """Check that reports name what `wire` names, and count the bytes of what crossed."""
    server = lab.server()
    for t, (result, sent) in enumerate(zip(found.rounds, uploads, strict=True)):
        wire = lab.method.wire(t)
        assert set(sent) == wire.up
        for report in result.reports:
            download = lab.received(server, t, report.client)
            assert set(download) == wire.down
            for items, parts, size in (
                (report.down, wire.down, num_bytes(download)),
                (report.up, wire.up, num_bytes(sent) // len(result.reports)),
            ):
                assert set(items) == {item_of(part) for part in parts}
                assert sum(items.values()) == size
        server = result.server
