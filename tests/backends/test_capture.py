"""Recorded rounds give what rounds give, and what cannot be recorded runs all the same."""

from __future__ import annotations

import pytest
import torch
from tests.backends.tape import OperationTape
from torch.testing import assert_close

from fedmate.backends.capture import Replays, Tape
from fedmate.core import Tree


def double(inputs: Tree) -> Tree:
    shifted = inputs["x"] + 1
    shifted.mul_(2)
    return {"y": shifted[1:], "seen": {"x": inputs["x"].clone()}}


def test_the_first_round_of_a_structure_runs_and_the_second_is_recorded() -> None:
    calls = []

    def counted(inputs: Tree) -> Tree:
        calls.append(1)
        return double(inputs)

    replays = Replays(OperationTape, pytest.fail)
    for number in range(5):
        inputs = {"x": torch.arange(3.0) + number}
        assert_close(replays.run("a", counted, inputs), double(inputs), rtol=0, atol=0)
    assert len(calls) == 2
    replays.run("b", counted, {"x": torch.zeros(7)})
    assert len(calls) == 3


def test_what_python_remembers_is_frozen() -> None:
    """Shows that a tape catches what a graph would get wrong: the tests of rounds can fail."""
    numbers = iter(range(10))

    def leaky(inputs: Tree) -> Tree:
        return {"y": inputs["x"] + next(numbers)}

    replays = Replays(OperationTape, pytest.fail)
    found = [float(replays.run("a", leaky, {"x": torch.zeros(())})["y"]) for _ in range(4)]
    assert found == [0, 1, 1, 1]


class Refusing(Tape):
    """A tape that cannot record."""

    def record(self, function: object, inputs: Tree) -> Tree:
        raise RuntimeError("operation not permitted\nwhen a stream is capturing")

    def play(self) -> None:
        raise AssertionError("nothing was recorded")


def test_what_cannot_be_recorded_runs_and_is_said_once() -> None:
    said: list[str] = []
    replays = Replays(Refusing, said.append)
    for number in range(4):
        inputs = {"x": torch.arange(3.0) + number}
        assert_close(replays.run("a", double, inputs), double(inputs), rtol=0, atol=0)
        replays.run("b", double, inputs)
    assert said == [
        "rounds cannot be captured as CUDA graphs (operation not permitted): they run operation by operation."
    ]
