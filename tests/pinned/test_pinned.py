"""Runs of every method give what they gave at the commit in `reference.json`; the comparer sees what differs."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pinned import cases, compare

NAMES = [name for name, case in cases.CASES.items() if case.in_ci]


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(compare.REFERENCE.read_text())
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> compare.Side:
    side = compare.Side(compare.TREE, Path(sys.executable), tmp_path_factory.mktemp("pinned"))
    # Under `pytest -n 2` the other processor has a worker of its own.
    compare.run(side, NAMES, 1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
    return side


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_the_pinned_commit(name: str, here: compare.Side, reference: dict[str, Any]) -> None:
    found = compare.read(here, name)
    assert not found["error"], found["error"]
    assert not list(compare.differences(reference["cases"][name], compare.compact(found), compare.TOLERANCE))


def metric(result: dict[str, Any]) -> None:
    result["figures"]["metrics.jsonl"][-1]["accuracy"]["pre"]["own"]["mean"] += 1e-6


def byte(result: dict[str, Any]) -> None:
    result["figures"]["summary.json"]["bytes_up"] += 1


def missing(result: dict[str, Any]) -> None:
    del result["figures"]["rounds.csv"]["loss_after"]


def element(result: dict[str, Any]) -> None:
    result["tensors"]["checkpoint"][2].reshape(-1)[-1] += 1e-6


def lost(result: dict[str, Any]) -> None:
    result["tensors"]["checkpoint"].pop()


def kind(result: dict[str, Any]) -> None:
    held = result["tensors"]["checkpoint"]
    held[0] = held[0][None]


@pytest.mark.parametrize("plant", [metric, byte, missing, element, lost, kind])
def test_a_planted_difference_is_found(plant: Callable[[dict[str, Any]], None], here: compare.Side) -> None:
    old = compare.read(here, "method/fedmate/vectorised")
    new = copy.deepcopy(old)
    new["tensors"]["checkpoint"].reverse()
    assert compare.compare("method", old, new) == ("same", [])
    plant(new)
    word, lines = compare.compare("method", old, new)
    assert word == "DIFFERS"
    assert len(lines) in (1, 2)
    assert list(compare.differences(compare.compact(old), compare.compact(new), compare.TOLERANCE))


def test_equal_errors_are_no_agreement(here: compare.Side) -> None:
    broken = {**compare.read(here, NAMES[0]), "error": "it broke"}
    assert compare.compare(NAMES[0], broken, broken)[0] == "FAILED"


def test_nan_equals_nan_only() -> None:
    hole = np.array([1.0, np.nan])
    assert not list(compare.unmatched([hole], [hole.copy()], 1e-9))
    assert list(compare.unmatched([hole], [np.array([1.0, 2.0])], 1e-9))
