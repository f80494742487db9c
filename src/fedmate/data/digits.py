"""Digits: 1,797 handwritten digits of 8 x 8 pixels, shipped inside scikit-learn, so nothing is downloaded.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998 (the test part).
There is no official split: what no client trains on is the test split.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples

NORMALISATION = Normalisation(mean=(4.884,), std=(6.017,))
"""Of all pixels, which lie in 0..16."""


@final
@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """Handwritten digits, small enough for a laptop and real enough to tell methods apart."""

    bibtex: ClassVar[str] = """@misc{digits1998,
  title = {Optical Recognition of Handwritten Digits},
  author = {Alpaydin, E. and Kaynak, C.},
  howpublished = {UCI Machine Learning Repository},
  year = {1998},
  doi = {10.24432/C50P49}
}"""

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        """Few samples for each client, whatever the partition: the rest is the test split."""
        return {"partition": {"examples": 40}, "model": {"name": "digits_cnn"}}

    def load(self, folder: Path) -> Arrays:
        """Read the digits from scikit-learn; nothing lies in `folder`."""
        # It takes as long to import as all the rest, and a site of its own data needs none of it.
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        samples = Samples(images.astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.int64))
        return Arrays(samples, None, tuple(str(digit) for digit in range(10)), NORMALISATION)
