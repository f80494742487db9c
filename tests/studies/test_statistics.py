"""Figures over seeds, and which methods can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.studies.small import STUDY, Run, results_of, study_of

from fedmate.studies.statistics import Figure, over_seeds, pareto_front
from fedmate.studies.study import Choice


def ok(pre: float = 50.0, own: float = 60.0, partition: str = "ab" * 32) -> Run:
    return Run({"pre": (pre, own), "post": None, "global": (pre, own)}, partition=partition)


DIVERGED = Run({"pre": (1.0, 2.0)}, diverged_in=3)


def test_figures_over_seeds_by_hand() -> None:
    assert over_seeds([]) is None
    assert over_seeds([None]) is None
    assert over_seeds([3.0]) == Figure(3.0, None, 1)
    figure = over_seeds([1.0, None, 3.0])
    assert figure == Figure(2.0, 2**0.5, 2)
    assert figure is not None
    assert figure.standard_error == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_front_has_the_points_that_no_other_surpasses(points: Sequence[tuple[float, float]]) -> None:
    front = set(pareto_front(points))
    for i, (x, y) in enumerate(points):
        surpassed = any((a > x and b >= y) or (a >= x and b > y) for a, b in points)
        assert (i in front) == (not surpassed)


def test_differences_from_published_figures_are_of_the_same_data_and_length(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    results = results_of(study, {"s10/fedavg": [ok(50.004)]})
    setting, method = study.settings[0], study.methods[0]
    assert results.difference(method, setting) == 0.61
    assert results.difference(method, replace(setting, stands_in_for="cinic10")) is None
    quick = results_of(study, {"s10/fedavg": [ok(50.004)]}, Choice(quick=True))
    assert quick.difference(method, setting) is None


def test_paired_differences_are_of_the_same_partition(tmp_path: Path) -> None:
    text = STUDY.replace("[methods.local]", '[methods.local]\nview = "pre"')
    first, second, third = ok(50.0), ok(54.0), ok(99.0, partition="x")
    results = results_of(
        study_of(tmp_path, text), {"s10/fedavg": [first, second, third], "s10/local": [ok(40.0), ok(42.0), ok(1.0)]}
    )
    fedavg, _, local = results.study.methods
    figure = results.paired(fedavg, local, results.study.settings[0], "balanced")
    assert figure == Figure(11.0, 2**0.5, 2)


@pytest.mark.parametrize(
    ("fedavg", "local", "common"),
    [
        ([ok(), ok(), ok()], [ok(), ok()], [0, 1]),
        ([ok(), None, ok()], [ok(), ok(), ok()], [0, 2]),
        ([ok(), ok(), ok()], [DIVERGED, ok(), None], [0, 1, 2]),
        ([DIVERGED], [DIVERGED], []),
    ],
)
def test_common_seeds(
    tmp_path: Path, fedavg: Sequence[Run | None], local: Sequence[Run | None], common: list[int]
) -> None:
    results = results_of(study_of(tmp_path), {"s10/fedavg": fedavg, "s10/local": local})
    assert results.common_seeds(results.study.settings[0]) == common


def test_methods_with_every_seed_are_compared_once_more(tmp_path: Path) -> None:
    text = f"{STUDY}[methods.fedper]\nmethod.name = 'fedper'\n"
    results = results_of(
        study_of(tmp_path, text),
        {"s10/fedavg": [ok(50.0), ok(60.0)], "s10/local": [ok()] * 2, "s10/fedper": [ok(70.0)]},
    )
    setting = results.study.settings[0]
    everyone, some = results.comparable(setting)
    assert everyone.seeds == "on seed 0, which all methods have"
    assert everyone.fair.figure(results.study.methods[0], setting, "pre", "balanced") == Figure(50.0, None, 1)
    assert (some.suffix, some.seeds) == ("_seeds", "on seeds 0, 1, which all methods have")
    assert [method.key for method in some.results.methods] == ["fedavg", "global", "local"]
    assert [name for name, _ in some.results.distinct(setting)] == ["FedAvg / global", "local"]
