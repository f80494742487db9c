"""Sites: data that lies with sites of their own, of which a server knows the declaration and nothing else.

Everybody has to read samples alike: the same classes, in samples of one shape, normalised by the same numbers. These
are declared here; where a site's samples lie it says in a file of its own (`fedmate.flower.site_data`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np

from fedmate.core import Augmentation, Limits, option
from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples
from fedmate.errors import UserError

CENTRE = 127.5
"""Of a byte: what is subtracted from images, and what they are divided by, unless the experiment says otherwise."""


@final
@dataclass(frozen=True, kw_only=True)
class AtSites(Dataset):
    """Data that lies with sites of their own; run it with `flwr run`."""

    classes: tuple[str, ...] = option((), "the names of the classes, two at least")
    shape: tuple[int, ...] = option((), "of a sample; an image has channels, height and width")
    mean: tuple[float, ...] = option(
        (), "subtracted from raw numbers, one for all or one for each channel; left out, images come to lie in -1 to 1"
    )
    std: tuple[float, ...] = option((), "what they are divided by then, likewise")
    crop: int = option(0, "random crops after padding by that many pixels; 0 is off", Limits(at_least=0, at_most=64))
    flip: bool = option(False, "mirror half of the training images")

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """Clients as they are, and a network that fits samples of any shape."""
        return {"partition": {"name": "given"}, "model": {"name": "mlp"}}

    @property
    def augmentation(self) -> Augmentation:
        """What its options say."""
        return Augmentation(self.crop, self.flip)

    @property
    def is_of_bytes(self) -> bool:
        """Whether samples have to be bytes: images are, if nobody says how to normalise them."""
        return len(self.shape) == 3 and not self.mean and not self.std

    @property
    def normalisation(self) -> Normalisation:
        """What raw samples need before a network reads them."""
        if self.is_of_bytes:
            return Normalisation((CENTRE,), (CENTRE,))
        return Normalisation(self.mean or (0.0,), self.std or (1.0,))

    def load(self, folder: Path) -> NoReturn:
        """Say that nothing can be loaded."""
        raise UserError(
            "`dataset.name` is `sites`, samples that lie with sites of their own: there is nothing here to read; run "
            "the experiment with `flwr run`, see docs/deploy.md."
        )

    def stand_ins(self) -> Arrays:
        """Return one sample of zeros to train on and one to test on: a server needs shapes, and has no more.

        Raises:
            UserError: something is not declared, or not as it has to be.
        """
        self._check()
        zero = Samples(np.zeros((1, *self.shape), np.uint8), np.zeros(1, np.int64))
        return Arrays(zero, zero, self.classes, self.normalisation)

    def check_site(self, arrays: Arrays) -> None:
        """Raise `UserError` if a site's samples have another shape or type than is declared."""
        shape = arrays.train.x.shape[1:]
        if shape != self.shape:
            hint = " (of images, `data.size` and `data.grey` say how they are read)" if len(shape) == 3 else ""
            raise UserError(
                f"its samples have the shape {list(shape)}, those of the experiment {list(self.shape)}; give them "
                f"that shape{hint}."
            )
        if self.is_of_bytes and arrays.train.x.dtype != np.uint8:
            raise UserError(
                f"its images hold {arrays.train.x.dtype} values, but the experiment takes bytes, 0 to 255; store them "
                "as uint8, or let the experiment declare `mean` and `std`."
            )

    def _check(self) -> None:
        if len(self.classes) < 2:
            found = f"has `{self.classes[0]}` alone" if self.classes else "is empty"
            raise UserError(f'`dataset.classes` {found}; name two classes at least, such as `["cat", "dog"]`.')
        twice = next((name for name, count in Counter(self.classes).items() if count > 1), None)
        if twice is not None:
            raise UserError(f"`dataset.classes` has `{twice}` twice; give each class a name of its own.")
        if not self.shape or min(self.shape) < 1:
            raise UserError(
                f"`dataset.shape` is {list(self.shape)}; give the sizes of a sample, each 1 at least, such as "
                "`[3, 32, 32]` for an image."
            )
        self._check_numbers("mean", self.mean, Limits())
        self._check_numbers("std", self.std, Limits(above=0))
        if any(self.augmentation) and len(self.shape) != 3:
            name = "crop" if self.crop else "flip"
            raise UserError(f"`dataset.{name}` is for images, but `dataset.shape` is {list(self.shape)}; leave it out.")

    def _check_numbers(self, name: str, numbers: tuple[float, ...], limits: Limits) -> None:
        if len(numbers) not in (0, 1, self.shape[0]):
            raise UserError(
                f"`dataset.{name}` has {len(numbers)} numbers, but a sample has {self.shape[0]} channels; give one for "
                "all, or one for each."
            )
        odd = next((number for number in numbers if not limits.allow(number)), None)
        if odd is not None:
            raise UserError(f"`dataset.{name}` holds {odd:g}; let each be {limits.describe()}.")
