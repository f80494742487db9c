"""What a method shares, keeps and costs is what it does."""

from __future__ import annotations

import pytest
import torch

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    Federation,
    Model,
    Setup,
    Training,
    client_data,
    make_key,
)
from fedmate.costs import CLASSES, INPUT, ROUNDS, costs_of
from fedmate.methods import METHODS
from fedmate.models import MODELS

LINES = {
    "local": "shares nothing; keeps extractor, classifier; 0 numbers down, 0 up",
    "fedrep": "shares extractor; keeps classifier; 106,400 numbers down, 106,400 up",
    "fedmate": (
        "shares extractor, classifier, prototypes; keeps classifier, discriminators, extractor (in 2 of 200 rounds); "
        "108,970 numbers down, 108,970 up (each 2,570 in 2 of 200 rounds)"
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
