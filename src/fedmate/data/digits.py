"""Digits (Alpaydin and Kaynak, 1998, the test part): part of scikit-learn, so nothing is downloaded.

There is no official split: the samples that no client holds are the test split.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples

NORMALISATION = Normalisation(mean=(4.884,), std=(6.017,))
"""Of pixels from 0 to 16."""


@final
@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """Digits: 1,797 handwritten digits, 8 x 8 pixels."""

    citation: ClassVar[str] = "digits1998"
    # Few samples for each client: the rest is the test split.
    defaults: ClassVar[dict[str, dict[str, Any]]] = {"partition": {"examples": 40}, "model": {"name": "digits_cnn"}}

    def load(self, folder: Path) -> Arrays:
        """Read the digits from scikit-learn."""
        # Imported here because it takes as long as everything else.
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        samples = Samples(images.astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.int64))
        return Arrays(samples, None, tuple("0123456789"), NORMALISATION)
