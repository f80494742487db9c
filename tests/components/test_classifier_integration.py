"""Category-wise integration: rows by class counts, and the fine-tuning step on prototypes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from fedmate.components.classifier_integration import Targets, fine_tune, integrate
from fedmate.components.prototype_scrutiny import size_view
from fedmate.core import Model, Tree, make_key, normal

CLASSES, WIDTH = 4, 3
PREVIOUS: Tree = {
    "weight": torch.full((CLASSES, WIDTH), 7.0, dtype=torch.float64),
    "bias": torch.full((CLASSES,), -7.0, dtype=torch.float64),
}


def uploaded(clients: int, seed: int = 0) -> Tree:
    return {
        "weight": normal(make_key(seed), (clients, CLASSES, WIDTH), torch.float64),
        "bias": normal(make_key(seed + 1), (clients, CLASSES), torch.float64),
    }


def shares_of(counts: list[list[int]]) -> Tensor:
    return size_view(torch.tensor(counts), torch.float64)


# -------------------- eq. 7


@given(counts=st.lists(st.lists(st.integers(0, 5), min_size=CLASSES, max_size=CLASSES), min_size=1, max_size=5))
@settings(max_examples=60)
def test_one_holder_copies_its_row_and_no_holder_keeps_the_old_one(counts: list[list[int]]) -> None:
    sent = uploaded(len(counts))
    found = integrate(PREVIOUS, sent, shares_of(counts))
    for k in range(CLASSES):
        holders = [i for i, row in enumerate(counts) if row[k] > 0]
        for name in ("weight", "bias"):
            row, rows = found[name][k], sent[name][:, k]
            if not holders:
                assert torch.equal(row, PREVIOUS[name][k])
            elif len(holders) == 1:
                assert torch.equal(row, rows[holders[0]])
            else:
                assert (row <= rows[holders].amax(0) + 1e-12).all()
                assert (row >= rows[holders].amin(0) - 1e-12).all()


# -------------------- eq. 8

KNOWN = torch.tensor([True, True, False, True])
PROTOTYPES = normal(make_key(9), (CLASSES, WIDTH), torch.float64)


def model() -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Model(nn.Sequential(nn.Linear(2, WIDTH), nn.Linear(WIDTH, CLASSES)).double(), classifier="1")


def layer_of(start: Tree) -> nn.Linear:
    layer = nn.Linear(WIDTH, len(start["bias"])).double()
    layer.load_state_dict(start)
    return layer


def step(layer: nn.Linear, loss: Tensor) -> None:
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def test_fine_tuning_on_many_voices_is_sgd_on_their_weighted_losses() -> None:
    """Class 1 has one voice of two, whose weight is all; what has no weight may be anything."""
    network = model()
    start = network.init_params()["classifier"]
    voices = normal(make_key(10), (2, CLASSES, WIDTH), torch.float64)
    weights = torch.tensor([[0.25, 1.0, 0.0, 0.5], [0.75, 0.0, 0.0, 0.5]], dtype=torch.float64)
    layer = layer_of(start)
    losses = functional.cross_entropy(layer(voices.flatten(0, 1)), torch.arange(CLASSES).repeat(2), reduction="none")
    step(layer, (losses.reshape(2, CLASSES) * weights).sum() / 3)
    dirty = voices.masked_fill(weights[..., None] == 0, torch.nan)
    found = fine_tune(network, start, Targets(dirty, weights, KNOWN), steps=1, learning_rate=0.1, reduction="mean")
    assert_close(found, dict(layer.state_dict()), rtol=0, atol=1e-13)


def test_unknown_classes_can_be_left_out_of_the_softmax() -> None:
    """Then the step is the one that a classifier of the known classes alone would take; the other row stays."""
    network = model()
    start = network.init_params()["classifier"]
    layer = layer_of({name: rows[KNOWN] for name, rows in start.items()})
    step(layer, functional.cross_entropy(layer(PROTOTYPES[KNOWN]), torch.arange(3)))
    targets = Targets(PROTOTYPES[None], torch.ones(1, CLASSES, dtype=torch.float64), KNOWN)
    found = fine_tune(network, start, targets, steps=1, learning_rate=0.1, reduction="mean", mask_unknown=True)
    assert_close({name: rows[KNOWN] for name, rows in found.items()}, dict(layer.state_dict()), rtol=0, atol=1e-12)
    assert_close([rows[2] for rows in found.values()], [rows[2] for rows in start.values()], rtol=0, atol=0)
