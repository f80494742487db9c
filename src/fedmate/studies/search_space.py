"""The settings that tuning varies: the learning rate that all methods share, and a few options of each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedmate.errors import UserError
from fedmate.experiment.sections import Experiment

LEARNING_RATE = "training.learning_rate"
FACTOR = 5.0
"""The learning rate is searched from the experiment's own divided by this to its product with this."""

RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "ditto": {"proximal_weight": (0.05, 5.0)},
    "fedbabu": {"tuning_learning_rate": (0.001, 0.1)},
    "fedfa": {"anchor_weight": (0.01, 1.0), "calibration_learning_rate": (1e-4, 1e-2)},
    "fedmate": {"classifier_learning_rate": (0.003, 0.3), "centre_weight": (0.1, 10.0), "fusion_weight": (0.1, 3.0)},
    "fedpac": {"classifier_learning_rate": (0.003, 0.3), "alignment_weight": (0.1, 10.0)},
    "fedproto": {"prototype_weight": (0.1, 10.0)},
    "fedprox": {"proximal_weight": (0.001, 1.0)},
    "fedrep": {"classifier_learning_rate": (0.003, 0.3)},
    "moon": {"contrastive_weight": (0.01, 5.0)},
    "scaffold": {"server_learning_rate": (0.3, 3.0)},
}
RANGES["fedmate_plus"] = RANGES["fedmate"]
"""Options by method and their ranges, on a logarithmic scale; other methods are tuned in their learning rate alone."""


class Dimension(NamedTuple):
    """A setting `section.key` that is searched; `start` is the experiment's `own` value as a number."""

    key: str
    own: float | None
    low: float
    high: float
    start: float


def space_of(experiment: Experiment) -> tuple[Dimension, ...]:
    """Return the settings that are searched for an experiment; an option that is 0 is off, and stays off."""
    rate = experiment.training.learning_rate
    if not rate:
        raise UserError(f"`{LEARNING_RATE}` is 0, and the search covers values around it; set it above 0.")
    found = [Dimension(LEARNING_RATE, rate, two_digits(rate / FACTOR), two_digits(rate * FACTOR), rate)]
    for key, (low, high) in RANGES.get(experiment.method.name, {}).items():
        own: float | None = experiment.method.options[key]
        # A learning rate that is not given is that of training.
        start = rate if own is None else own
        if start:
            found.append(Dimension(f"method.{key}", own, min(low, start), max(high, start), start))
    return tuple(found)


def spread(space: Sequence[Dimension], number: int) -> dict[str, float]:
    """Return a point of Halton's sequence: a few points cover the ranges more evenly than random ones.

    The learning rates are the same for all methods.
    """
    found = {}
    for one, base in zip(space, (2, 3, 5, 7), strict=False):
        # The sequence starts with its second point: the learning rate has the first, the middle, in trial 0.
        index, share, place = number + 2, 0.0, 1.0
        while index:
            index, digit = divmod(index, base)
            place /= base
            share += digit * place
        found[one.key] = min(max(two_digits(one.low * (one.high / one.low) ** share), one.low), one.high)
    return found


def two_digits(value: float) -> float:
    """Return a number with two digits: more would mean nothing, and would make another run."""
    return float(f"{value:.2g}")
