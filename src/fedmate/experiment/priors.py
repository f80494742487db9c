"""Which classes a calibrated model expects: chosen when it predicts, not when it is trained."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmate.components.prior_calibration import estimate_prior, prior_adjustment
from fedmate.data.arrays import ArrayLike, for_numpy
from fedmate.errors import UserError
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
        own: the shares of the model's client; `None` if it is nobody's.
    """

    name: str
    tau: float
    shares: Tensor
    own: tuple[float, ...] | None = None

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
        """Say what is predicted with, and which of it the client has never held.

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
        listed = _first([f"`{class_names[k]}` {100 * shares[k]:.1f} %" for k in likely])
        ruled_out = shares.count(0)
        without = f"; {ruled_out} class{'es' * (ruled_out > 1)} ruled out" * bool(ruled_out)
        unheld = [class_names[k] for k in self._unheld(samples)]
        return f"the prior is {origin[self.name]}: {listed}{without}.{_foreign(unheld)}"

    def doubts(self, logits: Tensor) -> list[str]:
        """Say how much an estimate decides, and when not to trust it.

        Args:
            logits: of the model, before they are adjusted.
        """
        if self.name != "estimated":
            return []
        # As they are they answer for `uniform`: the network need not be asked again.
        changed = int((self.adjust(logits).argmax(-1) != logits.argmax(-1)).sum())
        return [
            f"careful: against `uniform`, the estimate changed {changed} of {len(logits)} answers. If the model's "
            "probabilities are too timid, as after few rounds, an estimate collapses to few classes; compare both."
        ] * bool(changed)

    def _unheld(self, samples: int) -> list[int]:
        """Return the classes that are expected though the client has no sample of them, the likeliest first."""
        # An estimate gives each class a bit: what amounts to less than half a sample says nothing about it.
        least = 0.5 / samples if self.name == "estimated" else 0
        shares = self.shares.tolist()
        found = (k for k, held in enumerate(self.own or ()) if not held and shares[k] > least)
        return sorted(found, key=lambda k: -shares[k])


@final
@dataclass(frozen=True)
class Calibration:
    """What a model's training did about priors (`components/prior_calibration.py`).

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
                "`prior` is given, but the model is not calibrated: its answers hold the class shares of its training; "
                "leave `prior` out, or train with `method.calibration=1` (`method.own_prior` does not change training, "
                "so it is not enough for a model that a client has trained for itself)."
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
            return Prior("given", self.tau, _shares(wanted, classes), self.shares)
        match wanted:
            case "own":
                return Prior(wanted, self.tau, self._own(), self.shares)
            case "uniform" | "estimated":
                alike = torch.full((classes,), 1 / classes, dtype=torch.float64)
                return Prior(wanted, self.tau, alike, self.shares)
        return Prior("given", self.tau, _shares(_read(wanted, classes), classes), self.shares)

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


def _first(words: Sequence[str]) -> str:
    """Return the first of them with commas between, and how many more there are.

    Example:
        >>> _first("abcdefg")
        'a, b, c, d, e, 2 more'
    """
    return ", ".join(words[:SHOWN]) + f", {len(words) - SHOWN} more" * (len(words) > SHOWN)


def _foreign(class_names: Sequence[str]) -> str:
    """Return a sentence about classes that a client's model is asked for, though the client holds none of them."""
    if not class_names:
        return ""
    listed, them = _first([f"`{name}`" for name in class_names]), "them" if len(class_names) > 1 else "it"
    return f" The client has no sample of {listed}: what the model knows of {them} can only come from others."


def _read(text: str, classes: int) -> list[float]:
    """Return numbers that are written with commas between."""
    if not text:
        raise UserError(f"`prior` is empty; give {_quoted(WORDS)}, or a number for each class, with commas between.")
    cells = text.split(",")
    if len(cells) == 1 and not _is_number(text):
        raise _unknown(excerpt(text))
    # First: or a cell too many would be said to belong to a class that is not there.
    _check_shape((len(cells),), classes)
    for k, cell in enumerate(cells):
        if not _is_number(cell):
            what = f"`{excerpt(cell)}`" if cell.strip() else "empty"
            raise UserError(f"`prior` is {what} for class {k}; give a number for each class, with commas between.")
    return [float(cell) for cell in cells]


def _unknown(word: str) -> UserError:
    """Return what to say about a word that is no prior."""
    # A dot is in the names of files, and in numbers that something else than commas separates.
    close = [] if "." in word else difflib.get_close_matches(word.casefold(), WORDS, n=1)
    hint = (
        f"did you mean `{close[0]}`?"
        if close
        else "give shares as numbers with commas between, in the order of classes, or, for many classes, call "
        "`fedmate.predict(..., prior=array)` in Python."
    )
    return UserError(f"`prior` is `{word}`, which is neither {_quoted(WORDS)} nor numbers; {hint}")


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _shares(wanted: ArrayLike, classes: int) -> Tensor:
    """Return numbers divided by their sum, or raise `UserError` unless they are a distribution then."""
    numbers = torch.from_numpy(_array(wanted))
    _check_shape(tuple(numbers.shape), classes)
    odd = (~(numbers.isfinite() & (numbers >= 0))).nonzero()
    if len(odd):
        k = int(odd[0])
        raise UserError(f"`prior` is {numbers[k]:g} for class {k}; give finite numbers that are 0 or more.")
    if not numbers.any():
        raise UserError("`prior` is 0 for every class; give a number above 0 for at least one of them.")
    # First by the largest: the sum of large numbers may be too large.
    numbers = numbers / numbers.max()
    return numbers / numbers.sum()


def _array(wanted: ArrayLike) -> NDArray[np.float64]:
    """Return values as an array that may hold NaN: `as_numbers`, for samples, would say where, but not which class."""
    wanted = for_numpy("prior", wanted)
    try:
        array = np.asarray(wanted)
    except ValueError:
        raise UserError("`prior` has rows of unequal length; give one number for each class.") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"`prior` holds {array.dtype} values; give one number for each class.")
    # What does not fit into double precision becomes infinite, and is found then.
    with np.errstate(over="ignore"):
        return array.astype(np.float64)


def _check_shape(shape: tuple[int, ...], classes: int) -> None:
    """Raise `UserError` unless there is one value for each class."""
    if shape != (classes,):
        found = f"{shape[0]} value{'s' * (shape[0] != 1)}" if len(shape) == 1 else f"the shape {list(shape)}"
        raise UserError(f"`prior` has {found} for {classes} classes; give one number for each class.")
