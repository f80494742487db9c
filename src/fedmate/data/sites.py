"""Data at sites: the server knows the declaration of the samples, and nothing else.

All sites read samples of the same classes and shape with the same normalisation, which are declared here. Where a site
finds its samples is written in a file of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, final

import numpy as np

from fedmate.core import Limits, option
from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples, check_names, crop_option, flip_option
from fedmate.errors import UserError

CENTRE = 127.5
"""Images are read as (byte - CENTRE) / CENTRE, unless `mean` and `std` are declared."""


@final
@dataclass(frozen=True, kw_only=True)
class AtSites(Dataset):
    """Samples that stay at sites; run it with `flwr run`."""

    defaults: ClassVar[dict[str, dict[str, Any]]] = {"partition": {"name": "given"}, "model": {"name": "mlp"}}

    classes: tuple[str, ...] = option((), "the names of the classes, two at least")
    shape: tuple[int, ...] = option((), "of a sample; an image has channels, height and width")
    mean: tuple[float, ...] = option(
        (), "subtracted from samples, one for all or one per channel; left out, images are scaled to -1..1"
    )
    std: tuple[float, ...] = option((), "samples are divided by it then, likewise")
    crop: int = crop_option()
    flip: bool = flip_option()

    @property
    def is_of_bytes(self) -> bool:
        """Whether samples have to be bytes, as images without declared normalisation."""
        return len(self.shape) == 3 and not self.mean and not self.std

    @property
    def normalisation(self) -> Normalisation:
        """The declared normalisation, or that of images."""
        if self.is_of_bytes:
            return Normalisation((CENTRE,), (CENTRE,))
        return Normalisation(self.mean or (0.0,), self.std or (1.0,))

    def load(self, folder: Path) -> NoReturn:
        """Refuse: there is nothing to read here."""
        raise UserError(
            "`dataset.name` is `sites`, whose samples stay at the sites, so nothing can be read here; run the "
            "experiment with `flwr run`, see docs/deploy.md."
        )

    def stand_ins(self) -> Arrays:
        """Return one training and one test sample of zeros, so that the server knows shapes, or raise `UserError`."""
        check_names("dataset.classes", self.classes)
        if not self.shape or min(self.shape) < 1:
            raise UserError(
                f"`dataset.shape` is {list(self.shape)}; give the sizes of a sample, each 1 at least, such as "
                "`[3, 32, 32]` for an image."
            )
        for name, numbers, limits in (("mean", self.mean, Limits()), ("std", self.std, Limits(above=0))):
            if len(numbers) not in (0, 1, self.shape[0]):
                raise UserError(
                    f"`dataset.{name}` has {len(numbers)} numbers, but a sample has {self.shape[0]} channels; give one "
                    "for all, or one for each."
                )
            if not all(map(limits.allow, numbers)):
                raise UserError(f"`dataset.{name}` is {list(numbers)}; each must be {limits.describe()}.")
        if any(self.augmentation) and len(self.shape) != 3:
            name = "crop" if self.crop else "flip"
            raise UserError(f"`dataset.{name}` is for images, but `dataset.shape` is {list(self.shape)}; leave it out.")
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
