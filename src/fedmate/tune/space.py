"""What is searched: the learning rate that all methods share, and those of a method's own options that matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedmate.errors import UserError
from fedmate.experiment.config import Experiment

LEARNING_RATE = "training.learning_rate"
FACTOR = 5.0
"""How far from the experiment's own learning rate is searched, to both sides."""

SPACES: dict[str, dict[str, tuple[float, float]]] = {
    "ditto": {"proximal_weight": (0.05, 5.0)},
    "fedavg": {},
    "fedbabu": {"tuning_learning_rate": (0.001, 0.1)},
    "fedfa": {"anchor_weight": (0.01, 1.0), "calibration_learning_rate": (1e-4, 1e-2)},
    "fedmate": {
        "classifier_learning_rate": (0.003, 0.3),
        "centre_weight": (0.1, 10.0),
        "fusion_weight": (0.1, 3.0),
    },
    "fedmate_plus": {
        "classifier_learning_rate": (0.003, 0.3),
        "centre_weight": (0.1, 10.0),
        "fusion_weight": (0.1, 3.0),
    },
    "fedpac": {"classifier_learning_rate": (0.003, 0.3), "alignment_weight": (0.1, 10.0)},
    "fedper": {},
    "fedproto": {"prototype_weight": (0.1, 10.0)},
    "fedprox": {"proximal_weight": (0.001, 1.0)},
    "fedrep": {"classifier_learning_rate": (0.003, 0.3)},
    "fedrod": {},
    "lg_fedavg": {},
    "local": {},
    "moon": {"contrastive_weight": (0.01, 5.0)},
    "scaffold": {"server_learning_rate": (0.3, 3.0)},
}
"""By method: options, and from where to where they are searched, on a logarithmic scale.

Whatever has no row, such as a method of another package, is tuned in its learning rate alone.
"""


BASES = (2, 3, 5, 7)
"""Of Halton's sequence, for each of the settings."""


class Dimension(NamedTuple):
    """One of the settings that are searched.

    Attributes:
        key: `section.key`.
        own: what the experiment itself says, where the search starts.
        low: the least value that is tried.
        high: the largest.
        start: `own` as a number.
    """

    key: str
    own: float | None
    low: float
    high: float
    start: float


def space_of(experiment: Experiment) -> tuple[Dimension, ...]:
    """Return what is searched for an experiment; an option that is 0 is off, and stays off."""
    rate = experiment.training.learning_rate
    if not rate:
        raise UserError(f"`{LEARNING_RATE}` is 0, and the search goes to both sides of it; set it above 0.")
    found = [Dimension(LEARNING_RATE, rate, two_digits(rate / FACTOR), two_digits(rate * FACTOR), rate)]
    for key, (low, high) in SPACES.get(experiment.method.name, {}).items():
        own: float | None = experiment.method.options[key]
        # A step size that is not given is that of training.
        start = rate if own is None else own
        if start:
            found.append(Dimension(f"method.{key}", own, min(low, start), max(high, start), start))
    return tuple(found)


def spread(space: Sequence[Dimension], number: int) -> dict[str, float]:
    """Return settings that together cover the ranges evenly, where a few random ones would leave much of them out.

    They are points of Halton's sequence: for one setting a quarter, three quarters, an eighth, five eighths, ... of its
    range; others run in another order beside it. The learning rates are the same for all methods.

    Args:
        space: what is searched.
        number: from 0.
    """
    found = {}
    for one, base in zip(space, BASES, strict=False):
        # The first point, the middle, is where the learning rate starts.
        value = one.low * (one.high / one.low) ** _inverse(number + 2, base)
        found[one.key] = min(max(two_digits(value), one.low), one.high)
    return found


def two_digits(value: float) -> float:
    """Return a number as it is read: more than two digits of a setting mean nothing, and make no other run.

    Example:
        >>> two_digits(0.034567), two_digits(12.34)
        (0.035, 12.0)
    """
    return float(f"{value:.2g}")


def _inverse(number: int, base: int) -> float:
    """Return a number's digits behind the point, the last of them first.

    Example:
        >>> [_inverse(number, 2) for number in range(1, 5)]
        [0.5, 0.25, 0.75, 0.125]
    """
    found, place = 0.0, 1.0
    while number:
        number, digit = divmod(number, base)
        place /= base
        found += digit * place
    return found
