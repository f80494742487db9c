"""Steps, clipping and schedules are torch's own, for one client and for a stack of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler
from torch.testing import assert_close

from fedmate.core import Batch, Model, Setup, Training, Tree, fit_on, make_key, normal, stack, tree_map, unstack
from fedmate.core.local import Optimiser, clip

TRAININGS: dict[str, tuple[Training, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (
        Training(learning_rate=0.05, momentum=0.7, weight_decay=0.1),
        lambda leaves: torch.optim.SGD(leaves, 0.05, 0.7, weight_decay=0.1),
    ),
    "adam": (
        Training(optimiser="adam", learning_rate=0.05, beta1=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.1),
        lambda leaves: torch.optim.Adam(leaves, 0.05, (0.8, 0.9), 1e-3, 0.1),
    ),
    "adamw": (
        Training(optimiser="adamw", learning_rate=0.05, weight_decay=0.1),
        lambda leaves: torch.optim.AdamW(leaves, 0.05, weight_decay=0.1),
    ),
    "clipped": (
        Training(optimiser="adam", learning_rate=0.05, weight_decay=0.0, gradient_clip=1.2),
        lambda leaves: torch.optim.Adam(leaves, 0.05),
    ),
}


def draw(seed: int, dtype: torch.dtype = torch.float64) -> Tree:
    return {
        "weight": normal(make_key(seed), (3, 2), dtype),
        "nested": {"bias": normal(make_key(seed + 1000), (), dtype) / 100},
    }


def take_steps(optimiser: Optimiser, start: Tree, gradients: list[Tree]) -> Tree:
    state = optimiser.init(start)
    for gradient in gradients:
        start, state = optimiser.step(start, gradient, state)
    return start


def setup_of(training: Training, rate_factor: float | Tensor = 1.0) -> Setup:
    model: Any = Model
    return Setup(model, 2, 10, training, rate_factor=rate_factor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("factor", [1.0, torch.tensor(0.5, dtype=torch.float64)])
@pytest.mark.parametrize("name", TRAININGS)
def test_many_steps_are_those_of_torch(name: str, factor: float | Tensor, mapped: bool, dtype: torch.dtype) -> None:
    training, make = TRAININGS[name]
    optimiser = setup_of(training, factor).optimiser()
    start, gradients = draw(1, dtype), [draw(10 + t, dtype) for t in range(20)]
    theirs = [start["weight"].clone().requires_grad_(), start["nested"]["bias"].clone().requires_grad_()]
    reference = make(theirs)
    for group in reference.param_groups:
        group["lr"] *= float(factor)
    for gradient in gradients:
        theirs[0].grad, theirs[1].grad = gradient["weight"].clone(), gradient["nested"]["bias"].clone()
        if training.gradient_clip:
            torch.nn.utils.clip_grad_norm_(theirs, training.gradient_clip)
        reference.step()
    if mapped:
        others = [draw(100 + t, dtype) for t in range(20)]
        pairs = [stack([one, other]) for one, other in zip(gradients, others, strict=True)]
        stacked = torch.func.vmap(lambda *each: take_steps(optimiser, start, list(each)))(*pairs)
        found = unstack(stacked, 0)
        assert_close(unstack(stacked, 1), take_steps(optimiser, start, others), rtol=0, atol=1e-6)
    else:
        found = take_steps(optimiser, start, gradients)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert_close([found["weight"], found["nested"]["bias"]], [t.detach() for t in theirs], rtol=0, atol=tolerance)


@pytest.mark.parametrize("norm", [0.5, 100.0])
def test_clipping_is_that_of_torch(norm: float) -> None:
    gradients = draw(3)
    theirs = [torch.zeros(3, 2).double().requires_grad_(), torch.zeros(()).double().requires_grad_()]
    theirs[0].grad, theirs[1].grad = gradients["weight"].clone(), gradients["nested"]["bias"].clone()
    torch.nn.utils.clip_grad_norm_(theirs, norm)
    found = clip(gradients, norm)
    assert_close([found["weight"], found["nested"]["bias"]], [t.grad for t in theirs], rtol=0, atol=1e-15)
    # Where nothing is to be clipped, nothing is computed.
    assert clip(gradients, 0.0) is gradients


SCHEDULES: list[tuple[Training, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]]] = [
    (Training(), lambda steps: lr_scheduler.ConstantLR(steps, 1.0)),
    (Training(schedule="cosine"), lambda steps: lr_scheduler.CosineAnnealingLR(steps, 12)),
    (
        Training(schedule="cosine", schedule_end=0.2),
        lambda steps: lr_scheduler.CosineAnnealingLR(steps, 12, eta_min=0.2),
    ),
    (Training(schedule="poly"), lambda steps: lr_scheduler.PolynomialLR(steps, 12, 0.9)),
    (
        Training(schedule="poly", schedule_power=1.0, schedule_end=0.25),
        lambda steps: lr_scheduler.LinearLR(steps, 1.0, 0.25, 12),
    ),
    (
        Training(schedule="step", schedule_step=5, schedule_factor=0.3),
        lambda steps: lr_scheduler.StepLR(steps, 5, 0.3),
    ),
]


@pytest.mark.parametrize(("training", "make"), SCHEDULES)
def test_a_schedule_falls_as_that_of_torch(
    training: Training, make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]
) -> None:
    steps = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
    schedule, expected = make(steps), []
    for _ in range(13):
        expected.append(schedule.get_last_lr()[0])
        steps.step()
        schedule.step()
    assert [training.rate_factor(t, 12) for t in range(13)] == pytest.approx(expected, abs=1e-12)


def test_other_rates_fall_alike_and_a_constant_one_is_itself() -> None:
    assert setup_of(Training(learning_rate=0.3)).optimiser() == setup_of(Training(learning_rate=9.0)).optimiser(0.3)
    scaled = setup_of(Training(), 0.5)
    assert (scaled.optimiser().learning_rate, scaled.optimiser(0.3).learning_rate) == (0.01, 0.15)  # type: ignore[attr-defined]


def test_a_state_is_taken_up_by_name() -> None:
    ids = torch.arange(2)
    batch = Batch(torch.zeros(2, 1), ids, ids >= 0, ids, make_key(0), 2)
    params: Tree = {"classifier": {"a": torch.ones(2), "b": torch.ones(2)}, "buffers": {}}

    def objective(tree: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        return (tree["classifier"]["a"] * 2 + tree["classifier"]["b"]).sum(), {}

    def train(state: Tree | None) -> tuple[Tree, Tree]:
        return fit_on(objective, params, state, [batch, batch], setup_of(Training()).optimiser(), ("classifier",))

    _, state = train(None)
    reverse: Tree = {"classifier": dict(reversed(state["classifier"].items()))}
    assert_close(train(reverse), train(state), rtol=0, atol=0)
    assert not torch.equal(
        train(state)[0]["classifier"]["a"], train(tree_map(torch.zeros_like, state))[0]["classifier"]["a"]
    )
