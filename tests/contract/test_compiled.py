"""Every method's steps, recorded as programs on stacks, give what they give under vmap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.testing import assert_close

from fedmate.backends import vectorised
from fedmate.backends.base import Round, RoundResult
from fedmate.backends.compiled import CompiledSteps
from fedmate.backends.vectorised import Vectorised
from fedmate.core import Tree

if TYPE_CHECKING:
    from tests.contract.conftest import Lab


class Counter:
    """Compiles nothing, and counts."""

    def __init__(self) -> None:
        self.compiled = self.ran = 0

    def __call__(self, module: GraphModule) -> Callable[..., list[Tensor]]:
        self.compiled += 1

        def run(*stacks: Tensor) -> list[Tensor]:
            self.ran += 1
            made: list[Tensor] = module(*stacks)
            return made

        return run


def with_equal_steps(lab: Lab) -> Lab:
    """Return the same with two steps that one program serves: recording takes long."""
    setup = lab.method.setup
    training = dataclasses.replace(setup.training, batch_size=8, epochs=2)
    method = dataclasses.replace(lab.method, setup=dataclasses.replace(setup, training=training))
    return dataclasses.replace(lab, method=method)


def run(backend: Vectorised, lab: Lab) -> tuple[RoundResult, list[Tree]]:
    return backend.run_round(lab.server(), Round(0, (0, 1, 3), evaluate=False)), list(backend.clients)


def backend(lab: Lab, *, compile: bool, chunk_size: int | None = None) -> Vectorised:
    return Vectorised(lab.method, lab.federation, lab.key, compile=compile, chunk_size=chunk_size)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Stand in for the compiler."""
    counter = Counter()
    monkeypatch.setattr(vectorised, "CompiledSteps", lambda compile, say: CompiledSteps(counter, say))
    return counter


def test_recorded_steps_change_nothing(plain_lab: Lab, counter: Counter) -> None:
    lab = with_equal_steps(plain_lab)
    expected = run(backend(lab, compile=False), lab)
    assert counter.ran == 0
    compiled = backend(lab, compile=True)
    assert_close(run(compiled, lab), expected, rtol=0, atol=1e-12, equal_nan=True)
    assert counter.ran >= counter.compiled > 0
    assert not compiled.notes


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_layers_see_their_samples(make_lab: Callable[..., Lab], chunk_size: int | None, counter: Counter) -> None:
    """BatchNorm needs the mask of a batch, dropout its key; chunks of clients are programs of their own."""
    lab = with_equal_steps(make_lab("fedavg", "shared"))
    expected = run(backend(lab, compile=False), lab)
    assert_close(run(backend(lab, compile=True, chunk_size=chunk_size), lab), expected, rtol=0, atol=1e-9)


def test_each_loop_reads_what_is_its_own(make_lab: Callable[..., Lab], counter: Counter) -> None:
    """Loops of a round, its batches of several sizes and later rounds: constants and programs must not be mixed up."""
    lab = make_lab("fedrep", "plain").with_few_steps()
    ends = []
    for compile in (False, True):
        one, server = backend(lab, compile=compile), lab.server()
        for t in range(2):
            server = one.run_round(server, Round(t, lab.everyone, evaluate=False)).server
        ends.append((server, list(one.clients)))
        assert not one.notes
    assert_close(ends[1], ends[0], rtol=0, atol=1e-12)


def test_what_is_compiled_holds_no_tensors(make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    lab, seen = with_equal_steps(make_lab("fedavg", "plain")), list[GraphModule]()

    def keep(module: GraphModule) -> Callable[..., list[Tensor]]:
        seen.append(module)
        return module

    monkeypatch.setattr(vectorised, "CompiledSteps", lambda compile, say: CompiledSteps(keep, say))
    run(backend(lab, compile=True), lab)
    assert seen
    assert not [name for module in seen for name, value in vars(module).items() if isinstance(value, Tensor)]


def test_later_rounds_compile_nothing(make_lab: Callable[..., Lab], counter: Counter) -> None:
    lab = with_equal_steps(make_lab("fedavg", "plain"))
    compiled, counts, server = backend(lab, compile=True), [], lab.server()
    for t in range(3):
        server = compiled.run_round(server, Round(t, lab.everyone, evaluate=False)).server
        counts.append(counter.compiled)
    assert counts == [counts[0]] * 3


def test_what_cannot_be_compiled_runs_and_is_said_once(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = with_equal_steps(make_lab("fedavg", "plain"))
    expected = run(backend(lab, compile=False), lab)

    def refuse(module: GraphModule) -> Callable[..., list[Tensor]]:
        raise RuntimeError("no compiler here\nat all")

    monkeypatch.setattr(vectorised, "CompiledSteps", lambda compile, say: CompiledSteps(refuse, say))
    refusing = backend(lab, compile=True)
    assert_close(run(refusing, lab), expected, rtol=0, atol=0, equal_nan=True)
    assert refusing.notes == ["steps cannot be compiled (no compiler here): they run operation by operation."]


def test_outside_vmap_steps_are_taken_as_they_are() -> None:
    steps = CompiledSteps(Counter(), pytest.fail)
    state = steps(lambda state, batch: {"x": state["x"] + 1}, {"x": torch.zeros(2)}, None)  # type: ignore[arg-type]
    assert_close(state, {"x": torch.ones(2)})
