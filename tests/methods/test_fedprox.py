"""FedProx: two rounds by hand."""

from __future__ import annotations

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

from fedmate.methods.fedprox import FedProx

MU = 0.7


def train_by_hand(start: Params, x: Array, y: Labels) -> Params:
    """On top of the slope comes MU (p - start), which is 0 in the first step."""

    def slope(p: Params) -> Params:
        return {name: rows + MU * (p[name] - start[name]) for name, rows in slopes(p, x, y).items()}

    return descend(start, slope)


def test_two_rounds_by_hand() -> None:
    expected = START
    _, results = run(FedProx(setup=linear_setup(), proximal_weight=MU), as_clients(), [(0, 1)] * 2, evaluate=False)
    for result in results:
        expected = mean([train_by_hand(expected, *data) for data in DATA])
        assert_close(result.server, {**as_tree(expected), "buffers": {}}, rtol=0, atol=1e-12)
