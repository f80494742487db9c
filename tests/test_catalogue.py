"""The catalogue lists what can be named in an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmate.catalogue import TABLES, catalogue
from fedmate.core.options import options_of
from fedmate.costs import costs_of
from fedmate.errors import UserError
from fedmate.experiment.config import tuned_on
from fedmate.methods import METHODS


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


OTHERS = """
from fedmate.core import Wire
from fedmate.methods.fedavg import FedAvg

class Heads(FedAvg):
    def wire(self, round_number):
        return Wire(frozenset({"classifier"}), frozenset({"classifier", "num_samples"}))
    def init_client(self, params, key):
        return params

class Broken(FedAvg):
    def wire(self, round_number):
        raise RuntimeError("no\\nidea")

def function():
    pass
"""
"""A module of another package: a good method, one that raises, and one that is no class."""


def test_methods_of_other_packages_are_asked_too_and_cannot_break_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods: list[str]
) -> None:
    (tmp_path / "more_methods.py").write_text(OTHERS)
    info = tmp_path / "more_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: more-methods\nVersion: 1.0\n")
    points = (
        "[fedmate.methods]",
        *(f"{name} = more_methods:{name}" for name in ("Heads", "Broken", "function", "Gone")),
    )
    (info / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(tmp_path)
    lines = list(catalogue("methods"))
    after = {line.split()[0]: lines[i : i + 2] for i, line in enumerate(lines)}
    assert after["Heads"][1] == "      shares classifier; keeps extractor; 1,290 numbers down, 1,290 up"
    assert after["Broken"][1] == "      its costs are unknown: it raised RuntimeError('no\\nidea')"
    assert "`function` is <function function" in after["function"][0]
    assert "`Gone` of the entry point `more_methods:Gone` cannot be loaded" in after["Gone"][0]
    assert set(methods) <= set(lines)


def test_an_unknown_kind_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="`method` cannot be listed; did you mean `methods`"):
        list(catalogue("method"))
