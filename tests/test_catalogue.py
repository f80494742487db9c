"""The catalogue lists what can be named in an experiment."""

from __future__ import annotations

import pytest
from torch import Tensor

from fedmate.catalogue import TABLES, catalogue
from fedmate.core import Tree, Wire
from fedmate.core.options import options_of
from fedmate.costs import costs_of
from fedmate.errors import UserError
from fedmate.experiment.config import tuned_on
from fedmate.methods import METHODS
from fedmate.methods.fedavg import FedAvg


@pytest.fixture(scope="module")
def methods() -> list[str]:
    """The lines of the methods: each of these is asked, which takes its time."""
    return list(catalogue("methods"))


@pytest.mark.parametrize("kind", TABLES)
def test_a_kind_lists_every_row_of_its_table(kind: str) -> None:
    lines = list(catalogue(kind))
    assert lines[0].partition(":")[0] == kind
    names = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert names == TABLES[kind].names()
    assert names


def test_a_method_is_described_with_its_options_their_defaults_and_presets(methods: list[str]) -> None:
    name = "fedmate"
    cls = METHODS[name]
    start = next(i for i, line in enumerate(methods) if line.split()[0] == name)
    assert (cls.__doc__ or "").splitlines()[0] in methods[start]
    assert methods[start + 1].strip() == costs_of(cls).describe()
    for number, (key, field) in enumerate(options_of(cls).items()):
        line = methods[start + 2 + number].strip()
        assert line.startswith(f"{key}: {field.metadata['help']}")
        assert field.default is None or line.endswith(f" [{field.default}]")
    assert f"tuned (on {', '.join(tuned_on(name))})" in methods[start + 2 + len(options_of(cls))]


class Heads(FedAvg):  # type: ignore[misc]
    def wire(self, round_number: int) -> Wire:
        return Wire(frozenset({"classifier"}), frozenset({"classifier", "num_samples"}))

    def init_client(self, params: Tree, key: Tensor) -> Tree:
        return params


class Broken(FedAvg):  # type: ignore[misc]
    def wire(self, round_number: int) -> Wire:
        raise RuntimeError("no\nidea")


def test_methods_of_other_packages_are_asked_too_and_cannot_break_the_list(
    monkeypatch: pytest.MonkeyPatch, methods: list[str]
) -> None:
    for cls in (Heads, Broken):
        monkeypatch.setitem(METHODS._rows, cls.__name__, cls)
    lines = list(catalogue("methods"))
    after = {line.split()[0]: lines[i : i + 2] for i, line in enumerate(lines)}
    assert after["Heads"][1] == "      shares classifier; keeps extractor; 1,290 numbers down, 1,290 up"
    assert after["Broken"][1] == "      its costs are unknown: it raised RuntimeError('no\\nidea')"
    assert set(methods) <= set(lines)


def test_an_unknown_kind_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="`method` cannot be listed; did you mean `methods`"):
        list(catalogue("method"))
