"""Ditto: two rounds by hand."""

from __future__ import annotations

from functools import partial

from tests.methods.small import (
    DATA,
    START,
    Array,
    Labels,
    Params,
    as_clients,
    as_tree,
    descend,
    linear_setup,
    mean,
    run,
    slopes,
)
from torch.testing import assert_close

from fedmate.core import select
from fedmate.methods.ditto import Ditto

PULL = 0.7


def personal(p: Params, x: Array, y: Labels, centre: Params) -> Params:
    """Train towards the common model as it was at the start of the round."""

    def slope(p: Params) -> Params:
        return {name: rows + PULL * (p[name] - centre[name]) for name, rows in slopes(p, x, y).items()}

    return descend(p, slope)


def test_two_rounds_by_hand() -> None:
    """The common model is averaged; personal ones go on from where they were."""
    common, own = START, [START, START]
    for _ in range(2):
        own = [personal(p, *data, common) for p, data in zip(own, DATA, strict=True)]
        common = mean([descend(common, partial(slopes, x=x, y=y)) for x, y in DATA])
    method = Ditto(setup=linear_setup(), proximal_weight=PULL)
    backend, results = run(method, as_clients(), [(0, 1)] * 2, evaluate=False)
    found = [results[-1].server, *(client["personal_model"] for client in backend.clients)]
    for tree, expected in zip(found, (common, *own), strict=True):
        assert_close(select(tree, ("extractor", "classifier")), as_tree(expected), rtol=0, atol=1e-12)
