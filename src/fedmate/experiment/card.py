"""What a run's networks read and answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedmate.data import Normalisation


@dataclass(frozen=True)
class Card:
    """What has to be known about a network besides its numbers, in order to use it.

    Attributes:
        input_shape: of one sample.
        class_names: what each output stands for.
        normalisation: what is done to raw samples before the network reads them.
        dtype: the precision of its numbers.
    """

    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    normalisation: Normalisation
    dtype: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "normalisation": self.normalisation._asdict()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Card:
        """Undo `to_dict`; raise `ValueError`, `KeyError` or `TypeError` if it is something else."""
        normalisation = values["normalisation"]
        return Card(
            input_shape=tuple(int(size) for size in values["input_shape"]),
            class_names=tuple(str(name) for name in values["class_names"]),
            normalisation=Normalisation(*(tuple(map(float, normalisation[key])) for key in ("mean", "std"))),
            dtype=str(values["dtype"]),
        )
