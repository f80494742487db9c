"""Prior calibration: what is added to logits, and what it is for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from fedmate.core import Adjustment, cross_entropy
from fedmate.core.objective import BARRIER, ObjectiveOptions, estimate_prior
from fedmate.errors import UserError


def counts(*held: int) -> Tensor:
    return torch.tensor(held, dtype=torch.float64)


def test_a_class_that_is_not_held_may_count_as_rare_in_training_and_is_never_asked_for() -> None:
    objective = ObjectiveOptions(calibration=0.5, absent_share=0.01)
    found, own = (
        objective.for_training(counts(3, 1, 0, 0)).logits,
        objective.for_own(counts(3, 1, 0, 0), is_global=False),
    )
    assert found is not None
    assert_close(found, 0.5 * torch.tensor([0.75, 0.25, 0.01, 0.01], dtype=torch.float64).log())
    assert own.tolist() == [*found[:2].tolist(), BARRIER, BARRIER]
    assert objective.for_balanced(counts(3, 1, 0, 0), is_global=False) is None


def test_one_control_adds_class_shares_to_global_models_on_the_own_test_alone() -> None:
    """A model that a client has trained for itself holds them: to add them would be to add them twice."""
    held, control, calibrated = counts(3, 1, 1, 1), ObjectiveOptions(own_prior=True), ObjectiveOptions(calibration=1.0)
    assert control.for_training(held) == Adjustment()
    assert_close(control.for_own(held, is_global=True), calibrated.for_own(held, is_global=True))
    assert not control.for_own(held, is_global=False).any()


def test_the_other_takes_them_out_of_clients_models_on_the_balanced_test_alone() -> None:
    held, control = counts(3, 1, 0), ObjectiveOptions(posthoc=0.5)
    assert control.for_training(held) == Adjustment()
    assert control.for_balanced(held, is_global=True) is None
    expected = -0.5 * torch.tensor([3 / 4.5, 1 / 4.5, 0.5 / 4.5], dtype=torch.float64).log()
    assert_close(control.for_balanced(held, is_global=False), expected)
    assert ObjectiveOptions(posthoc=0.5, calibration=1.0).for_balanced(held, is_global=False) is None


def test_classes_weigh_by_their_effective_number_of_samples() -> None:
    """By hand: 1 + beta + beta^2 + ... n terms; at most n, and not less than 1."""
    held = counts(3, 1, 0)
    assert_close(ObjectiveOptions(class_balance=0.5).for_training(held).weights, counts(0, 1, 0) + counts(4, 0, 0) / 7)
    assert_close(ObjectiveOptions(class_balance=1.0).for_training(held).weights, counts(0, 1, 0) + counts(1, 0, 0) / 3)
    assert ObjectiveOptions().for_training(held).weights is None


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_weighted_loss_is_torchs(smoothing: float) -> None:
    """Rows that do not count may hold anything, and a batch without a row that counts costs nothing."""
    logits, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0])
    mask, weights = torch.tensor([True, True, True, True, False]), counts(1, 2, 4)
    losses = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)[:4]
    expected = (losses * weights[labels[:4]]).sum() / weights[labels[:4]].sum()
    logits[4] = torch.nan
    assert_close(cross_entropy(logits, labels, mask, weights, smoothing), expected)
    assert cross_entropy(logits, labels, mask & False, weights, smoothing) == 0
    assert_close(
        cross_entropy(logits[:4], labels[:4], None, torch.ones(3, dtype=torch.float64), smoothing),
        functional.cross_entropy(logits[:4], labels[:4], label_smoothing=smoothing),
    )


def test_no_method_answers_on_the_own_test_with_a_class_that_the_client_lacks() -> None:
    for is_global in (False, True):
        assert ObjectiveOptions().for_own(counts(2, 0, 7), is_global).tolist() == [0, BARRIER, 0]


# -------------------- what it is for


def drawn(shares: list[float], number: int, seed: int, distance: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return labels, and logits of the best model for equally likely classes: unit Gaussians around the corners."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor(shares), number, replacement=True, generator=generator)
    centres = distance * torch.eye(len(shares), dtype=torch.float64)
    x = centres[labels] + torch.randn(number, len(shares), dtype=torch.float64, generator=generator)
    return labels, -(x[:, None] - centres).square().sum(-1) / 2


@pytest.mark.parametrize("shares", [[0.7, 0.2, 0.1], [0.05, 0.05, 0.9], [1 / 3, 1 / 3, 1 / 3]])
def test_expectation_maximisation_recovers_a_known_prior(shares: list[float]) -> None:
    _, logits = drawn(shares, 20_000, 0)
    assert_close(estimate_prior(logits), torch.tensor(shares, dtype=torch.float64), rtol=0, atol=0.015)


@pytest.mark.parametrize("odd", [[torch.nan, 0.0], [torch.inf, 0.0], [-torch.inf, -torch.inf]])
def test_a_sample_without_probabilities_is_said_not_averaged(odd: list[float]) -> None:
    """It would make every share NaN, and with them every answer."""
    with pytest.raises(
        UserError, match=r"^`logits` are NaN or infinite for sample 1; check the scale of the samples\.$"
    ):
        estimate_prior(torch.tensor([[1.0, 0.0], odd]))
    assert estimate_prior(torch.tensor([[-torch.inf, 0.0]] * 99))[1] > 0.99, "one class ruled out is an answer"
