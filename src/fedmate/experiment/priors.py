"""Priors at prediction: the class shares that a model trained with prior calibration answers for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from fedmate.core.objective import estimate_prior, prior_adjustment
from fedmate.data.dataset import ArrayLike, as_numbers
from fedmate.errors import UserError, nearest

Prior: TypeAlias = str | ArrayLike
"""The prior a user asks for: one of `WORDS`, or a number per class, as an array or with commas between."""

WORDS = ("estimated", "own", "uniform")

SHOWN = 5
"""How many classes a sentence lists."""


@final
@dataclass(frozen=True)
class Calibration:
    """The prior calibration of a model's training (`core/objective.py`).

    Attributes:
        tau: the weight of log class shares in its loss, `objective.calibration`; 0 if training was not calibrated.
        shares: class shares of the client that owns the model; `None` for a global model.
    """

    tau: float = 0.0
    shares: tuple[float, ...] | None = None

    def choose(self, prior: Prior | None, logits: Tensor) -> tuple[str, Tensor]:
        """Return the name and the class shares of a prior, or raise `UserError` if there is no such prior."""
        if not self.tau:
            raise UserError(
                "`prior` is given, but the model is not calibrated: its answers contain the class shares of training; "
                "leave `prior` out, or train with `objective.calibration=1`."
            )
        if prior is None:
            prior = "uniform" if self.shares is None else "own"
        name = prior.strip() if isinstance(prior, str) else ""
        if self.tau != 1 and name not in ("own", "uniform"):
            raise UserError(
                f"`prior` cannot be chosen freely, because the model was calibrated with {self.tau:g}, not 1; use "
                "`uniform`, or `own` for a client's model."
            )
        classes = logits.shape[-1]
        if name == "uniform":
            return name, torch.full((classes,), 1 / classes, dtype=torch.float64)
        if name == "estimated":
            return name, estimate_prior(logits)
        if name != "own":
            return "given", _given_shares(prior, classes)
        if self.shares is None:
            raise UserError("`prior` is `own`, but a global model belongs to no client; use one of the others.")
        return name, torch.tensor(self.shares, dtype=torch.float64)

    def adjust(self, logits: Tensor, name: str, shares: Tensor, class_names: Sequence[str]) -> tuple[Tensor, list[str]]:
        """Return the logits for a prior that `choose` gave, and warnings about it for the user."""
        if name == "uniform":
            # The model answers for equally likely classes; one number added to all logits would only round.
            rest = "" if self.tau == 1 else f" (calibrated with {self.tau:g}: some class shares of training remain)"
            return logits, [f"the prior is `uniform`: {len(shares)} equally likely classes{rest}."]
        adjusted, samples = logits + prior_adjustment(shares, self.tau).to(logits.dtype), len(logits)
        likely = [k for k in shares.argsort(descending=True, stable=True).tolist() if shares[k] >= 0.0005]
        notes = [f"the prior is `{name}`: {_first([f'`{class_names[k]}` {100 * shares[k]:.1f} %' for k in likely])}."]
        # An estimate gives each class a bit: less than half a sample says nothing.
        least = 0.5 / samples if name == "estimated" else 0
        unheld = [f"`{class_names[k]}`" for k, held in enumerate(self.shares or ()) if not held and shares[k] > least]
        if unheld:
            notes.append(f"the model's client has no training sample of {_first(unheld)}.")
        changed = int((adjusted.argmax(-1) != logits.argmax(-1)).sum())
        if name == "estimated" and changed:
            notes.append(
                f"the estimate changed {changed} of {samples} answers against `uniform`; from few samples, or with a "
                "model that is too unsure, as after few rounds, it can be wrong, so compare both."
            )
        return adjusted, notes

    @staticmethod
    def from_dict(values: Mapping[str, Any], classes: int) -> Calibration:
        """Return what a file holds; raise `ValueError`, `KeyError` or `TypeError` for anything else."""
        tau, shares = float(values["tau"]), values["shares"]
        if shares is not None:
            shares = tuple(float(share) for share in shares)
            # A NaN is not close to anything.
            if len(shares) != classes or min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
                raise ValueError("not class shares")
        if not (math.isfinite(tau) and tau > 0):
            raise ValueError("not a weight")
        return Calibration(tau, shares)


NO_CALIBRATION = Calibration()


def _given_shares(prior: Prior, classes: int) -> Tensor:
    """Return a number per class divided by their sum, or raise `UserError` unless that is a distribution."""
    if isinstance(prior, str):
        text = prior
        try:
            prior = [float(cell) for cell in text.split(",")]
        except ValueError:
            raise UserError(
                f"`prior` is `{text:.40}`, neither a word nor numbers with commas between; {nearest(text, WORDS)}"
            ) from None
    numbers = torch.from_numpy(as_numbers("prior", prior).astype(np.float64))
    if numbers.shape != (classes,):
        raise UserError(
            f"`prior` has the shape {list(numbers.shape)} for {classes} classes; give one number per class."
        )
    if numbers.min() < 0 or not numbers.any():
        raise UserError(f"`prior` is {numbers.tolist()[:SHOWN]}; give numbers of 0 or more, at least one above 0.")
    # First by the largest: the sum of large numbers may be infinite.
    numbers = numbers / numbers.max()
    return numbers / numbers.sum()


def _first(words: Sequence[str]) -> str:
    """Return some of them with commas between, and how many more there are."""
    return ", ".join(words[:SHOWN]) + f", {len(words) - SHOWN} more" * (len(words) > SHOWN)
