"""The signature of a run's networks: the samples they read and the classes they answer with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedmate.data import Arrays, Normalisation


@dataclass(frozen=True)
class Signature:
    """The shape of one sample, a name for each output, and the parameters' type.

    The normalisation is applied to raw samples before the network reads them.
    """

    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    normalisation: Normalisation
    dtype: str

    @staticmethod
    def of(arrays: Arrays, dtype: str) -> Signature:
        """Return the signature of networks that train on a data set."""
        return Signature(tuple(arrays.train.x.shape[1:]), arrays.class_names, arrays.normalisation, dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "normalisation": self.normalisation._asdict()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Signature:
        """Undo `to_dict`; raise `ValueError`, `KeyError` or `TypeError` for anything else."""
        normalisation = values["normalisation"]
        return Signature(
            input_shape=tuple(int(size) for size in values["input_shape"]),
            class_names=tuple(str(name) for name in values["class_names"]),
            normalisation=Normalisation(*(tuple(map(float, normalisation[key])) for key in ("mean", "std"))),
            dtype=str(values["dtype"]),
        )
