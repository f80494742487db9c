"""Which classes a calibrated model expects: chosen when it predicts, not when it is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from fedmate.components.calibration import estimate_prior, prior_adjustment
from fedmate.datasets.given import ArrayLike, as_numbers
from fedmate.errors import UserError, nearest
from fedmate.experiment.inputs import excerpt

Wanted: TypeAlias = str | ArrayLike
"""A prior as a user asks for it: one of `WORDS`, or a number for each class, as an array or with commas between."""

WORDS = ("estimated", "own", "uniform")

FEW = 100
"""From fewer samples a share of one half is uncertain by 0.05 and more (one standard error)."""

SHOWN = 5
"""How many classes a sentence lists."""


@final
@dataclass(frozen=True)
class Prior:
    """A distribution of classes that a model predicts with.

    Attributes:
        name: one of `WORDS`, or `given`.
        tau: of the model's calibration.
        shares: how likely each class is, `[classes]`, float64; all alike while they are to be estimated.
    """

    name: str
    tau: float
    shares: Tensor

    def settle(self, logits: Tensor) -> Prior:
        """Return it with its shares estimated from the answers themselves, if that was asked for."""
        return replace(self, shares=estimate_prior(logits)) if self.name == "estimated" else self

    def adjust(self, logits: Tensor) -> Tensor:
        """Return the logits of a calibrated model for this distribution."""
        # All classes alike is what such a model answers for; adding one number to all would only round.
        if self.name == "uniform":
            return logits
        return logits + prior_adjustment(self.shares, self.tau).to(logits.dtype)

    def describe(self, class_names: Sequence[str], samples: int) -> str:
        """Say in a sentence what is predicted with.

        Args:
            class_names: one for each share.
            samples: how many there are to predict.
        """
        shares = self.shares.tolist()
        if self.name == "uniform" and self.tau != 1:
            return (
                "the prior is `uniform`: the answers as they are, which hold some of the class shares of training (the "
                f"model was calibrated with {self.tau:g}, not 1)."
            )
        if self.name == "uniform":
            return f"the prior is `uniform`: all {len(shares)} classes equally likely."
        few = ", so few that it is uncertain" * (samples < FEW)
        origin = {
            "own": "`own`, the class shares of its client's training samples",
            "estimated": f"`estimated` from the {samples} sample{'s' * (samples > 1)}{few}",
            "given": "as given",
        }
        # What would be printed as 0.0 % is left out, unless there is nothing else.
        least = min(0.0005, max(shares))
        likely = sorted((k for k in range(len(shares)) if shares[k] >= least), key=lambda k: -shares[k])
        listed = ", ".join(f"`{class_names[k]}` {100 * shares[k]:.1f} %" for k in likely[:SHOWN])
        more = f", {len(likely) - SHOWN} more" * (len(likely) > SHOWN)
        ruled_out = shares.count(0)
        without = f"; {ruled_out} class{'es' * (ruled_out > 1)} ruled out" * bool(ruled_out)
        return f"the prior is {origin[self.name]}: {listed}{more}{without}."

    def doubts(self, logits: Tensor) -> list[str]:
        """Say what an estimate rests on, and how much it decides.

        Args:
            logits: of the model, before they are adjusted.
        """
        if self.name != "estimated":
            return []
        changed = int((self.adjust(logits).argmax(-1) != logits.argmax(-1)).sum())
        return [
            f"`estimated` is as good as the model's probabilities, and changes {changed} of {len(logits)} answers of "
            "`uniform`: a model that is right more often than it is sure gets worse by it, so check some of them."
        ] * bool(changed)


@final
@dataclass(frozen=True)
class Calibration:
    """What a model's training did about priors (`components/calibration.py`).

    Attributes:
        tau: the weight of log class shares in its loss, `method.calibration`; 0 if there was none of it.
        shares: those of the client that it belongs to; `None` if it is nobody's.

    Example:
        >>> Calibration(1.0, (0.25, 0.75)).choose(None, 2).name
        'own'
        >>> Calibration(1.0).choose("3, 1", 2).shares.tolist()
        [0.75, 0.25]
    """

    tau: float = 0.0
    shares: tuple[float, ...] | None = None

    @staticmethod
    def of_client(tau: float, counts: Iterable[int]) -> Calibration:
        """Return that of a client's model; an uncalibrated one has no use for shares, so they do not leave with it.

        Args:
            tau: the method's.
            counts: how many training samples of each class the client holds.
        """
        counts = list(counts)
        return Calibration(tau, tuple(count / sum(counts) for count in counts) if tau else None)

    def choose(self, wanted: Wanted | None, classes: int) -> Prior | None:
        """Return the prior that is asked for, or `None` for a model without calibration.

        Args:
            wanted: by default the client's own, `uniform` for a model that is nobody's.
            classes: how many the model has.

        Raises:
            UserError: there is no such prior.
        """
        if not self.tau:
            if wanted is None:
                return None
            raise UserError(
                "`prior` is given, but the model is not calibrated: its answers assume already what it was trained on; "
                "leave `prior` out, or train with `method.calibration`."
            )
        if wanted is None:
            wanted = "uniform" if self.shares is None else "own"
        if isinstance(wanted, str):
            wanted = wanted.strip()
        if self.tau != 1 and not (isinstance(wanted, str) and wanted in ("own", "uniform")):
            own = "`own`, or " * (self.shares is not None)
            raise UserError(
                f"`prior` is given, but the model was calibrated with {self.tau:g}, not 1: its answers hold some of "
                f"the class shares of training; use {own}`uniform` for its answers as they are."
            )
        if not isinstance(wanted, str):
            return Prior("given", self.tau, _shares(wanted, classes))
        match wanted:
            case "own":
                return Prior(wanted, self.tau, self._own())
            case "uniform" | "estimated":
                return Prior(wanted, self.tau, torch.full((classes,), 1 / classes, dtype=torch.float64))
        return Prior("given", self.tau, _shares(_read(wanted), classes))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any], classes: int) -> Calibration:
        """Undo `to_dict`; raise `ValueError`, `KeyError` or `TypeError` if it is something else."""
        tau, shares = float(values["tau"]), values["shares"]
        if shares is not None:
            shares = tuple(float(share) for share in shares)
            # A NaN is not close to anything.
            if len(shares) != classes or min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
                raise ValueError("these are no shares of classes")
        if not (math.isfinite(tau) and tau > 0):
            raise ValueError("this is no weight")
        return Calibration(tau, shares)

    def _own(self) -> Tensor:
        if self.shares is None:
            raise UserError(
                "`prior` is `own`, but the model belongs to no client whose class shares it could know; use `uniform`, "
                "`estimated`, or a number for each class."
            )
        return torch.tensor(self.shares, dtype=torch.float64)


NO_CALIBRATION = Calibration()


def _read(text: str) -> list[float]:
    """Return numbers that are written with commas between."""
    cells = text.split(",")
    found = []
    for place, cell in enumerate(cells, 1):
        try:
            found.append(float(cell))
        except ValueError:
            if len(cells) > 1:
                raise UserError(
                    f"`prior` is `{excerpt(cell)}` in place {place}; give a number for each class, with commas between."
                ) from None
            word = excerpt(text)
            raise UserError(
                f"`prior` is `{word}`, which is no prior and no numbers with commas between; {nearest(word, WORDS)}"
            ) from None
    return found


def _shares(wanted: ArrayLike, classes: int) -> Tensor:
    """Return numbers divided by their sum, or raise `UserError` unless they are a distribution then."""
    numbers = torch.from_numpy(as_numbers("prior", wanted).astype("float64"))
    if numbers.shape != (classes,):
        plural = "s" * (numbers.numel() != 1)
        found = f"{len(numbers)} number{plural}" if numbers.ndim == 1 else f"the shape {list(numbers.shape)}"
        raise UserError(f"`prior` has {found} for {classes} classes; give one number for each class.")
    if (numbers < 0).any():
        place = int((numbers < 0).nonzero()[0])
        raise UserError(f"`prior` is {numbers[place]:g} for class {place}; give numbers that are 0 or more.")
    if not numbers.any():
        raise UserError("`prior` is 0 for every class; give a number above 0 for at least one of them.")
    # First by the largest: the sum of large numbers may be too large.
    numbers = numbers / numbers.max()
    return numbers / numbers.sum()
