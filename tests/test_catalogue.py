"""The catalogue lists what can be named in an experiment, and what a method shares, keeps and costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.catalogue import CLASSES, INPUT, ROUNDS, TABLES, catalogue, costs_of
from fedmate.core import Federation, Model, Setup, Training, Tree, Wire, client_data, make_key
from fedmate.core.options import options_of
from fedmate.errors import UserError
from fedmate.experiment.config import tuned_on
from fedmate.methods import METHODS
from fedmate.methods.fedavg import FedAvg
from fedmate.models import MODELS


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


LINES = {
    "local": "shares nothing; keeps extractor, classifier; 0 numbers down, 0 up",
    "fedrep": "shares extractor; keeps classifier; 106,400 numbers down, 106,400 up",
    "fedmate": (
        "shares extractor, classifier, prototypes; keeps classifier, discriminators, extractor (in 2 of 200 rounds); "
        "108,970 numbers down, 108,970 up (2,570 in 2 of 200 rounds)"
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_method_is_described_in_a_line(name: str) -> None:
    assert costs_of(METHODS[name]).describe() == LINES[name]


@pytest.mark.parametrize("name", METHODS.names())
def test_the_numbers_are_those_of_a_round_that_is_run(name: str) -> None:
    architecture = MODELS["cifar_cnn"]()
    with torch.random.fork_rng():
        model = Model(architecture.build(INPUT, CLASSES), classifier=architecture.classifier)
    method = METHODS[name](setup=Setup(model, CLASSES, ROUNDS, Training(epochs=1)))
    data = client_data(torch.zeros(2, *INPUT), torch.tensor([3, 8]))
    backend = Sequential(method, Federation((data,), test=data, num_classes=CLASSES), make_key(0))
    server = method.init_server(method.setup.model.init_params(), 1, make_key(0))
    (report,) = backend.run_round(server, Round(0, (0,), evaluate=False)).reports
    told, ran = costs_of(METHODS[name]), (report.down, report.up)
    for counts, crossed, way in zip((told.down, told.up), ran, ("down", "up"), strict=True):
        numbers = {item: size / 4 for item, size in crossed.items() if item != "bookkeeping"}
        assert counts[int(sum(numbers.values()))] > 0
        assert {part for part, ways in told.shares.items() if way in ways} >= set(numbers)
